"""Whether a gain on a GPU holds in clock cycles too, or the card merely ran faster for one of the two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.measuring.objective import Objective
from autotune.measuring.records import Measurement, Point
from autotune.measuring.speedup import Speedup, comparable, speedup_in

RAN_FASTER = "the card ran faster"


def ran_faster(
    rounds: Sequence[Mapping[Point, Measurement]], before: Point, after: Point, found: Speedup, objective: Objective
) -> str | None:
    """That a gain is one of the GPU's clock and not of the config, in a few words; None where nothing says so.

    A cold card, or one that a power limit holds down less, clocks higher, and what trains then gains from it. So the
    rates are compared once more, each divided by the median clock of its process: there, too, 1 must lie below the
    interval. Where the card did not run faster for the second of the two, it is no reason.

    Args:
        rounds: What was measured in each.
        before: The point that the other one is compared with.
        after: That one.
        found: The speed-up of the two.
        objective: What was compared; joules do not go with the clock, and are not looked at.
    """
    both = comparable(rounds, before, after)
    clocks = [[_clock_mhz(measured[point]) for measured in both] for point in (before, after)]
    known = [[clock for clock in side if clock is not None] for side in clocks]
    if not objective.is_rate or not found.confirmed or any(len(side) < len(both) for side in known):
        return None
    first, second = (sum(side) / len(side) for side in known)
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
    """The same with gigacycles in the place of seconds."""
    gigahertz = (_clock_mhz(measured) or 0.0) / 1000
    blocks = tuple(block.model_copy(update={"seconds": block.seconds * gigahertz}) for block in measured.blocks)
    boundary = measured.epoch_boundary_seconds * gigahertz
    return measured.model_copy(update={"blocks": blocks, "epoch_boundary_seconds": boundary})
