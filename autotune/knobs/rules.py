"""The rules: which values of each knob are worth trying on a device, and why.

A rule looks at the machine and at the workload's facts, never at torch. It returns `Choices`, or the sentence
that says why the knob is not searched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from autotune.hardware.model import Cpu, DeviceKind, Gpu, Hardware
from autotune.knobs.config import OptimizerImpl, Scalar, TrainConfig
from autotune.knobs.facts import WorkloadFacts
from autotune.units import format_bytes, format_seconds

SHM_SHARE = 0.5
"""Of /dev/shm: other programs use it too, and a full one kills the workers with a bus error."""
RAM_SHARE = 0.125
"""Of the available memory, for batches that wait: the model, the data and the page cache need the rest."""
COMPILE_BUDGET_SECONDS, PROMISING_COMPILE_BUDGET_SECONDS = 180.0, 90.0
"""With a shorter budget nothing is compiled; the second where compiling promises most of all."""
OVERHEAD_BOUND = 0.5
"""Above this share of small operators, what calling them costs is most of the work."""
MAX_AUTOTUNE_BUDGET_SECONDS = 600.0
_MOST_BATCH_SIZES = 10
_MOST_WORKER_COUNTS = 8
_SMALLEST_SHARE = 16  # batches below this share of the baseline's are not tried: launching them costs more
_LARGEST_GROWTH = 6  # doublings of the baseline's batch, where the effective batch is free
_TRAINING_BYTES_PER_PARAMETER = 16  # fp32 weight, gradient, and the two moments of Adam
_WORKER_LADDER = (0, 1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_PREFETCH_FACTORS = (2, 4, 8)


@dataclass(frozen=True)
class Choices:
    """The values of one knob that are worth trying.

    Attributes:
        values: At least two.
        reason: Why these, in one sentence.
    """

    values: tuple[Scalar, ...]
    reason: str


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

    def needed(self, config: TrainConfig) -> int:
        """Bytes of the batches on their way: each worker's, one being handed over, one in use."""
        if config.num_workers == 0:
            return 0
        waiting = config.num_workers * (config.prefetch_factor or 2) + 2
        return math.ceil(waiting * config.batch_size * self.sample_bytes)

    def shortage(self, config: TrainConfig) -> str | None:
        """Why the batches of this config would not fit, or None when they do."""
        needed = self.needed(config)
        what = (
            f"{config.num_workers} workers × {config.prefetch_factor} batches of {config.batch_size} samples "
            f"take {format_bytes(needed)}"
        )
        if self.shm_bytes is not None and needed > self.shm_bytes:
            return f"{what}, more than the {format_bytes(self.shm_bytes)} that /dev/shm has for them"
        if needed > self.ram_bytes:
            return f"{what}, more than the {format_bytes(self.ram_bytes)} of memory that they may use"
        return None


