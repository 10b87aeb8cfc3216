"""Advises on what limits training now and only its author can change: the tuning guides' trees.

Each advice states its gain, measured or bounded. Advice without evidence is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from autotune.hardware import Hardware
from autotune.knobs import TrainConfig, WorkloadFacts
from autotune.measuring import SLOWDOWNS, Line, Measurement, Profile, SampleCost, compiler_text
from autotune.measuring.memory_model import MAX_MARGIN
from autotune.search.ceilings import boundary_fraction
from autotune.units import format_bytes, format_seconds
from autotune.wording import percent, ratio_text

NOTABLE_GAIN = 1.05
"""Advice that could gain less gets no line."""
NOTABLE_WAIT, NOTABLE_BOUNDARY, NOTABLE_PADDING, NOTABLE_MEMORY = 0.1, 0.05, 0.1, 0.1
NOTABLE_FIXED = 0.2
CPUS_FULL, CPUS_TAKEN, MEMORY_FULL, GPU_BUSY = 0.95, 0.1, 0.95, 0.8
POWER_SWINGS = 1.5
"""Least values that are worth a line. None of them is tuned."""
SCORE_COPIES = 3
"""Scores that are alive at once in an eager step: their logarithms, and two gradients of that size. Counted by torch's
profiler on a CPU, in fp32 and under autocast alike; code that is compiled with the loss keeps one or less."""
SCORE_CHUNK = 256
"""Tokens of a chunk. With 1024 tokens over 8192 classes on a CPU, a step took 0.7 to 1.3 times as long as without
chunks, and 6 to 10 times with torch's own choice of chunk."""
CACHE_INTERVAL = 50
"""Micro-steps between two calls of ``torch.cuda.empty_cache()``, as one guide advises."""


@dataclass(frozen=True)
class Evidence:
    """Everything measured about the chosen config."""

    config: TrainConfig
    measured: Measurement  # end to end
    # samples per second of each part alone: ``compute``, ``loader``, ``copy``; None if not known
    ceilings: Mapping[str, float | None] = field(default_factory=dict)
    device: str = "cpu"
    cpus: int = 1  # that may be used
    memory_limit_bytes: int | None = None  # the memory target
    facts: WorkloadFacts | None = None
    memory: Line | None = None  # by batch; None if unknown
    batch_is_free: bool = False  # the search tries other effective batches
    profile: Profile | None = None
    throttled: str | None = None  # a sentence if the card held its clocks down while it was proved

    @property
    def rate(self) -> float:
        """Samples per second that training reaches."""
        return self.measured.samples_per_second

    def gain(self, of_computing: float) -> float:
        """What a gain of computing alone is worth, where training also waits for data."""
        waits = self.measured.data_wait_fraction
        return 1 / (waits + (1 - waits) / of_computing)


def advise(evidence: Evidence) -> tuple[str, ...]:
    """What the author of a training can change, one sentence each."""
    return tuple(line for tree in _TREES for line in tree(evidence))


def _loader(evidence: Evidence) -> Iterator[str]:
    """A loader that cannot keep up, even when tuned."""
    waits, compute = evidence.measured.data_wait_fraction, evidence.ceilings.get("compute")
    gain = min(1 / max(1 - waits, 1e-3), compute / evidence.rate if compute else 1e3)
    if waits < NOTABLE_WAIT or gain < NOTABLE_GAIN:
        return
    workers = evidence.config.num_workers
    with_workers = f"with {workers} worker{'s' * (workers != 1)}" if workers else "without workers"
    line = f"training waits for data {percent(waits)} of the time {with_workers}"
    low, high = evidence.measured.seen.power_min_watts, evidence.measured.seen.power_max_watts
    if low is not None and high is not None and high >= POWER_SWINGS * low:  # the GPU starves between batches
        line += f", and the GPU's power swings between {low:.0f} and {high:.0f} W"
    if evidence.profile is not None and evidence.profile.sample is not None:
        line += f": {_sample_text(evidence.profile.sample)}"
    yield f"{line}; without waiting it could reach up to {ratio_text(gain)} its speed"


def _sample_text(sample: SampleCost) -> str:
    """How long a sample takes, and its largest parts, in words."""
    text = f"one sample takes {format_seconds(sample.seconds)}"
    parts = [
        f"{format_seconds(part.seconds)} in {part.name}" + (f" ({part.where})" if part.where else "")
        for part in sample.parts[:3]
    ]
    return f"{text}, of which {', '.join(parts)}" if parts else text


