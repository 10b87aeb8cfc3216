"""What must not run: what breaks a constraint, is as large as what ran out of memory, or did not come into effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.knobs import Space, affecting
from autotune.measuring import Burst, MemoryModel, Outcome, Point
from autotune.search.trials import Trial
from autotune.units import format_bytes

_COMPILED_AS: Mapping[str | None, str] = {"loss": "default"}
"""The mode in which a model is compiled within another one."""


def refusal(point: Point, space: Space, trials: Sequence[Trial], memory: MemoryModel | None = None) -> str | None:
    """Why a point must not run, in one sentence; None when it may."""
    if (violation := space.violation(point.config)) is not None:
        return violation
    if memory is not None and (expected := memory.shortage(point)) is not None:
        return (
            f"batch {point.config.batch_size} is expected to take {format_bytes(round(expected))}, "
            f"more than the target of {format_bytes(memory.limit_bytes)}"
        )
    on_cpu = space.device == "cpu"
    return next(filter(None, (_as_before(point, trial.burst, trials, on_cpu=on_cpu) for trial in trials)), None)


def _as_before(point: Point, known: Burst, trials: Sequence[Trial], *, on_cpu: bool) -> str | None:
    """Why a point would end as a burst did that is known, or worse; None when it may not."""
    size = known.point.config.batch_size
    # On a CPU both memories are one: where the kernel was faster than the target, it says as much.
    ran_out = known.outcome is Outcome.OOM or (on_cpu and known.outcome is Outcome.HOST_OOM)
    took_all = ran_out and _at_least_as_large(point, known.point)
    if took_all and not (on_cpu and _loads_less(point, known.point)):
        return f"batch {size} already ran out of memory with the same settings"
    if known.outcome is Outcome.SHM_EXHAUSTED and _queued_samples(point) >= _queued_samples(known.point) > 0:
        return "a smaller queue of batches already filled the shared memory"
    if (name := next((one for one in known.without_effect if _has_same(point, known.point, one)), None)) is not None:
        return f"{name}={getattr(point.config, name)} did not come into effect here"
    if _is_the_compilers(known, trials) and _fails_alike(point, known.point):
        return f"compile_mode={point.config.compile_mode} did not work here"
    if _asked_again(known) and _at_least_as_large(point, known.point) and point.config.batch_size > size:
        return f"at batch {size} already, the allocator had to free its cache and ask again, which is slow"
    return None


def _asked_again(known: Burst) -> bool:
    """Whether the device's memory was too full for the allocator while a burst was timed."""
    telemetry = known.measurement.telemetry if known.measurement is not None else None
    return telemetry is not None and bool(telemetry.allocator_retries)


def _at_least_as_large(point: Point, failed: Point) -> bool:
    """Same memory-relevant knobs, and a batch no smaller than one that ran out of memory."""
    same = point.config.pick(affecting("memory")) == failed.config.pick(affecting("memory"))
    return same and point.parameters == failed.parameters and point.config.batch_size >= failed.config.batch_size


def _loads_less(point: Point, failed: Point) -> bool:
    """Fewer workers, or fewer batches that wait: on a CPU they took of the memory that ran out."""
    fewer_workers = point.config.num_workers < failed.config.num_workers
    return fewer_workers or _queued_samples(point) < _queued_samples(failed)


def _has_same(point: Point, known: Point, name: str) -> bool:
    return point.config.pick((name,)) == known.config.pick((name,)) and point.parameters == known.parameters


def _queued_samples(point: Point) -> int:
    config = point.config
    return config.num_workers * (config.prefetch_factor or 0) * config.batch_size


def _is_the_compilers(known: Burst, trials: Sequence[Trial]) -> bool:
    """Whether a burst failed by how it was compiled: the compiler said so, or none that was eager hung or crashed."""
    if known.outcome not in {Outcome.TIMEOUT, Outcome.CRASHED}:
        return known.outcome is Outcome.UNSUPPORTED and not known.without_effect
    eager = (trial.burst for trial in trials if trial.burst.point.config.compile_mode is None)
    return all(burst.outcome is not known.outcome for burst in eager)


def _fails_alike(point: Point, failed: Point) -> bool:
    """A model that does not compile in one mode will not at another batch size either."""
    mode, other = (_COMPILED_AS.get(one.config.compile_mode, one.config.compile_mode) for one in (failed, point))
    return mode is not None and other == mode and point.parameters == failed.parameters
