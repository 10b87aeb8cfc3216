"""Refuses points that break a constraint, would run out of memory, or would fail as earlier ones did."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.knobs import Space, affecting
from autotune.knobs.compiling import compiles_alike
from autotune.measuring import Burst, MemoryModel, Outcome, Point
from autotune.search.trials import Trial
from autotune.timing.failing import PINNING
from autotune.units import format_bytes


def refusal(point: Point, space: Space, trials: Sequence[Trial], memory: MemoryModel | None = None) -> str | None:
    """Why a point must not run, in one sentence; None if it may."""
    if (violation := space.violation(point.config)) is not None:
        return violation
    if memory is not None and (expected := memory.shortage(point)) is not None:
        return (
            f"batch {point.config.batch_size} is expected to take {format_bytes(round(expected))}, "
            f"more than the target of {format_bytes(memory.limit_bytes)}"
        )
    on_cpu = space.device == "cpu"
    return next(filter(None, (_as_before(point, trial.burst, trials, on_cpu=on_cpu) for trial in trials)), None)


def _as_before(point: Point, earlier: Burst, trials: Sequence[Trial], *, on_cpu: bool) -> str | None:
    """Why a point would end as badly as an earlier burst, or worse; None if nothing shows that."""
    shared = (knob for knob in earlier.without_effect if _has_same(point, earlier.point, knob))
    if (name := next(shared, None)) is not None:
        return f"{name}={getattr(point.config, name)} did not come into effect here"
    alike = compiles_alike(point.config, earlier.point.config) and point.parameters == earlier.point.parameters
    if alike and _is_compiler_failure(earlier, trials):  # it repeats at any batch size
        return "compiling in this mode did not work here"
    return _for_memory(point, earlier, on_cpu=on_cpu)


def _for_memory(point: Point, earlier: Burst, *, on_cpu: bool) -> str | None:
    """Why a point would take more memory than an earlier burst has shown to be there."""
    size = earlier.point.config.batch_size
    # On a CPU both memories are one, so a kill by the kernel means the same as reaching the target.
    ran_out = earlier.outcome is Outcome.OOM or (on_cpu and earlier.outcome is Outcome.HOST_OOM)
    took_all = ran_out and _at_least_as_large(point, earlier.point)
    if took_all and not (on_cpu and _loads_less(point, earlier.point)):
        return f"batch {size} already ran out of memory with the same settings"
    if point.config.pin_memory and _failed_to_pin(earlier):
        return "this machine could not pin a batch's memory"
    if earlier.outcome is Outcome.SHM_EXHAUSTED and _queued_samples(point) >= _queued_samples(earlier.point) > 0:
        return "a smaller queue of batches already filled the shared memory"
    if earlier.retried_allocation and _at_least_as_large(point, earlier.point) and point.config.batch_size > size:
        return f"at batch {size} already, the allocator had to free its cache and ask again, which is slow"
    return None


def _failed_to_pin(burst: Burst) -> bool:
    """Whether a burst ended because a batch could not be pinned."""
    return burst.outcome is Outcome.HOST_OOM and (burst.reason or "").startswith(PINNING)


def _at_least_as_large(point: Point, failed: Point) -> bool:
    """Whether a point has the same memory-relevant knobs as one that failed, and no smaller a batch."""
    same = point.config.pick(affecting("memory")) == failed.config.pick(affecting("memory"))
    return same and point.parameters == failed.parameters and point.config.batch_size >= failed.config.batch_size


def _loads_less(point: Point, failed: Point) -> bool:
    """Whether a point has fewer workers or queued batches: on a CPU, these share the memory that ran out."""
    fewer_workers = point.config.num_workers < failed.config.num_workers
    return fewer_workers or _queued_samples(point) < _queued_samples(failed)


def _has_same(point: Point, other: Point, name: str) -> bool:
    return point.config.pick((name,)) == other.config.pick((name,)) and point.parameters == other.parameters


def _queued_samples(point: Point) -> int:
    config = point.config
    return config.queue_batches * config.batch_size


def _is_compiler_failure(failed: Burst, trials: Sequence[Trial]) -> bool:
    """Whether compiling made a burst fail: the compiler said so, or no eager burst has failed in the same way."""
    if failed.outcome not in {Outcome.TIMEOUT, Outcome.CRASHED}:
        return failed.outcome is Outcome.UNSUPPORTED and not failed.without_effect
    eager = (trial.burst for trial in trials if not trial.burst.point.config.is_compiled)
    return all(burst.outcome is not failed.outcome for burst in eager)