def _cpus(evidence: Evidence) -> Iterator[str]:
    """CPUs that are all busy, so that more workers cannot help, or that other programs use."""
    waits = evidence.measured.data_wait_fraction
    taken, foreign = evidence.measured.seen.cpu_fraction, evidence.measured.seen.foreign_cpu_fraction or 0.0
    if taken is not None and taken >= CPUS_FULL and waits >= NOTABLE_WAIT:
        yield (
            f"all {evidence.cpus} CPUs are busy ({percent(taken)}), so more workers would gain nothing: only cheaper "
            f"samples would, up to {ratio_text(1 / max(1 - waits, 1e-3))}"
        )
    if foreign >= CPUS_TAKEN:
        yield (
            f"other programs used {percent(foreign)} of the CPUs meanwhile: alone on this machine, training could "
            f"reach up to {ratio_text(1 / (1 - min(foreign, 0.9)))} its speed"
        )


def _epochs(evidence: Evidence) -> Iterator[str]:
    """Short epochs, after which the loader restarts too often."""
    share = boundary_fraction(evidence.measured)
    if share >= NOTABLE_BOUNDARY:
        boundary = format_seconds(evidence.measured.epoch_boundary_seconds)
        yield (
            f"starting the loader takes {boundary} an epoch, {percent(share)} of the training: longer epochs "
            f"(a sampler that draws the dataset several times) could gain up to {ratio_text(1 / (1 - share))}"
        )


def _memory(evidence: Evidence) -> Iterator[str]:
    """Memory near its target, and an allocator that had to free its cache and retry."""
    used, limit = evidence.measured.device_memory_bytes, evidence.memory_limit_bytes
    if used is not None and limit is not None and used >= MEMORY_FULL * limit:
        yield (
            f"memory is nearly full, with {format_bytes(used)} of a target of {format_bytes(limit)}: a longer sequence "
            "or another process may end the training"
        )
    if retries := evidence.measured.seen.allocator_retries:
        yield (
            f"the allocator freed its cache and asked again {retries} times during a burst: a smaller micro-batch with "
            "more accumulation would avoid these waits"
        )


def _compiling(evidence: Evidence) -> Iterator[str]:
    """A compiler that could not take the whole model."""
    if (text := compiler_text(evidence.measured)) is not None:
        yield text


def _device(evidence: Evidence) -> Iterator[str]:
    """A GPU that is not always busy although data are there; synchronisations; a cache that is emptied."""
    profile = evidence.profile
    if profile is None or evidence.device == "cpu":
        return
    busy = profile.busy_fraction
    if busy is not None and busy < GPU_BUSY:
        gain = ratio_text(1 / max(busy, 0.01))
        if profile.synchronisations:
            waits = profile.synchronisations[:3]
            places = [f"{wait.operator.removeprefix('aten::')} at {wait.where}" for wait in waits]
            yield (
                f"the host waits for the GPU inside the loss ({', '.join(places)}), and kernels run only "
                f"{percent(busy)} of the time: without these waits training could gain up to {gain}"
            )
        else:
            yield (
                f"kernels run only {percent(busy)} of the time, since {profile.operator_calls:,.0f} operators a step "
                f"are started one by one: fusing them, or larger micro-batches, could gain up to {gain}"
            )
    if profile.empty_cache_seconds is not None:
        step = evidence.config.micro_batch / evidence.rate
        share = profile.empty_cache_seconds / (profile.empty_cache_seconds + CACHE_INTERVAL * step)
        if share >= NOTABLE_GAIN - 1:
            yield (
                f"torch.cuda.empty_cache() takes {format_seconds(profile.empty_cache_seconds)}: called every "
                f"{CACHE_INTERVAL} batches, that is {percent(share)} of the training; leave it out"
            )


def _padding(evidence: Evidence) -> Iterator[str]:
    """Batches whose rows have many different lengths."""
    facts = evidence.facts
    share = (facts.padding_fraction if facts is not None else None) or 0.0
    if facts is None or share < NOTABLE_PADDING:
        return
    line = f"{percent(share)} of the tokens are padding"
    if (in_order := facts.sorted_padding_fraction) is not None:
        gain = evidence.gain((1 - in_order) / (1 - share))
        if gain >= NOTABLE_GAIN:
            yield (
                f"{line}, and {percent(in_order)} if the same samples were batched by length: with that many fewer "
                f"tokens to compute, training could gain {ratio_text(gain)}; it changes the order of the samples"
            )
        return
    yield (
        f"{line}: batches of samples of like length, or several in one row, could gain up to "
        f"{ratio_text(evidence.gain(1 / max(1 - share, 0.01)))} where computing is the limit; they change the order of "
        "the samples"
    )


