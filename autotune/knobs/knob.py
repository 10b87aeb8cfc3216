"""Knob: all that the package knows of one way to train faster, in one declaration.

Each family's file declares its knobs, and `autotune.knobs.registry` answers questions about all of them. To add one,
add its field to `TrainConfig` and its declaration to a family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from autotune.hardware import DeviceKind
from autotune.knobs.config import Scalar, TrainConfig
from autotune.knobs.context import Choices, SearchContext
from autotune.recorder.undo import Undo

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

Effect = Literal["memory", "host memory", "arithmetic", "compiled code", "waiting batches", "cores"]
"""memory, host memory: what a step takes of the device's memory, on the CPU of the host's too · arithmetic: how results
are rounded · compiled code: what Inductor writes · waiting batches: how much waits in the loader · cores: how many CPUs
are used."""
Scope = Literal["live", "loader", "compiled", "process"]
"""How a training process that is alive takes another value of a knob. live: in place, between two steps · loader: by
another loader · compiled: by other compiled code, which is kept · process: not at all, only a new process has it."""
Framework = Literal["lightning", "fabric", "transformers", "accelerate"]
FRAMEWORKS: tuple[Framework, ...] = ("lightning", "fabric", "transformers", "accelerate")
EVERYWHERE: frozenset[DeviceKind] = frozenset({"cpu", "cuda", "rocm", "mps"})


@dataclass(frozen=True)
class ByLeave:
    """A training that runs can take another value of the knob, but then learns something else.

    Attributes:
        changes: What changes about the learning, in one sentence.
    """

    changes: str


WhileTraining = Literal["neutral"] | ByLeave | None
"""What another value does to a training that runs. neutral: the same samples in the same order, the same mathematics up
to rounding · by leave: it learns something else, and says what · None: such a training cannot take another value."""
Rule = Callable[[SearchContext], Choices | str]
Preference = Callable[[SearchContext, Mapping[str, Scalar]], tuple[Scalar, ...]]


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One declaration.

    Attributes:
        name: Of its field in `TrainConfig`.
        scope: How a training process that is alive takes another value (`benchmarks.host_history` measures it).
        why: What it may gain, in one sentence.
        when: Where it is searched, besides its devices; in a few words.
        while_training: What another value does to a training that runs.
        candidates: The values that are worth trying, or the sentence that says why it is not searched. None: it has no
            choice of its own, and follows from the knob that it goes with.
        when_short: The same once memory has run out, for a knob that buys memory with time.
        prefers: Values for the first guess, best first: the first that is offered is taken. A function is given what
            was picked of the knobs declared before.
        priority: Its place by expected effect beside a ``gpu``, and on the ``cpu`` alone: 10 is tried first.
        guide: Its place in the order in which tuning guides change knobs, which the ablation follows.
        part: Of training, what it makes faster.
        affects: What else depends on it.
        scale: On which its values lie; None: they are categories.
        goes_with: The knob without which it means nothing.
        devices: Where it has an effect.
        devices_of: Where some of its values have one, if not on all of them.
        conflict: Why a config cannot run with the value it has, or None.
        dataloader_argument: The keyword argument of ``DataLoader`` that takes its value.
        ddp_argument: The keyword argument of ``DistributedDataParallel`` that takes its value.
        variable: The variable of the environment that takes its value, unless that is None: read when ranks meet.
        words: A framework's own keyword argument that takes its value; several, or a tuple of one, where the value is
            translated by `autotune.integrations`.
        without_word: How it comes into effect under a framework that has no word for it.
        on_process: Tells torch what holds for the whole process, whatever it was told before; returns its undo.
        on_model: Changes a model that is on its device; given the whole config, whose other knobs may matter.
        looks_at: Those knobs.
        on_optimizer: Changes an optimizer.
        reads: The value that is in force in a process, for a model and its optimizer; None where it cannot be read. A
            word that is no value of it says what is there instead.
        starts_as_read: Whether the user's module may have told torch a value before, which is then its baseline's.
        outside: Changes a model of a script that cannot be asked to do it itself.
        trials: The values that `autotune doctor` compares with eager fp32, each with the devices where it does.
        on_copies: Whether it is in how a script's batches are copied to the device, which is changed from outside.
    """

    name: str
    scope: Scope
    why: str
    candidates: Rule | None
    while_training: WhileTraining = None
    when_short: Rule | None = None
    when: str = ""
    prefers: tuple[Scalar, ...] | Preference = ()
    priority: Mapping[Literal["cpu", "gpu"], int] = field(default_factory=dict)
    guide: int | None = None
    part: Literal["compute", "loader", "both"] = "compute"
    affects: Set[Effect] = frozenset()
    scale: Literal["linear", "logarithmic"] | None = None
    goes_with: str | None = None
    devices: Set[DeviceKind] = EVERYWHERE
    devices_of: Mapping[Scalar, Set[DeviceKind]] = field(default_factory=dict)
    conflict: Callable[[TrainConfig], str | None] = lambda _: None
    dataloader_argument: str | None = None
    ddp_argument: str | None = None
    variable: str | None = None
    words: Mapping[Framework, str | tuple[str, ...]] = field(default_factory=dict)
    without_word: str = ""
    on_process: Callable[[Any, torch.device], Undo] | None = None
    on_model: Callable[[nn.Module, TrainConfig], Undo] | None = None
    looks_at: tuple[str, ...] = ()
    on_optimizer: Callable[[Optimizer, Any], Undo] | None = None
    reads: Callable[[nn.Module | None, Optimizer | None, torch.device], Scalar | None] | None = None
    starts_as_read: bool = False
    outside: Callable[[nn.Module, TrainConfig], Undo] | None = None
    trials: Mapping[Scalar, Set[DeviceKind]] = field(default_factory=dict)
    on_copies: bool = False

    @property
    def default(self) -> Scalar:
        """PyTorch's own value."""
        return TrainConfig.model_fields[self.name].default  # type: ignore[no-any-return]

    @property
    def is_outside(self) -> bool:
        """Whether it can be changed in a script that knows nothing of it."""
        arguments = (self.dataloader_argument, self.ddp_argument, self.variable)
        functions = (self.on_process, self.on_model, self.on_optimizer, self.outside)
        return self.on_copies or any(way is not None for way in (*arguments, *functions))

    def preferred(self, context: SearchContext, picked: Mapping[str, Scalar]) -> tuple[Scalar, ...]:
        """Values for the first guess, best first."""
        return self.prefers(context, picked) if callable(self.prefers) else self.prefers

    def is_idle(self, value: Scalar, device: DeviceKind) -> bool:
        """Whether a value was chosen that has no effect on a kind of device."""
        return value != self.default and device not in self.devices_of.get(value, self.devices)
