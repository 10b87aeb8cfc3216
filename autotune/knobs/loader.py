"""The knobs for loading batches and copying them to the device."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Mapping, Set

from autotune.hardware import DeviceKind, Gpu
from autotune.knobs.batch import batch_sizes, spread
from autotune.knobs.config import Scalar, TrainConfig
from autotune.knobs.context import Choices, SearchContext, offer
from autotune.knobs.knob import ByLeave, Knob
from autotune.recorder.effects import Effects
from autotune.units import format_bytes, format_seconds

_MOST_COUNTS = 8
_COUNTS = (0, 1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_PREFETCH_FACTORS = (2, 4, 8)
_CHEAP_BATCH_SECONDS, _COSTLY_BATCH_SECONDS = 0.001, 0.02
"""Fetching a batch in less than the first is cheaper than receiving it from a worker. Above the second, training
probably waits for data."""
_SPARE, _FASTER = 1.3, 2.0
"""Workers load this much faster than the GPU trains today. The first factor keeps a queue; the second leaves room for
faster steps by the other first guesses. Not tuned."""
_PLACED_SHARE = 0.2
"""Share of the free memory for the whole data set: each side of a duet has its own copy. Not tuned."""
_READING_SHARE, _SHORT_READING_SECONDS = 0.02, 2.5
"""Share of the budget for reading the whole data set. Each process that trains with it reads it again: one in the
search, and one in each round of the proof, of which there are about a dozen in ten minutes. A short reading is worth it
in any budget: three searches of 30 s over a table that takes 2 s to read found 1.75, 1.89 and 2.04 x, one without it
1.29 x. Otherwise not tuned."""
REPEATED = "an iterable data set repeats its samples in every worker unless it shards them itself"
_OWN_MEMORY: Set[DeviceKind] = frozenset({"cuda", "rocm"})
LEAST_QUEUE: dict[str, Scalar] = {"prefetch_factor": 1}
"""The knobs of the shortest queue of batches beside the same workers."""
_MADE_WITH_IT = "the train loader is made with it"


def is_costly(context: SearchContext) -> bool:
    """Whether training probably waits for data."""
    return context.batch_seconds >= _COSTLY_BATCH_SECONDS


def _placements(context: SearchContext) -> Choices | str:
    """Places for a data set that is collated once, since its samples are always the same."""
    facts, memory = context.facts, context.hardware.memory.available_bytes
    needed, samples = facts.placeable_bytes, facts.samples
    if needed is None or samples is None:
        return f"the data set cannot be collated once: {facts.unplaceable_reason or 'its samples were not examined'}"
    if "num_workers" in context.fixed and context.start.num_workers:
        return f"a data set that is collated once leaves the {context.start.num_workers} requested workers no work"
    reading = samples * facts.sample_seconds
    if reading > max(_SHORT_READING_SECONDS, _READING_SHARE * context.budget_seconds):
        return (
            f"reading the whole data set takes about {format_seconds(reading)}, and each burst would read it; with "
            f"--budget {math.ceil(reading / _READING_SHARE / 60)}m it would be tried"
        )
    values: list[Scalar] = ["loader"]
    if needed <= _PLACED_SHARE * memory:
        values.append("collated")
    free = context.record.free_bytes or context.record.memory_total_bytes if isinstance(context.record, Gpu) else None
    if free is not None and needed <= _PLACED_SHARE * free:
        values.append("device")
    size = f"the whole data set takes {format_bytes(needed)}"
    reason = f"its samples are always the same, and {size}: batches are selected from it rather than read again"
    return offer(values, reason, f"{size}, more than {_PLACED_SHARE:.0%} of the memory that is free")


def worker_counts(context: SearchContext) -> tuple[int, ...]:
    """The numbers of workers to try; a fixed one stays alone."""
    held = "num_workers" in context.fixed or isinstance(_workers(context), str)
    return (context.start.num_workers,) if held else _worker_counts(context)


def _workers(context: SearchContext) -> Choices | str:
    """Processes that load data, within the CPU budget, the worker limit, and the shared memory."""
    facts = context.facts
    why_held = facts.feedback_reason or (facts.copied_reason if facts.baseline.num_workers == 0 else None)
    if why_held and "num_workers" not in context.requested:
        return f"{why_held}; to try workers all the same, name num_workers with --only"
    cpu = context.hardware.cpu
    why = cpu.budget_reason or f"{cpu.budget} CPUs are usable"
    limit = f"at most {context.worker_limit} ({'as asked' if context.worker_limit < cpu.budget else why})"
    if context.worker_limit == 0:
        return "no workers are allowed, as asked"
    if context.start.data_placement != "loader" and "data_placement" in context.fixed:
        return "the data set is collated once, so that workers have nothing to load"
    if not _fits(context, 1, _least_prefetch(context)):
        return "not even one worker's batches fit into shared memory; enlarge it (docker run --shm-size)"
    return offer(_worker_counts(context), f"workers load data beside training; {limit}", limit)


def _worker_counts(context: SearchContext) -> tuple[int, ...]:
    ladder = {*_COUNTS, context.worker_limit, context.start.num_workers}
    prefetch = _least_prefetch(context)
    counts = [
        count for count in ladder if count <= context.worker_limit and (count == 0 or _fits(context, count, prefetch))
    ]
    return spread(counts, _MOST_COUNTS, context.start.num_workers)


def _preferred_workers(context: SearchContext, picked: Mapping[str, Scalar]) -> tuple[Scalar, ...]:
    """Beside a GPU, as many as feed it; on the CPU, where training needs the same cores, few or none.

    A GPU of unknown pace gets half of the CPUs, or all of them if they are few.
    """
    cheap = context.batch_seconds < _CHEAP_BATCH_SECONDS
    if picked.get("data_placement", "loader") != "loader":
        return (0,)
    if context.device != "cpu" and cheap:
        most = context.start.num_workers
    elif context.device != "cpu" and context.facts.step_seconds is not None:
        needed = math.ceil(_SPARE * _FASTER * context.batch_seconds / context.facts.step_seconds)
        return tuple(sorted(worker_counts(context), key=lambda count: (count < needed, abs(count - needed))))
    elif context.device != "cpu":
        most = min(context.worker_limit, max(6, context.worker_limit // 2))
    elif cheap:
        most = 0
    else:
        most = max(1, context.worker_limit // 2) if is_costly(context) else context.start.num_workers
    return tuple(count for count in reversed(worker_counts(context)) if count <= most)


def _fits(context: SearchContext, workers: int, prefetch: int) -> bool:
    """Whether these workers' batches fit, at least with the smallest batch size."""
    smallest = TrainConfig(batch_size=min(batch_sizes(context)), num_workers=workers, prefetch_factor=prefetch)
    return context.room.shortage(smallest) is None


