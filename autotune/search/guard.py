"""What must not run: points that break a constraint, and points at least as large as one that ran out of memory."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.knobs import Space, affecting
from autotune.measuring import Burst, MemoryModel, Outcome, Point
from autotune.search.trials import Trial
from autotune.units import format_bytes


def refusal(point: Point, space: Space, trials: Sequence[Trial], memory: MemoryModel | None = None) -> str | None:
    """Why a point must not run, in one sentence; None when it may."""
    if (violation := space.violation(point.config)) is not None:
        return violation
    if memory is not None and (expected := memory.shortage(point)) is not None:
        return (
            f"batch {point.config.batch_size} is expected to take {format_bytes(round(expected))}, "
            f"more than the target of {format_bytes(memory.limit_bytes)}"
        )
    for trial in trials:
        known = trial.burst
        if known.outcome is Outcome.OOM and _at_least_as_large(point, known.point):
            return f"batch {known.point.config.batch_size} already ran out of memory with the same settings"
        if known.outcome is Outcome.SHM_EXHAUSTED and _queued_samples(point) >= _queued_samples(known.point) > 0:
            return "a smaller queue of batches already filled the shared memory"
        if _is_the_compilers(known) and _fails_alike(point, known.point):
            return f"compile_mode={point.config.compile_mode} did not work here"
    return None


def _at_least_as_large(point: Point, failed: Point) -> bool:
    """Same memory-relevant knobs, and a batch no smaller than one that ran out of memory."""
    same = point.config.pick(affecting("memory")) == failed.config.pick(affecting("memory"))
    return same and point.parameters == failed.parameters and point.config.batch_size >= failed.config.batch_size


def _queued_samples(point: Point) -> int:
    config = point.config
    return config.num_workers * (config.prefetch_factor or 0) * config.batch_size


def _is_the_compilers(known: Burst) -> bool:
    """Whether a burst failed by how it was compiled: the compiler said so, or its slower modes crashed or hung."""
    slower = known.point.config.compile_mode not in {None, "default"}
    return known.outcome is Outcome.UNSUPPORTED or (slower and known.outcome in {Outcome.TIMEOUT, Outcome.CRASHED})


def _fails_alike(point: Point, failed: Point) -> bool:
    """A model that does not compile in one mode will not at another batch size either."""
    mode = failed.config.compile_mode
    return mode is not None and point.config.compile_mode == mode and point.parameters == failed.parameters
