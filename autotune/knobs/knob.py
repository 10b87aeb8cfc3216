"""Knob: everything that the package knows about one way to train faster, in one declaration.

Each family's file declares its knobs, and `autotune.knobs.registry` answers questions about all of them. To add one,
add its field to `TrainConfig` and its declaration to a family.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from autotune.hardware import DeviceKind
from autotune.knobs.config import Scalar, TrainConfig
from autotune.knobs.context import Choices, SearchContext
from autotune.torch_settings.undo import Undo

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

    from autotune.recorder.effects import Effects

Effect = Literal[
    "memory",  # the memory of a step on every device
    "host memory",  # the memory of a step on the CPU
    "arithmetic",  # how results are rounded
    "compiled code",  # the code that Inductor writes
    "waiting batches",  # how much waits in the loader
    "cores",  # how many CPUs are used
]
Scope = Literal[
    "live",  # a training process changes the knob in place, between two steps
    "loader",  # with another loader
    "compiled",  # with other compiled code, which is kept
    "process",  # not at all: only a new process takes another value
]
Framework = Literal["lightning", "fabric", "transformers", "accelerate"]
FRAMEWORKS: tuple[Framework, ...] = get_args(Framework)
EVERYWHERE: frozenset[DeviceKind] = frozenset({"cpu", "cuda", "rocm", "mps"})


@dataclass(frozen=True)
class ByLeave:
    """A running training can take another value of the knob, but then learns something else.

    Attributes:
        changes: What changes about the learning, in one sentence.
    """

    changes: str


WhileTraining = Literal["neutral"] | ByLeave | None
"""What another value does to a running training. Neutral: same samples in the same order, same mathematics but for
rounding. `ByLeave`: it learns something else. None: a running training cannot take another value."""
Rule = Callable[[SearchContext], Choices | str]
Preference = Callable[[SearchContext, Mapping[str, Scalar]], tuple[Scalar, ...]]


@dataclass(frozen=True, kw_only=True)
class Knob:
    """The declaration of one knob.

    Attributes:
        name: The name of its field in `TrainConfig`.
        scope: How a live training process takes another value (`benchmarks.host_history` measures it).
        why: What it may gain, in one sentence.
        when: Where it is searched, apart from its devices; in a few words.
        while_training: What another value does to a running training.
        candidates: Returns the values worth trying, or a sentence that says why the knob is not searched; where an
            option lifts that, it follows a semicolon. None: the knob has no choice of its own, and follows from
            `goes_with`.
        when_short: The same once memory has run out, for a knob that saves memory at the cost of time.
        prefers: Values for the first guess, best first; the first one on offer is taken. A function also receives the
            values picked for the knobs declared before.
        hides_overhead: Values that hide what calling operators costs, best first.
        meets: Knobs whose joint gain is known to differ from the sum of both.
        priority: Its rank by expected effect beside a ``gpu``, and on the ``cpu`` alone: 10 is tried first.
        guide: Its rank in the order in which tuning guides change knobs, which the ablation follows.
        part: The part of training that it speeds up.
        affects: What else depends on it.
        scale: The scale of its values; None: they are categories.
        goes_with: The knob without which it has no effect.
        devices: The devices on which it has an effect.
        devices_of: The devices on which a single value has an effect, where they are not all of these.
        conflict: Why a config cannot run with its value, or None.
        instead: The values, best first, of which one takes the place of a config's own in this workload; empty: its own
            is good.
        needs_allow_numerics: Whether it is searched only with `--allow-numerics`.
        dataloader_argument: The keyword argument of ``DataLoader`` that takes its value.
        optimizer_arguments: Keyword arguments of optimizers, of which its value names the one that is true.
        absent: The values that an argument has if it is not given, of torch or of a framework; without an entry, the
            default.
        ddp_argument: The keyword argument of ``DistributedDataParallel`` that takes its value.
        variable: The environment variable that takes its value, unless that is None; read when ranks meet.
        words: A framework's own keyword argument that takes its value. A tuple: the arguments into which
            `autotune.integrations` translates the value.
        written: Returns the framework's arguments for a value and the class of a script's optimizer, to write into the
            script; None if there are none. A single word is written as it is.
        without_word: How it takes effect under a framework that has no argument for it.
        on_process: Sets the value for the whole process, whatever was set before; returns an undo.
        on_model: Changes a model that is on its device. It receives the whole config, since other knobs may matter.
        on_running_model: Changes the model of a running training, where that must leave more alone than `on_model`.
        looks_at: Those other knobs.
        on_optimizer: Changes an optimizer.
        reads: Returns the value in force for a model and its optimizer; None if it cannot be read. A word that is not a
            value of this knob says what is there instead.
        shows: Returns why its value had no effect in a script's first steps; None if it had one. What it `reads`, and
            arguments, are compared without it.
        starts_as_read: Whether the user's module may have set a value before, which is then the baseline's.
        outside: Changes a script's model from outside.
        trials: The values that `autotune doctor` compares with eager fp32, each with the devices on which it does.
        since: The first release of torch that has it; None: all that are supported.
        most: The largest number that a pin may give.
        on_copies: Whether it changes how a script's batches are copied to the device, which is patched from outside.
    """

    name: str
    scope: Scope
    why: str
    candidates: Rule | None
    while_training: WhileTraining = None
    when_short: Rule | None = None
    when: str = ""
    prefers: tuple[Scalar, ...] | Preference = ()
    hides_overhead: tuple[Scalar, ...] = ()
    meets: tuple[str, ...] = ()
    priority: Mapping[Literal["cpu", "gpu"], int] = field(default_factory=dict)
    guide: int | None = None
    part: Literal["compute", "loader", "both"] = "compute"
    affects: Set[Effect] = frozenset()
    scale: Literal["linear", "logarithmic"] | None = None
    goes_with: str | None = None
    devices: Set[DeviceKind] = EVERYWHERE
    devices_of: Mapping[Scalar, Set[DeviceKind]] = field(default_factory=dict)
    conflict: Callable[[TrainConfig], str | None] = lambda _: None
    instead: Callable[[SearchContext, TrainConfig], tuple[Scalar, ...]] | None = None
    needs_allow_numerics: bool = False
    dataloader_argument: str | None = None
    ddp_argument: str | None = None
    optimizer_arguments: tuple[str, ...] = ()
    absent: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    variable: str | None = None
    words: Mapping[Framework, str | tuple[str, ...]] = field(default_factory=dict)
    written: Mapping[Framework, Callable[[Any, str | None], dict[str, Scalar] | None]] = field(default_factory=dict)
    without_word: str = ""
    on_process: Callable[[Any, torch.device], Undo] | None = None
    on_model: Callable[[nn.Module, TrainConfig], Undo] | None = None
    on_running_model: Callable[[nn.Module, TrainConfig], Undo] | None = None
    looks_at: tuple[str, ...] = ()
    on_optimizer: Callable[[Optimizer, Any], Undo] | None = None
    reads: Callable[[nn.Module | None, Optimizer | None, torch.device], Scalar | None] | None = None
    shows: Callable[[Effects, Any], str | None] | None = None
    starts_as_read: bool = False
    outside: Callable[[nn.Module, TrainConfig], Undo] | None = None
    trials: Mapping[Scalar, Set[DeviceKind]] = field(default_factory=dict)
    since: tuple[int, int] | None = None
    most: int | None = None
    on_copies: bool = False

    @property
    def default(self) -> Scalar:
        """PyTorch's own value."""
        return TrainConfig.model_fields[self.name].default  # type: ignore[no-any-return]

    @property
    def is_outside(self) -> bool:
        """Whether it can be changed in an unmodified script."""
        arguments = (self.dataloader_argument, self.ddp_argument, self.variable)
        functions = (self.on_process, self.on_model, self.on_optimizer, self.outside)
        return self.on_copies or any(way is not None for way in (*arguments, *functions))

    def is_in(self, torch: str | None) -> bool:
        """Whether a release of torch has it; True where the release is unknown."""
        release = tuple(int(part) for part in re.findall(r"\d+", torch or "")[:2])
        return self.since is None or not release or release >= self.since

    def preferred(self, context: SearchContext, picked: Mapping[str, Scalar]) -> tuple[Scalar, ...]:
        """Values for the first guess, best first."""
        return self.prefers(context, picked) if callable(self.prefers) else self.prefers

    def is_idle(self, value: Scalar, device: DeviceKind) -> bool:
        """Whether a value that is not the default has no effect on a kind of device."""
        return value != self.default and device not in self.devices_of.get(value, self.devices)