def _least_prefetch(context: SearchContext) -> int:
    """The smallest prefetch factor that a candidate may have."""
    own = context.start.prefetch_factor or _PREFETCH_FACTORS[0]
    return own if "prefetch_factor" in context.fixed else min(own, _PREFETCH_FACTORS[0])


def _prefetching(context: SearchContext) -> Choices | str:
    """Batches that each worker prepares ahead."""
    if (why := context.facts.feedback_reason) and "prefetch_factor" not in context.requested:
        return f"{why}; to try it all the same, name prefetch_factor with --only"
    working = [count for count in worker_counts(context) if count > 0]
    if not working:
        return "without workers nothing is prefetched"
    factors = sorted({*_PREFETCH_FACTORS, context.start.prefetch_factor or 2})
    values = [value for value in factors if _fits(context, min(working), value)]
    limits = [format_bytes(context.room.ram_bytes) + " of memory"]
    if context.room.shm_bytes is not None:
        limits.append(format_bytes(context.room.shm_bytes) + " of /dev/shm")
    room = f"the batches that wait must fit into {' and '.join(limits)}"
    return offer(values, f"more of them bridge slow samples; {room}", room)


def _persistence(context: SearchContext) -> Choices | str:
    """Whether workers outlive the epoch."""
    if max(worker_counts(context)) == 0:
        return "without workers none can persist"
    return Choices((False, True), "workers that persist need not be started again each epoch")


def _ordering(context: SearchContext) -> Choices | str:
    """Whether batches keep their order; searched only if the baseline gives it up already, or the user asks."""
    if context.start.dataloader_in_order and "dataloader_in_order" not in context.requested:
        return "out of order, no two runs train alike; if that is fine, ask with --only or pin it to false"
    if max(worker_counts(context)) == 0:
        return "without workers batches come in order"
    if context.facts.samples is None:
        return "the samples of an iterable data set may have an order that matters"
    return Choices((True, False), "a slow batch holds up no other, but no two runs get batches in the same order")


def _starting(context: SearchContext) -> Choices | str:
    """How workers start; searched only if the user asks, since not every script and data set can be spawned."""
    if "multiprocessing_context" not in context.requested:
        return "workers that are not forked start slowly; where forks hang or fill the memory, ask with --only"
    if max(worker_counts(context)) == 0:
        return "without workers no process is started"
    own, *others = multiprocessing.get_all_start_methods()  # the first is what None stands for
    methods: list[Scalar] = [None, *(method for method in others if method != "fork" or context.facts.fork_safe)]
    reason = "a fork copies the pages that it touches, and what it must not share"
    return offer(methods, reason, f"{own} is the only way here", own=context.start.multiprocessing_context)


def _pinning(context: SearchContext) -> Choices | str:
    """Whether batches lie in page-locked host memory for copies to the device."""
    if context.device not in _OWN_MEMORY:
        return f"on {context.device} batches are not copied to other memory"
    return Choices((False, True), "copies from page-locked memory are faster, and can overlap with computing")


def _asynchrony(context: SearchContext) -> Choices | str:
    """Whether copies return at once."""
    if isinstance(pinning := _pinning(context), str):
        return pinning
    if "pin_memory" in context.fixed and not context.start.pin_memory:
        return "copies can only overlap from pinned memory, and pin_memory is held at false"
    return Choices((False, True), "copies from page-locked memory can overlap with computing")


