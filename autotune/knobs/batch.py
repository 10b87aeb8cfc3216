"""The knobs of the batch: samples of a micro-step, and micro-steps of an optimizer step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from autotune.hardware import Gpu
from autotune.knobs.config import Scalar
from autotune.knobs.context import Choices, SearchContext, offer
from autotune.knobs.facts import WorkloadFacts
from autotune.knobs.knob import Knob
from autotune.torch_settings.precision import HALF

_MOST_SIZES = 10  # not tuned: a search tries two or three of them, neighbours first
_SMALLEST_SHARE = 16  # batches below this share of the baseline's are not tried: their launches cost too much
_LARGEST_GROWTH = 6  # doublings of the baseline's batch, where the effective batch is free
_BUSY = 0.9  # not tuned: a GPU that computes for a larger share of a step gains little by fewer launches
_TRAINING_BYTES_PER_PARAMETER = 16  # fp32 weight, gradient, and the two moments of Adam


def divisors(number: int) -> tuple[int, ...]:
    """All divisors of a positive number, in order."""
    small = [value for value in range(1, math.isqrt(number) + 1) if number % value == 0]
    return tuple(sorted({*small, *(number // value for value in small)}))


def spread(values: Iterable[int], most: int, keep: int | None = None) -> tuple[int, ...]:
    """At most `most` of the values, spread evenly by rank. Keeps both ends, and `keep` if it is among them."""
    ordered = sorted(set(values))
    if len(ordered) <= most:
        return tuple(ordered)
    picked = {ordered[round(rank * (len(ordered) - 1) / (most - 1))] for rank in range(most)}
    if keep in ordered and keep not in picked:
        kept = keep
        picked.remove(min(sorted(picked)[1:-1], key=lambda value: abs(math.log(value / kept))))
        picked.add(kept)
    return tuple(sorted(picked))


def batch_sizes(context: SearchContext) -> tuple[int, ...]:
    """The batch sizes to try; a fixed one stays alone."""
    own = context.start.batch_size
    if "batch_size" in context.fixed:
        return (own,)
    if context.rank_batch is not None:
        fits = [value for value in divisors(context.rank_batch) if value == own or _in_data_set(value, context)]
        if (_is_whole(context) or _is_coupled(context)) and own in fits and not _is_requested(context):
            return (own,)
        floor = min(own, context.rank_batch) / _SMALLEST_SHARE
        return spread([value for value in fits if value >= floor], _MOST_SIZES, own)
    grown = [own * 2**power for power in range(1, _LARGEST_GROWTH + 1)]
    plausible = [value for value in grown if _in_data_set(value, context) and _in_memory(value, context)]
    return tuple(sorted({*(own // part for part in (4, 2, 1) if own % part == 0), *plausible}))


def _candidates(context: SearchContext) -> Choices | str:
    """Divisors of a fixed effective batch; otherwise the baseline's batch size times powers of two."""
    if context.effective_batch is None:
        reason = "the baseline's times powers of two: the effective batch is free"
        nothing = "no other size fits into the data set and into memory"
    else:
        reason = f"divisors of the effective batch of {context.effective_batch}, which stays as it is"
        nothing = f"the effective batch of {context.effective_batch} has no other divisor that is worth trying"
        if _is_coupled(context):
            nothing = f"{coupled(context.facts)}; --only batch_size tries them"
        elif _is_whole(context):
            nothing = (
                f"the effective batch of {context.effective_batch} is trained at once already, and smaller "
                "micro-batches only launch more kernels; --effective-batch free would try larger ones"
            )
    return offer(batch_sizes(context), reason, nothing)


def coupled(facts: WorkloadFacts) -> str:
    """Why other micro-batches would train something else, though the effective batch stays."""
    return (
        f"the loss of a batch is not an average over its samples (it differs by {facts.coupling:.0%} from those of its "
        "halves), so that micro-batches of another size would train something else"
    )


def _is_requested(context: SearchContext) -> bool:
    return bool(context.requested & {"batch_size", "accumulation_steps"})


def _is_coupled(context: SearchContext) -> bool:
    return context.facts.coupling > 0


def _is_whole(context: SearchContext) -> bool:
    """Whether a GPU trains each step in one micro-batch: smaller ones would only launch more kernels."""
    return isinstance(context.record, Gpu) and context.start.batch_size == context.rank_batch


def _in_data_set(value: int, context: SearchContext) -> bool:
    """Whether the data set fills a batch of this size."""
    return context.facts.samples is None or value <= context.facts.samples


def _in_memory(value: int, context: SearchContext) -> bool:
    """Whether weights, optimizer states and the input fit. It is a lower bound; the memory model checks the rest."""
    total = (
        context.record.memory_total_bytes
        if isinstance(context.record, Gpu)
        else context.hardware.memory.available_bytes
    )
    needed = context.facts.parameters * _TRAINING_BYTES_PER_PARAMETER + value * context.room.sample_bytes
    return total is None or needed <= total


def _preferred(context: SearchContext, picked: Mapping[str, Scalar]) -> tuple[Scalar, ...]:
    """The whole effective batch at once on a GPU that waits for launches; in half precision, twice the batch.

    Launching takes as long for few samples as for many. In half precision, activations take half the bytes.
    """
    if context.device == "cpu":
        return ()
    busy, whole = context.facts.device_busy_fraction, context.rank_batch
    if whole is not None and busy is not None and busy < _BUSY and _in_memory(whole, context):
        return (whole,)
    if picked.get("precision", context.start.precision) not in HALF:
        return ()
    return tuple(value for value in batch_sizes(context) if value >= 2 * context.start.batch_size)[:1]


KNOBS = (
    Knob(
        name="batch_size", scope="loader", when="divisors of the effective batch, or any with `--effective-batch free`",
        why="larger micro-batches use a device better until it is full; smaller ones stay in the CPU's caches",
        candidates=_candidates, prefers=_preferred, priority={"gpu": 20, "cpu": 30}, guide=80, scale="logarithmic",
        meets=("checkpointing", "precision"),
        part="both",  # the loader works in batches too
        affects={"arithmetic", "compiled code", "waiting batches"},  # BatchNorm sees the micro-batch
        dataloader_argument="batch_size", words={"transformers": "per_device_train_batch_size"},
        absent={"batch_size": (1,), "per_device_train_batch_size": (8,)},
        without_word="the train loader is made with it",
    ),
    Knob(
        name="accumulation_steps", scope="loader", when="follows from batch_size",
        why="the effective batch, and with it what is learned, stays the same however little fits into memory at once",
        candidates=None, goes_with="batch_size", affects={"waiting batches"},
        words={
            "lightning": "accumulate_grad_batches", "transformers": "gradient_accumulation_steps",
            "accelerate": "gradient_accumulation_steps",
        },
        without_word="your own loop accumulates, over `tuned.accumulate(loader)`",
    ),
)  # fmt: skip
