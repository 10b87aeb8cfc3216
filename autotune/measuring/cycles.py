"""Checks whether a gain on a GPU holds in clock cycles too, and whether the card throttled while it was proved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.measuring.objective import Objective
from autotune.measuring.records import Measurement, Point
from autotune.measuring.speedup import Speedup, comparable, speedup_in
from autotune.measuring.telemetry_summary import SLOWDOWNS

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


def throttled(rounds: Sequence[Mapping[Point, Measurement]], before: Point, after: Point) -> str | None:
    """A sentence if the card held its clocks down in rounds of a proof; None where nothing shows that.

    A power cap is no such limit: under full load it is normal.
    """
    both = comparable(rounds, before, after)
    seen = [[side.telemetry for point in (before, after) if (side := measured[point])] for measured in both]
    sides = [telemetry for of_round in seen for telemetry in of_round if telemetry is not None]
    limits = {limit for side in sides for limit in side.clock_limits} & {*SLOWDOWNS}
    hit = sum(any(side is not None and limits & {*side.clock_limits} for side in of_round) for of_round in seen)
    if not hit:
        return None
    hottest = max((side.temperature_celsius for side in sides if side.temperature_celsius is not None), default=None)
    hot = f", at up to {hottest:.0f} °C" if hottest is not None else ""
    return (
        f"the GPU's clocks were held down in {hit} of {len(both)} rounds of the proof "
        f"({', '.join(sorted(limits))}{hot}): "
        "the speed-up is that of a card which throttles; check its cooling"
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