def _side_stream(context: SearchContext) -> Choices | str:
    """Whether copies run in a stream of their own."""
    if isinstance(asynchrony := _asynchrony(context), str):
        return asynchrony
    return Choices((False, True), "a copy in a stream of its own need not wait for what the device computes")


KNOBS = (
    Knob(
        name="data_placement", scope="loader",
        when="map-style data, the same samples each time, of one shape, that fit into memory",
        why="a data set that is collated once is not read again in each epoch: batches are selected from it",
        candidates=_placements, prefers=("device", "collated"), priority={"gpu": 35, "cpu": 45}, guide=25,
        part="loader", affects={"memory", "host memory"},
        without_word="the train loader selects its batches from the collated set",
    ),
    Knob(
        name="num_workers", scope="loader", while_training="neutral",
        why="processes load data beside training, which otherwise waits for it",
        when="within the CPUs, a pin, memory and /dev/shm; for iterable data only in a `build()` that has workers",
        candidates=_workers, prefers=_preferred_workers, priority={"gpu": 40, "cpu": 50}, guide=30, scale="linear",
        part="loader", affects={"host memory", "waiting batches", "cores"}, dataloader_argument="num_workers",
        meets=("num_threads",),
        words={"transformers": "dataloader_num_workers"}, without_word=_MADE_WITH_IT,
    ),
    Knob(
        name="prefetch_factor", scope="loader", while_training="neutral",
        why="batches that each worker has ready bridge slow samples",
        when="with workers, within memory and /dev/shm", goes_with="num_workers",
        candidates=_prefetching, prefers=(4, 2), priority={"gpu": 80, "cpu": 90}, guide=40, scale="logarithmic",
        part="loader", affects={"host memory", "waiting batches"}, dataloader_argument="prefetch_factor",
        words={"transformers": "dataloader_prefetch_factor"}, without_word=_MADE_WITH_IT,
        absent=dict.fromkeys(("prefetch_factor", "dataloader_prefetch_factor"), (None, 2)),
    ),
    Knob(
        name="pin_memory", scope="loader", while_training="neutral",
        why="copies from page-locked memory are faster, and can overlap with computing",
        candidates=_pinning, prefers=(True,), priority={"gpu": 60}, guide=60, devices=_OWN_MEMORY,
        part="loader", dataloader_argument="pin_memory",
        words={"transformers": "dataloader_pin_memory"}, without_word=_MADE_WITH_IT,
        absent={"dataloader_pin_memory": (True,)},
    ),
    Knob(
        name="persistent_workers", scope="loader", why="workers that persist need not be started again each epoch",
        when="with workers", goes_with="num_workers",
        candidates=_persistence, meets=("num_workers",), prefers=(True,), priority={"gpu": 120, "cpu": 100}, guide=50,
        part="loader", dataloader_argument="persistent_workers",
        without_word=_MADE_WITH_IT,  # under transformers, evaluation would persist too, and draw other numbers
    ),
    Knob(
        name="dataloader_in_order", scope="loader",
        while_training=ByLeave("batches come in another order, in no two runs the same"),
        why="a slow batch holds up no other, but no two runs get batches in the same order",
        when="with workers, map-style data, and only when asked for with `--only` or `--pin`", goes_with="num_workers",
        candidates=_ordering, prefers=(False,), priority={"gpu": 105, "cpu": 95}, guide=55,
        part="loader", dataloader_argument="in_order",
        without_word=_MADE_WITH_IT,  # also under transformers, whose own argument came after 5.0
    ),
    Knob(
        name="multiprocessing_context", scope="loader",
        why="a worker that is not forked shares no memory that grows, no CUDA context and no lock",
        when="with workers, and only when asked for with `--only` or `--pin`", goes_with="num_workers",
        candidates=_starting, priority={"gpu": 106, "cpu": 96}, guide=56,
        part="loader", affects={"host memory"}, dataloader_argument="multiprocessing_context",
        without_word=_MADE_WITH_IT,
    ),
    Knob(
        name="non_blocking", scope="live", while_training="neutral", when="with pin_memory",
        why="copies from page-locked memory overlap with computing when nothing waits for them",
        candidates=_asynchrony, prefers=(True,), priority={"gpu": 90}, guide=70, devices=_OWN_MEMORY, part="loader",
        on_copies=True, shows=Effects.overlaps,
        words={"transformers": ("accelerator_config",), "accelerate": ("dataloader_config",)},
        without_word="copies from pinned memory never block there; a warning says so if that was not tuned",
    ),
    Knob(
        name="device_prefetch", scope="live", when="with pin_memory, in your own loop", goes_with="pin_memory",
        why="a batch is copied in a stream of its own while the device computes, and takes no extra time",
        candidates=_side_stream, priority={"gpu": 95}, guide=75, devices=_OWN_MEMORY, part="loader",
        affects={"memory"},  # the next batch is on the device while this one is trained on
        without_word="it copies batches itself; a warning says that this is not in effect",
    ),
)  # fmt: skip
