"""What the knobs' rules read, which is the machine and the workload, and what they return. Does not import torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.hardware import Cpu, DeviceKind, Gpu, Hardware, Memory
from autotune.knobs.config import Scalar, TrainConfig
from autotune.knobs.facts import WorkloadFacts
from autotune.units import format_bytes

SHM_SHARE = 0.5
"""Share of /dev/shm for batches that wait. Other programs use it too, and a full one kills the workers with SIGBUS."""
RAM_SHARE = 0.125
"""Share of the available memory for batches that wait: the model, the data and the page cache need the rest."""
OVERHEAD_BOUND = 0.5
"""The overhead of calling operators dominates above this share of small operators, or of a GPU's time spent waiting for
launches."""


@dataclass(frozen=True)
class Choices:
    """The values of one knob that are worth trying."""

    values: tuple[Scalar, ...]  # at least two
    reason: str  # why these, in one sentence

    def first(self, preferred: Sequence[Scalar]) -> Scalar:
        """The first preferred value that is offered, or None."""
        return next((value for value in preferred if value in self.values), None)


def offer(values: Sequence[Scalar], reason: str, nothing: str = "", own: Scalar = None) -> Choices | str:
    """Choices that include the user's own value, or the reason why there is nothing to choose."""
    kept = tuple(values) if own is None or own in values else (*values, own)
    return Choices(kept, reason) if len(kept) >= 2 else nothing or reason


@dataclass(frozen=True)
class LoaderRoom:
    """How many batches may wait between the loader's workers and training."""

    sample_bytes: float  # of a sample's tensors
    shm_bytes: int | None  # of /dev/shm that these batches may take; None if the system has none
    ram_bytes: int  # that these batches may take

    @classmethod
    def of(cls, memory: Memory, facts: WorkloadFacts) -> LoaderRoom:
        """The room on a machine for the batches of a workload."""
        free = memory.available_bytes
        shm = None if memory.shm_bytes is None else int(memory.shm_bytes * SHM_SHARE)
        room = cls(facts.batch_bytes / facts.baseline.batch_size, shm, int(free * RAM_SHARE))
        # The baseline's own loader works today: its memory is granted up to half of the free memory.
        return replace(room, ram_bytes=max(room.ram_bytes, min(room.needed(facts.baseline), free // 2)))

    def needed(self, config: TrainConfig) -> int:
        """Bytes of all batches in flight: those of each worker, one being handed over, one in use."""
        if config.num_workers == 0:
            return 0
        waiting = config.queue_batches + 2
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
        batches = f"{config.queue_batches // config.num_workers} batches of {config.batch_size} samples"
        return f"{config.num_workers} workers × {batches} take {format_bytes(needed)}, more than the {limit}"


@dataclass(frozen=True)
class SearchContext:
    """The input of the knobs' rules."""

    hardware: Hardware  # the machine, or one rank's share of it
    facts: WorkloadFacts
    device: DeviceKind
    record: Gpu | Cpu  # of the device
    start: TrainConfig  # with pins applied
    room: LoaderRoom
    worker_limit: int  # the most that are allowed
    effective_batch: int | None  # None when free
    budget_seconds: float  # of the whole search
    requested: frozenset[str]  # knobs that the user named
    fixed: frozenset[str]  # knobs that keep their value from `start`
    allow_numerics: bool = False  # products in FP8 and gradients exchanged in bf16 may be searched

    @property
    def rank_batch(self) -> int | None:
        """Samples of an optimizer step that each rank trains; None when free."""
        return self.effective_batch // self.start.ranks if self.effective_batch is not None else None

    @property
    def capability(self) -> tuple[int, int] | None:
        """The compute capability of an NVIDIA GPU."""
        return self.record.compute_capability if isinstance(self.record, Gpu) else None

    @property
    def attention(self) -> str | None:
        """The kernel that torch's attention takes on a GPU in half precision, if that is known."""
        return self.record.attention if isinstance(self.record, Gpu) else None

    @property
    def batch_seconds(self) -> float:
        """Seconds to fetch the samples of one batch."""
        return self.facts.sample_seconds * self.start.batch_size

    @property
    def overhead_bound(self) -> bool:
        """Whether operator overhead dominates. False if larger batches may be tried, which give operators more work."""
        busy = self.facts.device_busy_fraction
        idle = 1 - busy if busy is not None else 0.0
        overhead = self.facts.small_operators_fraction if self.device == "cpu" else idle
        return not self.batch_grows and overhead >= OVERHEAD_BOUND

    @property
    def batch_grows(self) -> bool:
        """Whether larger batches may be tried, which change the samples of a step."""
        return self.effective_batch is None and "batch_size" not in self.fixed

    def seeks_memory_by(self, knob: str) -> bool:
        """Whether a knob that saves memory is searched: the batch can grow, or the user set or named the knob."""
        own = getattr(self.start, knob) != TrainConfig.model_fields[knob].default
        return self.batch_grows or own or knob in self.requested
