"""Bursts: how they can end, and the figures derived from their raw block times.

Raw values are stored; rates, spreads and intervals are derived from them on every read, so that a better statistic
applies to old results too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Annotated

from pydantic import AfterValidator, AllowInfNan, BaseModel, ConfigDict, Field, computed_field

from autotune.knobs import KNOB_NAMES, Parameters, Scalar, TrainConfig, can_share_process, format_scalar
from autotune.measuring.growth import Look
from autotune.measuring.statistics import Interval, KnownInterval, ratio_interval
from autotune.measuring.telemetry_summary import TelemetrySummary, merged
from autotune.secrets import masked_text
from autotune.stored import Figure, Seconds, Stored, Whole

MOST_BLOCKS = 10_000
"""Most blocks of one config: hundreds of bursts of a few dozen blocks. The interval of more takes long to compute."""


class Outcome(str, Enum):
    """How a burst ended."""

    OK = "ok"
    OOM = "oom"
    """The device's memory, or the memory target, was exceeded."""
    HOST_OOM = "host_oom"
    SHM_EXHAUSTED = "shm_exhausted"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    INVALID = "invalid"
    """Numerics: the loss became non-finite."""
    UNSUPPORTED = "unsupported"
    """This config cannot work here, e.g. the model does not compile."""

    @property
    def is_memory(self) -> bool:
        """Whether a smaller batch may help."""
        return self in {Outcome.OOM, Outcome.HOST_OOM, Outcome.SHM_EXHAUSTED}


class Block(Stored):
    """A timed run of micro-batches between two synchronisations; of whole optimizer steps where they are short."""

    samples: Whole
    seconds: Seconds = Field(gt=1e-10)  # less than a clock's tick: what is derived from it overflows
    data_wait_seconds: Seconds = Field(description="spent waiting for the loader")
    joules: Figure | None = Field(default=None, description="that the device took meanwhile, where it reports them")


class Measurement(Stored):
    """What was measured of one config, in one or several bursts."""

    blocks: tuple[Block, ...] = Field(min_length=1, max_length=MOST_BLOCKS)
    start_seconds: Seconds = Field(description="process start")
    build_seconds: Seconds = Field(description="the user's build()")
    warmup_seconds: Seconds = Field(description="compile included")
    compile_seconds: Seconds | None = Field(default=None, description="of the warm-up; null when eager")
    placement_seconds: Seconds | None = Field(
        default=None, description="reading and collating the data set, once; null where batches are loaded"
    )
    device_memory_bytes: Whole | None = Field(
        default=None, description="peak: reserved on the GPU; PSS of the process tree on the CPU"
    )
    host_memory_bytes: Whole | None = Field(default=None, description="peak PSS of the process tree")
    epoch_samples: Whole | None = Field(default=None, ge=1, description="samples of an epoch; null: endless")
    epoch_boundary_seconds: Seconds = Field(
        default=0.0, description="restarting the loader at an epoch's end; kept out of the blocks"
    )
    skipped_steps: Whole = Field(default=0, description="optimizer steps skipped by the GradScaler")
    final_loss: Annotated[float, AllowInfNan] | None = None
    graph_breaks: Whole | None = Field(default=None, description="where the compiler split the model; null when eager")
    recompiles: Whole | None = Field(default=None, description="of parts compiled before; null when eager")
    cudagraph_skips: Whole | None = Field(
        default=None, description="parts that a mode with CUDA graphs runs without one; null when eager"
    )
    telemetry: TelemetrySummary | None = Field(default=None, description="telemetry over the timed part")
    looks: tuple[Look, ...] = Field(default=(), max_length=MOST_BLOCKS, description="at what it held, while it trained")

    @property
    def seen(self) -> TelemetrySummary:
        """The telemetry over the timed part; empty if nothing was read."""
        return self.telemetry or TelemetrySummary(seconds=0.0)

    @property
    def block_seconds(self) -> list[float]:
        """Seconds of each block, its share of the epoch boundaries included."""
        boundary = self.epoch_boundary_seconds / self.epoch_samples if self.epoch_samples else 0.0
        return [block.seconds + block.samples * boundary for block in self.blocks]

    @property
    def block_rates(self) -> list[float]:
        """Samples per second of each block."""
        return [block.samples / seconds for block, seconds in zip(self.blocks, self.block_seconds, strict=True)]

    @property
    def block_joules(self) -> list[float] | None:
        """Joules of each block; where only the sum was read, shared by seconds; None where none was read."""
        joules = [block.joules for block in self.blocks if block.joules is not None]
        if len(joules) == len(self.blocks):
            return joules if sum(joules) else None
        if not self.seen.energy_joules or not self.seen.seconds:
            return None
        watts = self.seen.energy_joules / self.seen.seconds
        return [watts * seconds for seconds in self.block_seconds]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def samples_per_second(self) -> float:
        """All samples over all seconds, as in an epoch: a median would hide the long batches."""
        return sum(block.samples for block in self.blocks) / math.fsum(self.block_seconds)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ci95_samples_per_second(self) -> Interval:
        """Bootstrap interval of the rate, over blocks."""
        return ratio_interval([block.samples for block in self.blocks], self.block_seconds)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def data_wait_fraction(self) -> float:
        """Share of the timed seconds in which training waited for data."""
        return sum(block.data_wait_seconds for block in self.blocks) / self.measure_seconds

    @computed_field  # type: ignore[prop-decorator]
    @property
    def measure_seconds(self) -> float:
        """Timed seconds, without the warm-up."""
        return math.fsum(block.seconds for block in self.blocks)


