"""Checks whether a gain on a GPU holds in clock cycles too, or the card merely clocked higher for one config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.measuring.objective import Objective
from autotune.measuring.records import Measurement, Point
from autotune.measuring.speedup import Speedup, comparable, speedup_in

RAN_FASTER = "the card ran faster"


def ran_faster(
    rounds: Sequence[Mapping[Point, Measurement]], before: Point, after: Point, speedup: Speedup, objective: Objective
) -> str | None:
    """Explains a gain that comes from the GPU's clock instead of the config; None where nothing points to it.

    A cold card, or one that its power limit slows less, clocks higher, and the config that trains then gains from it.
    So the rates are compared again, each divided by the median clock of its process: here, too, the interval must lie
    above 1. If the clock was not higher for `after`, it explains nothing.

    Args:
        rounds: Measurements, by point.
        before: The reference point.
        after: The point compared with it.
        speedup: Speed-up of `after` over `before`.
        objective: Only rates are checked: joules do not scale with the clock.
    """
    both = comparable(rounds, before, after)
    clocks = [[_clock_mhz(measured[point]) for measured in both] for point in (before, after)]
    known_clocks = [[clock for clock in side if clock is not None] for side in clocks]
    if not objective.is_rate or not speedup.confirmed or any(len(side) < len(both) for side in known_clocks):
        return None
    first, second = (sum(side) / len(side) for side in known_clocks)
    per_cycle = [{point: _in_cycles(measured[point]) for point in (before, after)} for measured in both]
    cycles = speedup_in(per_cycle, before, after, objective)
    if second <= first or cycles.ci95.low > 1.0:
        return None
    return (
        f"{RAN_FASTER}: {second:,.0f} MHz for it and {first:,.0f} MHz for the baseline in the mean; for the same clock "
        f"cycles it is {cycles.ratio:.3f} times as fast ({cycles.ci95.low:.3f} to {cycles.ci95.high:.3f})"
    )


def _clock_mhz(measured: Measurement) -> float | None:
    """The GPU's median clock; None where it is not known."""
    return (measured.telemetry.sm_clock_mhz or None) if measured.telemetry is not None else None


def _in_cycles(measured: Measurement) -> Measurement:
    """The measurement with gigacycles in place of seconds."""
    gigahertz = (_clock_mhz(measured) or 0.0) / 1000
    blocks = tuple(block.model_copy(update={"seconds": block.seconds * gigahertz}) for block in measured.blocks)
    boundary = measured.epoch_boundary_seconds * gigahertz
    return measured.model_copy(update={"blocks": blocks, "epoch_boundary_seconds": boundary})
