"""What the rules of knobs look at, the machine and the workload's facts, and what they answer. Never torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.hardware import Cpu, DeviceKind, Gpu, Hardware, Memory
from autotune.knobs.config import Scalar, TrainConfig
from autotune.knobs.facts import WorkloadFacts
from autotune.units import format_bytes

SHM_SHARE = 0.5
"""Of /dev/shm: other programs use it too, and a full one kills the workers with a bus error."""
RAM_SHARE = 0.125
"""Of the available memory, for batches that wait: the model, the data and the page cache need the rest."""
OVERHEAD_BOUND = 0.5
"""Above this share of small operators, or of a GPU's time spent waiting for launches, what calling operators costs is
most of the work."""


@dataclass(frozen=True)
class Choices:
    """The values of one knob that are worth trying.

    Attributes:
        values: At least two.
        reason: Why these, in one sentence.
    """

    values: tuple[Scalar, ...]
    reason: str

    def first(self, wanted: Sequence[Scalar]) -> Scalar:
        """The first wanted value that is offered, or None."""
        return next((value for value in wanted if value in self.values), None)


def offer(values: Sequence[Scalar], reason: str, nothing: str = "", own: Scalar = None) -> Choices | str:
    """Choices with the person's own value among them, or why there is nothing to choose."""
    kept = tuple(values) if own is None or own in values else (*values, own)
    return Choices(kept, reason) if len(kept) >= 2 else nothing or reason


@dataclass(frozen=True)
class LoaderRoom:
    """How many batches may wait between the loader's workers and training.

    Attributes:
        sample_bytes: Tensor bytes of one sample.
        shm_bytes: What they may take of /dev/shm; None where the system has none.
        ram_bytes: What they may take of memory.
    """

    sample_bytes: float
    shm_bytes: int | None
    ram_bytes: int

    @classmethod
    def of(cls, memory: Memory, facts: WorkloadFacts) -> LoaderRoom:
        """The room on a machine for the batches of a workload."""
        free = memory.available_bytes
        shm = None if memory.shm_bytes is None else int(memory.shm_bytes * SHM_SHARE)
        room = cls(facts.batch_bytes / facts.baseline.batch_size, shm, int(free * RAM_SHARE))
        # The baseline's own loader works today: its memory is granted up to half of what is free.
        return replace(room, ram_bytes=max(room.ram_bytes, min(room.needed(facts.baseline), free // 2)))

    def needed(self, config: TrainConfig) -> int:
        """Bytes of the batches on their way: each worker's, one being handed over, one in use."""
        if config.num_workers == 0:
            return 0
        waiting = config.num_workers * (config.prefetch_factor or 2) + 2
        return math.ceil(waiting * config.batch_size * self.sample_bytes)

    def shortage(self, config: TrainConfig) -> str | None:
        """Why the batches of this config would not fit, or None when they do."""
        needed = self.needed(config)
        if self.shm_bytes is not None and needed > self.shm_bytes:
            limit = f"{format_bytes(self.shm_bytes)} that /dev/shm has for them"
        elif needed > self.ram_bytes:
            limit = f"{format_bytes(self.ram_bytes)} of memory that they may use"
        else:
            return None
        batches = f"{config.prefetch_factor} batches of {config.batch_size} samples"
        return f"{config.num_workers} workers × {batches} take {format_bytes(needed)}, more than the {limit}"


@dataclass(frozen=True)
class SearchContext:
    """What the rules look at.

    Attributes:
        hardware: The machine, or what a rank has of it.
        facts: The workload.
        device: The kind of device to train on.
        record: Its record.
        start: The config that knobs start from, pins applied.
        room: What the loader may take.
        worker_limit: Most workers that are allowed.
        effective_batch: Samples of an optimizer step; None when free.
        budget_seconds: Time of the whole search.
        requested: Knobs that the person asked for by name.
        fixed: Knobs that hold their value of `start`.
        allow_numerics: Whether products in FP8 and gradients exchanged in bf16 may be searched.
    """

    hardware: Hardware
    facts: WorkloadFacts
    device: DeviceKind
    record: Gpu | Cpu
    start: TrainConfig
    room: LoaderRoom
    worker_limit: int
    effective_batch: int | None
    budget_seconds: float
    requested: frozenset[str]
    fixed: frozenset[str]
    allow_numerics: bool = False

    @property
    def rank_batch(self) -> int | None:
        """Samples of an optimizer step that each rank trains; None when free."""
        return self.effective_batch // self.start.ranks if self.effective_batch is not None else None

    @property
    def capability(self) -> tuple[int, int] | None:
        """The compute capability of an NVIDIA GPU."""
        return self.record.compute_capability if isinstance(self.record, Gpu) else None

    @property
    def batch_seconds(self) -> float:
        """What fetching the samples of one batch takes."""
        return self.facts.sample_seconds * self.start.batch_size

    @property
    def overhead_bound(self) -> bool:
        """Whether calling operators is most of the work, and will be: not where larger batches may give each more."""
        busy = self.facts.device_busy_fraction
        idle = 1 - busy if busy is not None else 0.0
        overhead = self.facts.small_operators_fraction if self.device == "cpu" else idle
        return not self.batch_grows and overhead >= OVERHEAD_BOUND

    @property
    def batch_grows(self) -> bool:
        """Whether larger batches may be tried, whatever a step then holds."""
        return self.effective_batch is None and "batch_size" not in self.fixed

    def seeks_memory_by(self, knob: str) -> bool:
        """Whether a knob that buys memory is searched: a batch can grow into it, or somebody wants the knob."""
        own = getattr(self.start, knob) != TrainConfig.model_fields[knob].default
        return self.batch_grows or own or knob in self.requested