@dataclass(frozen=True)
class Circumstances:
    """What the rules look at.

    Attributes:
        hardware: The machine.
        facts: The workload.
        device: The kind of device to train on.
        record: Its record.
        start: The config that knobs start from, pins applied.
        room: What the loader may take.
        worker_limit: Most workers that are allowed.
        effective_batch: Samples of an optimizer step; None when free.
        budget_seconds: Time of the whole search.
        asked: Knobs that the person asked for by name.
        fixed: Knobs that hold their value of `start`.
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
    asked: frozenset[str]
    fixed: frozenset[str]

    @property
    def capability(self) -> tuple[int, int] | None:
        """The compute capability of an NVIDIA GPU."""
        return self.record.compute_capability if isinstance(self.record, Gpu) else None

    @property
    def overhead_bound(self) -> bool:
        """Whether calling operators is most of the work, and will be.

        Not beside a GPU, which does not wait for the host; and not where larger batches may give each operator more.
        """
        grows = self.effective_batch is None and "batch_size" not in self.fixed
        return self.device == "cpu" and not grows and self.facts.small_operators_fraction >= OVERHEAD_BOUND

    def batch_sizes(self) -> tuple[int, ...]:
        """The batch sizes to try; one when it is fixed."""
        return (self.start.batch_size,) if "batch_size" in self.fixed else _batch_sizes(self)

    def worker_counts(self) -> tuple[int, ...]:
        """The numbers of workers to try; one when it is fixed."""
        held = "num_workers" in self.fixed or isinstance(num_workers(self), str)
        return (self.start.num_workers,) if held else _worker_counts(self)

    def fits(self, workers: int, prefetch: int) -> bool:
        """Whether these workers fit at least with the smallest batch."""
        smallest = TrainConfig(batch_size=min(self.batch_sizes()), num_workers=workers, prefetch_factor=prefetch)
        return self.room.shortage(smallest) is None


def divisors(number: int) -> tuple[int, ...]:
    """All divisors of a positive number, in order."""
    small = [value for value in range(1, math.isqrt(number) + 1) if number % value == 0]
    return tuple(sorted({*small, *(number // value for value in small)}))


def spread(values: Iterable[int], most: int, keep: int | None = None) -> tuple[int, ...]:
    """At most this many of the values, evenly by rank; both ends stay, and `keep` where it is among them."""
    ordered = sorted(set(values))
    if len(ordered) <= most:
        return tuple(ordered)
    picked = {ordered[round(rank * (len(ordered) - 1) / (most - 1))] for rank in range(most)}
    if keep in ordered and keep not in picked:
        wanted = keep
        picked.remove(min(sorted(picked)[1:-1], key=lambda value: abs(math.log(value / wanted))))
        picked.add(wanted)
    return tuple(sorted(picked))


def batch_size(of: Circumstances) -> Choices | str:
    """Divisors of the effective batch where it is held, else the baseline's times powers of two."""
    values = _batch_sizes(of)
    if of.effective_batch is None:
        reason = "the baseline's times powers of two: the effective batch is free"
        nothing = "no other size fits into the data set and into memory"
    else:
        reason = f"divisors of the effective batch of {of.effective_batch}, which stays as it is"
        nothing = f"the effective batch of {of.effective_batch} has no other divisor that is worth trying"
    return _choices(values, reason, nothing)