class Point(BaseModel):
    """A config together with the arguments of `build()`: what a burst runs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: TrainConfig
    parameters: Parameters = {}

    def __hash__(self) -> int:
        """By content: the parameters are a dict, which pydantic cannot hash."""
        return hash((self.config, tuple(sorted(self.parameters.items()))))

    @property
    def values(self) -> dict[str, Scalar]:
        """All knobs and arguments, by name."""
        return {**vars(self.config), **self.parameters}

    def changed(self, changes: Mapping[str, Scalar]) -> Point:
        """This point with some knobs and arguments changed.

        Raises:
            ConfigError: When a value is out of range.
        """
        knobs = {name: value for name, value in changes.items() if name in KNOB_NAMES}
        arguments = {name: value for name, value in changes.items() if name not in KNOB_NAMES}
        return Point(config=self.config.replace(**knobs), parameters={**self.parameters, **arguments})

    def can_share_process(self, other: Point) -> bool:
        """Whether the two differ in nothing that needs a new process."""
        return self.parameters == other.parameters and can_share_process(self.config, other.config)

    def changes_from(self, other: Point) -> dict[str, tuple[Scalar, Scalar]]:
        """The knobs and arguments in which this point differs from another: ``{name: (other's value, this value)}``.

        An argument that one of them leaves to `build()` is None.
        """
        mine, theirs = self.parameters, other.parameters
        arguments = {
            name: (theirs.get(name), mine.get(name))
            for name in dict.fromkeys((*mine, *theirs))
            if name not in mine or name not in theirs or mine[name] != theirs[name]
        }
        return {**self.config.changes_from(other.config), **arguments}

    def new_values(self, other: Point) -> dict[str, Scalar]:
        """This point's values that differ from those of another."""
        return {name: now for name, (_, now) in self.changes_from(other).items()}

    def changes_text(self, other: Point, separator: str = " ") -> str:
        """The same as you would type it: ``precision=bf16 num_workers=2``."""
        return separator.join(f"{name}={format_scalar(now)}" for name, now in self.new_values(other).items())


class Burst(BaseModel):
    """One burst: what ran, how it ended, and what it measured."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    point: Point
    outcome: Outcome
    measurement: Measurement | None = None
    reason: Annotated[str, AfterValidator(masked_text)] | None = Field(
        default=None, description="why it did not end well, in one sentence"
    )
    without_effect: tuple[str, ...] = Field(default=(), description="knobs that did not come into effect")
    phase: str = Field(
        default="start", description="how far it came: start, build, warm up, train, evaluate, end, done"
    )
    seconds: float = Field(ge=0, description="from the request until the last process has ended")

    @property
    def rate(self) -> float | None:
        """Samples per second, or None when it did not end well."""
        return self.measurement.samples_per_second if self.ok and self.measurement else None

    @property
    def ok(self) -> bool:
        """Whether it ended well."""
        return self.outcome is Outcome.OK

    @property
    def ending(self) -> str:
        """How it ended and why, to follow the word "it"."""
        return f"ended as {self.outcome.value}: {self.reason}"

    @property
    def disturbance(self) -> str | None:
        """What disturbed its figure, in a few words; None when nothing notable did."""
        return self.measurement.seen.disturbance if self.measurement else None

    @property
    def retried_allocation(self) -> bool:
        """Whether the allocator had to free its cache and ask again while it was timed."""
        return self.measurement is not None and bool(self.measurement.seen.allocator_retries)

    @property
    def measuring_seconds(self) -> float:
        """Seconds of warm-up and timed steps."""
        measurement = self.measurement
        return measurement.warmup_seconds + measurement.measure_seconds if measurement else 0.0


def worst(values: Sequence[int | None]) -> int | None:
    """The highest of the known values; None where none is known."""
    return max((value for value in values if value is not None), default=None)


def _few(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """No more blocks than a file may hold: neighbours become one."""
    while len(blocks) > MOST_BLOCKS:
        blocks = tuple(_joined(blocks[place : place + 2]) for place in range(0, len(blocks), 2))
    return blocks


def _joined(blocks: Sequence[Block]) -> Block:
    joules = [block.joules for block in blocks if block.joules is not None]
    return Block(
        samples=sum(block.samples for block in blocks),
        seconds=math.fsum(block.seconds for block in blocks),
        data_wait_seconds=math.fsum(block.data_wait_seconds for block in blocks),
        joules=math.fsum(joules) if len(joules) == len(blocks) else None,
    )


def pool(measurements: Sequence[Measurement]) -> Measurement:
    """Merges measurements of one config: all blocks and telemetry, the worst memory, mean start costs."""
    first = measurements[0]
    looks = tuple(
        look.model_copy(update={"process": number}) for number, m in enumerate(measurements) for look in m.looks
    )

    def mean(values: Sequence[float | None]) -> float | None:
        numbers = [value for value in values if value is not None]
        return statistics.fmean(numbers) if numbers else None

    return first.model_copy(
        update={
            "blocks": _few(tuple(block for m in measurements for block in m.blocks)),
            "start_seconds": mean([m.start_seconds for m in measurements]),
            "build_seconds": mean([m.build_seconds for m in measurements]),
            "warmup_seconds": mean([m.warmup_seconds for m in measurements]),
            "compile_seconds": mean([m.compile_seconds for m in measurements]),
            "placement_seconds": mean([m.placement_seconds for m in measurements]),
            "epoch_boundary_seconds": mean([m.epoch_boundary_seconds for m in measurements]),
            "device_memory_bytes": worst([m.device_memory_bytes for m in measurements]),
            "host_memory_bytes": worst([m.host_memory_bytes for m in measurements]),
            "graph_breaks": worst([m.graph_breaks for m in measurements]),
            "recompiles": worst([m.recompiles for m in measurements]),
            "cudagraph_skips": worst([m.cudagraph_skips for m in measurements]),
            "skipped_steps": sum(m.skipped_steps for m in measurements),
            "telemetry": merged([m.telemetry for m in measurements if m.telemetry is not None]),
            "looks": looks[:: math.ceil(len(looks) / MOST_BLOCKS) or 1],
        }
    )


def compiler_text(measurement: Measurement) -> str | None:
    """How often the compiler split, recompiled or left out CUDA graphs, and how to list the lines."""
    breaks, recompiles = measurement.graph_breaks or 0, measurement.recompiles or 0
    parts = []
    if breaks or recompiles:
        parts.append(
            f"torch.compile broke the graph {breaks} times and compiled parts again {recompiles} times; "
            "TORCH_LOGS=graph_breaks,recompiles names the lines"
        )
    if measurement.cudagraph_skips:
        parts.append(
            f"torch.compile left out CUDA graphs {measurement.cudagraph_skips} times; "
            "TORCH_LOGS=perf_hints names the reasons"
        )
    return "; ".join(parts) or None


class Operator(Stored):
    """One operator of torch, over the forward pass, the backward pass and the optimizer step."""

    name: str
    seconds: Seconds = Field(description="a sample, without the operators that it calls; on a GPU, of its kernels")
    calls: Figure = Field(description="a step")


class SamplePart(Stored):
    """A function that reading a sample calls."""

    name: str
    where: str | None = Field(description="file and line; None for what is built in")
    seconds: Seconds = Field(description="a sample")


class SampleCost(Stored):
    """What reading one sample takes in one process."""

    seconds: Seconds
    parts: tuple[SamplePart, ...] = Field(default=(), description="the most expensive first")


class Synchronisation(Stored):
    """A place in the user's loss or model that waits for the device."""

    operator: str
    where: str
    calls: Figure = Field(description="a micro-step")


class Headroom(Stored):
    """The most that a faster loader could gain: training on a few batches in memory, beside normal training."""

    ratio: Figure = Field(gt=0, description="its rate over that of training with the loader")
    ci95: KnownInterval | None = Field(description="of that ratio; null where the two did not run side by side")
    cached_samples_per_second: Figure

    @property
    def loader_fraction(self) -> float:
        """Share of the training time that loading costs."""
        return max(0.0, 1 - 1 / self.ratio)


class Profile(Stored):
    """The profile of one config."""

    operators: tuple[Operator, ...] = Field(default=(), description="the ten most expensive first")
    operator_calls: Figure = Field(default=0, description="all operators, a step")
    busy_fraction: Figure | None = Field(default=None, description="share of a step in which a GPU's kernels ran")
    synchronisations: tuple[Synchronisation, ...] = ()
    batch_gain: Figure | None = Field(
        default=None, description="samples a second of a step, over those of a step with half of its samples"
    )
    sample: SampleCost | None = None
    empty_cache_seconds: Seconds | None = Field(
        default=None, description="of one torch.cuda.empty_cache() and its refill"
    )
