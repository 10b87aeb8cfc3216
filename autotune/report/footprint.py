"""Memory against batch size, as a result's bursts show it, with the line that the search's own model fits to them."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from autotune.errors import ConfigError
from autotune.measuring import Burst, Line, Measurement, MemoryModel, Outcome, Point
from autotune.report.drawing import drawable
from autotune.results.result import Result, TrialRecord


@dataclass(frozen=True)
class Footprint:
    """What the bursts took.

    Attributes:
        points: Samples of a micro-batch, peak bytes, and whether all other knobs that change memory are the line's.
        exceeded: Micro-batches that ran out of memory.
        target_bytes: What a burst may take; None where it is not known.
        line: Fitted; None where no combination of knobs was run with two sizes.
        of_best: Whether the line is that of the chosen config, rather than of the combination most like it.
        largest_batch: That the line leads one to expect under the target.
    """

    points: list[tuple[int, float, bool]]
    exceeded: list[int]
    target_bytes: int | None
    line: Line | None
    of_best: bool
    largest_batch: int | None


def footprint(result: Result) -> Footprint:
    """The memory of all bursts, and the line that fits the chosen config best."""
    limits = result.constraints
    target = limits.memory_limit_bytes or result.hardware.memory_limit_bytes(limits.device, limits.memory_target)
    if not drawable(target):
        target = None
    found = [(point, trial) for trial in result.trials if (point := _point(result, trial)) is not None]
    # Without a target nothing is known of what ran out of memory but that it did.
    bursts = [_burst(*one) for one in found if target is not None or one[1].outcome is Outcome.OK]
    model = MemoryModel(bursts, target or 0, limits.device)
    line = model.nearest(result.best.point)
    return Footprint(
        points=[
            (point.config.batch_size, float(trial.memory_bytes), line is not None and model.line(point) is line)
            for point, trial in found
            if trial.memory_bytes is not None and drawable(trial.memory_bytes)
        ],
        exceeded=[point.config.batch_size for point, trial in found if trial.outcome is Outcome.OOM],
        target_bytes=target,
        line=line,
        of_best=line is model.line(result.best.point),
        largest_batch=line.largest_batch(target) if line is not None and target is not None else None,
    )


def _point(result: Result, trial: TrialRecord) -> Point | None:
    """What a burst ran; None where the file does not make sense."""
    try:
        return result.baseline.point.changed(trial.changes)
    except (ConfigError, ValidationError):
        return None


def _burst(point: Point, trial: TrialRecord) -> Burst:
    """As much of a burst as the model looks at: a record has no timed blocks."""
    taken = trial.memory_bytes if drawable(trial.memory_bytes) else None
    measurement = Measurement.model_construct(device_memory_bytes=taken) if taken is not None else None
    return Burst.model_construct(point=point, outcome=trial.outcome, measurement=measurement)