def _batch_sizes(of: Circumstances) -> tuple[int, ...]:
    """The batch sizes to try."""
    own = of.start.batch_size
    if of.effective_batch is not None:
        fits = [value for value in divisors(of.effective_batch) if value == own or _in_data_set(value, of)]
        floor = min(own, of.effective_batch) / _SMALLEST_SHARE
        return spread([value for value in fits if value >= floor], _MOST_BATCH_SIZES, own)
    grown = [own * 2**power for power in range(1, _LARGEST_GROWTH + 1)]
    plausible = [value for value in grown if _in_data_set(value, of) and _in_memory(value, of)]
    return tuple(sorted({*(own // part for part in (4, 2, 1) if own % part == 0), *plausible}))


def _in_data_set(value: int, of: Circumstances) -> bool:
    """Whether the data set fills one such batch."""
    return of.facts.samples is None or value <= of.facts.samples


def _in_memory(value: int, of: Circumstances) -> bool:
    """Whether weights, optimizer and the bare input fit: a lower bound, the rest is for the memory model."""
    total = of.record.memory_total_bytes if isinstance(of.record, Gpu) else of.hardware.memory.available_bytes
    needed = of.facts.parameters * _TRAINING_BYTES_PER_PARAMETER + value * of.room.sample_bytes
    return total is None or needed <= total


def precision(of: Circumstances) -> Choices | str:
    """What the device computes faster than fp32."""
    values = of.record.precisions
    return _choices(values, of.record.precision_reason, of.record.precision_reason, own=of.start.precision)


def memory_format(of: Circumstances) -> Choices | str:
    """Layout of images."""
    if not of.facts.has_images:
        return "no 4-D tensors occur, so there is nothing to lay out as channels_last"
    reason = "convolutions on images are often faster in channels_last"
    return Choices(("contiguous", "channels_last"), reason)


def compile_mode(of: Circumstances) -> Choices | str:
    """Modes of torch.compile that can win back their time within the budget."""
    if of.device == "mps":
        return "torch.compile for MPS is still an experiment"
    least = PROMISING_COMPILE_BUDGET_SECONDS if of.overhead_bound else COMPILE_BUDGET_SECONDS
    if of.budget_seconds < least:
        return (
            f"compiling takes 8 to 60 s each time: {format_seconds(of.budget_seconds)} are too short to win "
            f"that back; give a budget of {format_seconds(least)} or more"
        )
    own = of.start.compile_mode
    if of.device == "cpu":
        return _choices((None, "default"), "on the CPU the default mode fuses what eager mode does apart", own=own)
    modes: list[Scalar] = [None, "default"]
    thorough = of.budget_seconds >= MAX_AUTOTUNE_BUDGET_SECONDS
    if of.facts.fixed_shapes:
        modes.append("reduce-overhead")
    if thorough:
        modes.append("max-autotune-no-cudagraphs")
    if thorough and of.facts.fixed_shapes:
        modes.append("max-autotune")
    reason = "compiling fuses kernels" + (
        ", and CUDA graphs take away launch costs"
        if of.facts.fixed_shapes
        else "; modes with CUDA graphs are left out, since shapes vary from batch to batch"
    )
    return _choices(modes, reason, own=own)


def optimizer_impl(of: Circumstances) -> Choices | str:
    """Implementations that this optimizer accepts."""
    known = [value for value in get_args(OptimizerImpl) if value in {"default", *of.facts.optimizer_impls}]
    reason = "one kernel for all parameters saves launches and passes over memory"
    return _choices(known, reason, "this optimizer has one implementation", own=of.start.optimizer_impl)


def cudnn_benchmark(of: Circumstances) -> Choices | str:
    """The search of cuDNN itself for the fastest convolution."""
    if of.device != "cuda":
        return "cuDNN runs on NVIDIA GPUs only"
    if not of.facts.fixed_shapes:
        return "shapes vary from batch to batch, and cuDNN would search again for each"
    return Choices((False, True), "shapes are fixed, so cuDNN searches its algorithms once")


def sdpa_backend(of: Circumstances) -> Choices | str:
    """Kernels for attention."""
    if not of.facts.has_attention:
        return "no scaled dot-product attention runs"
    if of.device not in {"cuda", "rocm"}:
        return f"there is one implementation of attention for {of.device}"
    half = {"bf16", "fp16"} & {*of.record.precisions, of.start.precision}
    values: list[Scalar] = ["default", "efficient_attention"]
    if half and (of.device == "rocm" or (of.capability or (0, 0)) >= (8, 0)):
        values.append("flash_attention")
        if of.device == "cuda":
            values.append("cudnn_attention")
    reason = "attention runs, and which kernel is fastest depends on its shapes"
    return _choices(values, reason, own=of.start.sdpa_backend)


def num_workers(of: Circumstances) -> Choices | str:
    """Processes that load data, within the CPU budget, the cap, and the shared memory."""
    if of.facts.samples is None and of.facts.baseline.num_workers == 0 and "num_workers" not in of.asked:
        return (
            "an iterable data set repeats its samples in every worker unless it shards them itself; "
            "if it does, ask with --only or state workers in the baseline"
        )
    cpu = of.hardware.cpu
    why = cpu.budget_reason or f"{cpu.budget} CPUs are usable"
    limit = f"at most {of.worker_limit} ({'as asked' if of.worker_limit < cpu.budget else why})"
    if of.worker_limit == 0:
        return "no workers are allowed, as asked"
    if not of.fits(1, _least_prefetch(of)):
        return "not even one worker's batches fit into shared memory; enlarge it (docker run --shm-size)"
    return _choices(_worker_counts(of), f"workers load data beside training; {limit}", limit)


def _worker_counts(of: Circumstances) -> tuple[int, ...]:
    """The numbers of workers to try."""
    ladder = {*_WORKER_LADDER, of.worker_limit, of.start.num_workers}
    prefetch = _least_prefetch(of)
    counts = [count for count in ladder if count <= of.worker_limit and (count == 0 or of.fits(count, prefetch))]
    return spread(counts, _MOST_WORKER_COUNTS, of.start.num_workers)


def _least_prefetch(of: Circumstances) -> int:
    """The smallest prefetch factor that a candidate may have."""
    own = of.start.prefetch_factor or _PREFETCH_FACTORS[0]
    return own if "prefetch_factor" in of.fixed else min(own, _PREFETCH_FACTORS[0])


def prefetch_factor(of: Circumstances) -> Choices | str:
    """Batches that each worker prepares ahead."""
    working = [count for count in of.worker_counts() if count > 0]
    if not working:
        return "without workers nothing is prefetched"
    wanted = sorted({*_PREFETCH_FACTORS, of.start.prefetch_factor or 2})
    values = [value for value in wanted if of.fits(min(working), value)]
    limits = [format_bytes(of.room.ram_bytes) + " of memory"]
    if of.room.shm_bytes is not None:
        limits.append(format_bytes(of.room.shm_bytes) + " of /dev/shm")
    room = f"the batches that wait must fit into {' and '.join(limits)}"
    return _choices(values, f"more of them bridge slow samples; {room}", room)


def persistent_workers(of: Circumstances) -> Choices | str:
    """Whether workers outlive the epoch."""
    if max(of.worker_counts()) == 0:
        return "without workers none can persist"
    return Choices((False, True), "workers that persist need not be started again each epoch")


def pin_memory(of: Circumstances) -> Choices | str:
    """Page-locked host memory for copies to the device."""
    if of.device not in {"cuda", "rocm"}:
        return f"batches are not copied to a device of their own on {of.device}"
    return Choices((False, True), "copies from page-locked memory are faster, and can overlap with computing")


def non_blocking(of: Circumstances) -> Choices | str:
    """Copies that do not wait."""
    if of.device not in {"cuda", "rocm"}:
        return f"batches are not copied to a device of their own on {of.device}"
    if "pin_memory" in of.fixed and not of.start.pin_memory:
        return "copies can only overlap from pinned memory, and pin_memory is held at false"
    return Choices((False, True), "copies from page-locked memory can overlap with computing")


def num_threads(of: Circumstances) -> Choices | str:
    """Threads of one operation on the CPU, where workers want cores as well."""
    if of.device != "cpu":
        return "training runs on a GPU, so the CPU's threads matter little"
    cpu = of.hardware.cpu
    if cpu.budget == 1:
        return "one CPU is usable, and torch uses it"
    counts = {max(1, cpu.budget * quarters // 4) for quarters in (1, 2, 3, 4)}
    if of.start.num_threads is None and cpu.physical_cores == cpu.budget:
        counts.discard(cpu.budget)  # that is what torch does by itself
    values: list[Scalar] = [of.start.num_threads, *sorted(counts - {of.start.num_threads})]
    reason = f"of {cpu.budget} usable CPUs some may be better left to the workers"
    return _choices(values, reason)


def allocator(of: Circumstances) -> Choices | str:
    """How memory is taken from the system."""
    if of.device == "cuda":
        return Choices(("default", "tuned"), "expandable segments waste less memory, so that larger batches fit")
    if of.device != "cpu":
        return f"there is nothing to tune in the allocator of {of.device}"
    system = of.hardware.software.os.lower()
    if "linux" not in system and "glibc" not in system:
        return "only the allocator of glibc on Linux can be tuned, and this is another system"
    return Choices(("default", "tuned"), "keeping large blocks saves a system call and page faults for each tensor")


Rule = Callable[[Circumstances], Choices | str]
RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        batch_size, precision, memory_format, compile_mode, optimizer_impl, cudnn_benchmark, sdpa_backend,
        num_workers, prefetch_factor, pin_memory, persistent_workers, non_blocking, num_threads, allocator,
    )
}  # fmt: skip
"""The rule of each knob, under the knob's name; accumulation_steps has none, it follows from the batch."""


def _choices(values: Sequence[Scalar], reason: str, nothing: str = "", own: Scalar = None) -> Choices | str:
    """Choices with the person's own value among them, or why there is nothing to choose."""
    kept = tuple(values) if own is None or own in values else (*values, own)
    return Choices(kept, reason) if len(kept) >= 2 else nothing or reason