def saved_by_chunks(facts: WorkloadFacts, batch_size: int) -> int:
    """Bytes that an eager step saves at its peak if its loss is computed from a chunk of tokens at a time."""
    return SCORE_COPIES * batch_size * facts.score_bytes - _chunk_bytes(facts)


def _chunk_bytes(facts: WorkloadFacts) -> int:
    """Two copies of a chunk's scores in fp32: the profiler counted 1.3."""
    return 2 * 4 * SCORE_CHUNK * facts.classes


def _scores(evidence: Evidence) -> Iterator[str]:
    """Scores over many classes, as of a language model's vocabulary, that need not be held all at once."""
    facts, config, used = evidence.facts, evidence.config, evidence.measured.device_memory_bytes
    if facts is None or not used or not facts.classes or config.is_compiled or config.ranks > 1:
        return
    size, held = config.batch_size, SCORE_COPIES * facts.score_bytes
    saved = saved_by_chunks(facts, size)
    if saved < NOTABLE_MEMORY * used:
        return
    line = (
        f"the loss holds {format_bytes(size * held)} at its peak, {SCORE_COPIES} times its scores over "
        f"{facts.classes:,} classes: torch.nn.LinearCrossEntropyLoss with options=LinearCrossEntropyOptions("
        f"chunking_method=None, batch_chunk_size={SCORE_CHUNK}) (torch 2.13), or Liger's loss on a GPU, would save "
        f"about {format_bytes(saved)} of {format_bytes(used)}"
    )
    if (limit := evidence.memory_limit_bytes) is not None:
        own = evidence.memory or Line(0.0, used / size, MAX_MARGIN)  # at most as steep: a part does not grow
        # What is left of the slope is no better known than the line itself.
        slope = max(own.sample_bytes - held, MAX_MARGIN * own.sample_bytes)
        base = own.base_bytes + _chunk_bytes(facts)
        before = own.largest_batch(limit)
        after = replace(own, base_bytes=base, sample_bytes=slope, most=None).largest_batch(limit)
        if before is not None and after is not None and after > before:
            line += f", and the target would hold micro-batches of about {after} samples rather than {before}"
    yield f"{line}; measure its speed"


def _effective_batch(evidence: Evidence) -> Iterator[str]:
    """A device that takes nearly as long for half of the samples."""
    ratio = evidence.profile.batch_gain if evidence.profile is not None else None
    fixed = min(ratio - 1, 0.99) if ratio is not None else 0.0
    if fixed < NOTABLE_FIXED or evidence.batch_is_free:
        return
    twice, most = (evidence.gain(gain) for gain in (2 / (2 - fixed), 1 / (1 - fixed)))
    if twice >= NOTABLE_GAIN:
        yield (
            f"{percent(fixed)} of a step's time does not shrink with its samples: an effective batch twice as large "
            f"as {evidence.config.effective_batch} could gain {ratio_text(twice)}, ever larger ones up to "
            f"{ratio_text(most)}; they change what is learned, and --effective-batch free tries them"
        )


def _clocks(evidence: Evidence) -> Iterator[str]:
    """A GPU clock that was held down."""
    if evidence.throttled is not None:
        yield evidence.throttled
        return
    telemetry = evidence.measured.seen
    slowed = [name for name in telemetry.clock_limits if name in SLOWDOWNS]
    if slowed and telemetry.sm_clock_mhz:
        hot = f" at {telemetry.temperature_celsius:.0f} °C" if telemetry.temperature_celsius is not None else ""
        limits = ", ".join(slowed)
        yield f"the GPU's clock was held down to {telemetry.sm_clock_mhz:.0f} MHz{hot} ({limits}): check its cooling"


_TREES = (_loader, _cpus, _epochs, _memory, _scores, _padding, _compiling, _device, _effective_batch, _clocks)


def copy_ceiling(hardware: Hardware, device: str, facts: WorkloadFacts, ranks: int = 1) -> float | None:
    """Samples per second that the copies to the ranks' devices could reach alone; None without a measured bandwidth."""
    peaks = hardware.peaks if device != "cpu" else None
    bandwidth = peaks.host_to_device_bytes_per_second if peaks is not None else None
    if bandwidth is None or facts.batch_bytes <= 0:
        return None
    return ranks * bandwidth * facts.baseline.batch_size / facts.batch_bytes
