"""Knob: everything that the package knows about one way to train faster, in one declaration.

Each family's file declares its knobs, and `autotune.knobs.registry` answers questions about all of them. To add one,
add its field to `TrainConfig` and its declaration to a family.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Set
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
    """A running training can take another value of the knob, but then learns something else."""

    changes: str  # about the learning, in one sentence


WhileTraining = Literal["neutral"] | ByLeave | None
"""What another value does to a running training. Neutral: same samples in the same order, same mathematics but for
rounding. `ByLeave`: it learns something else. None: a running training cannot take another value."""
Rule = Callable[[SearchContext], Choices | str]
Preference = Callable[[SearchContext, Mapping[str, Scalar]], tuple[Scalar, ...]]


@dataclass(frozen=True, kw_only=True)
class Knob:
    """The declaration of one knob."""

    name: str  # of its field in `TrainConfig`
    scope: Scope  # how a live training process takes another value (`benchmarks.host_history` measures it)
    why: str  # what it may gain, in one sentence
    # the values worth trying, or why it is not searched; what lifts that follows a semicolon; None: as `goes_with` says
    candidates: Rule | None
    while_training: WhileTraining = None
    # `candidates` once memory has run out, for a knob that saves memory at the cost of time
    when_short: Rule | None = None
    when: str = ""  # where it is searched, apart from its devices; in a few words
    # for the first guess, best first, if on offer; a function also receives the values of the knobs declared before
    prefers: tuple[Scalar, ...] | Preference = ()
    hides_overhead: tuple[Scalar, ...] = ()  # values that hide what calling operators costs, best first
    meets: tuple[str, ...] = ()  # knobs whose joint gain is known to differ from the sum of both
    # by expected effect beside a GPU, and on the CPU alone: 10 is tried first
    priority: Mapping[Literal["cpu", "gpu"], int] = field(default_factory=dict)
    guide: int | None = None  # rank in the order in which tuning guides change knobs, which the ablation follows
    part: Literal["compute", "loader", "both"] = "compute"  # of training that it speeds up
    affects: Set[Effect] = frozenset()  # what else depends on it
    scale: Literal["linear", "logarithmic"] | None = None  # None: its values are categories
    goes_with: str | None = None  # the knob without which it has no effect
    devices: Set[DeviceKind] = EVERYWHERE  # on which it has an effect
    # of single values, where they differ from `devices`
    devices_of: Mapping[Scalar, Set[DeviceKind]] = field(default_factory=dict)
    conflict: Callable[[TrainConfig], str | None] = lambda _: None  # why a config cannot run with its value
    # values, best first, of which one takes the place of a config's own in this workload; empty: its own is good
    instead: Callable[[SearchContext, TrainConfig], tuple[Scalar, ...]] | None = None
    needs_allow_numerics: bool = False  # it is searched only with `--allow-numerics`
    dataloader_argument: str | None = None  # keyword argument of ``DataLoader`` that takes its value
    ddp_argument: str | None = None  # the same of ``DistributedDataParallel``
    optimizer_arguments: tuple[str, ...] = ()  # keyword arguments of optimizers; its value names the one that is true
    # values of an argument that is not given, by torch or framework; else the default
    absent: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    variable: str | None = None  # environment variable that takes its value, unless that is None; read when ranks meet
    # keyword argument of a framework; a tuple: `autotune.integrations` translates the value into these arguments
    words: Mapping[Framework, str | tuple[str, ...]] = field(default_factory=dict)
    # arguments to write into a script, by value and class of optimizer; a single one of `words` is written as it is
    written: Mapping[Framework, Callable[[Any, str | None], dict[str, Scalar] | None]] = field(default_factory=dict)
    without_word: str = ""  # how it takes effect under a framework that has no argument for it
    # sets the value for the whole process, whatever was set before
    on_process: Callable[[Any, torch.device], Undo] | None = None
    on_model: Callable[[nn.Module, TrainConfig], Undo] | None = None  # changes a model that is on its device
    looks_at: tuple[str, ...] = ()  # other knobs that `on_model` reads
    on_optimizer: Callable[[Optimizer, Any], Undo] | None = None  # changes an optimizer
    # the value in force; None if it cannot be read. A word that is not a value of this knob says what is there instead.
    reads: Callable[[nn.Module | None, Optimizer | None, torch.device], Scalar | None] | None = None
    # why its value had no effect in a script's first steps, beyond what `reads` and arguments show; None if it had one
    shows: Callable[[Effects, Any], str | None] | None = None
    starts_as_read: bool = False  # the user's module may have set a value before, which is then the baseline's
    outside: Callable[[nn.Module, TrainConfig], Undo] | None = None  # changes a script's model from outside
    # values that `autotune doctor` compares with eager fp32, by device
    trials: Mapping[Scalar, Set[DeviceKind]] = field(default_factory=dict)
    since: tuple[int, int] | None = None  # first release of torch that has it; None: all that are supported
    needs: Mapping[Scalar, str] = field(default_factory=dict)  # the package without which a value fails
    on_copies: bool = False  # it changes how a script's batches are copied to the device, which is patched from outside

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

    def lack(self, value: Scalar, torch: str, packages: Collection[str]) -> str | None:
        """What a value needs and a release of torch, or the packages beside it, do not have; None if it can be used."""
        if value == self.default:
            return None
        if self.since is not None and not self.is_in(torch):
            return f"torch {'.'.join(map(str, self.since))} or later"
        package = self.needs.get(value)
        return None if package is None or package in packages else f"the package {package} and a torch that can use it"

    def preferred(self, context: SearchContext, picked: Mapping[str, Scalar]) -> tuple[Scalar, ...]:
        """Values for the first guess, best first."""
        return self.prefers(context, picked) if callable(self.prefers) else self.prefers

    def is_idle(self, value: Scalar, device: DeviceKind) -> bool:
        """Whether a value that is not the default has no effect on a kind of device."""
        return value != self.default and device not in self.devices_of.get(value, self.devices)
