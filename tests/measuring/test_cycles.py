"""Whether a gain on a GPU holds in clock cycles, by telemetry that is made up: no card has run this yet."""

from __future__ import annotations

import pytest

from autotune.knobs.config import TrainConfig
from autotune.measuring.objective import SAMPLES_PER_JOULE, SAMPLES_PER_SECOND, Objective
from autotune.measuring.records import Measurement, Point
from autotune.measuring.speedup import RAN_FASTER, Rounds
from autotune.measuring.telemetry_summary import TelemetrySummary
from benchmarks.ratios import speedup_in
from tests.factories import make_measurement

BEFORE, AFTER = Point(config=TrainConfig(batch_size=16)), Point(config=TrainConfig(batch_size=32))
Measured = list[dict[Point, Measurement]]


def rounds_of(ratio: float, clocks: tuple[float | None, float | None]) -> Measured:
    """Five rounds in which one side is so many times as fast, with the clocks of both, which wander together."""

    def side(rate: float, clock: float | None, number: int, seed: int) -> Measurement:
        telemetry = TelemetrySummary(
            seconds=8.0, sm_clock_mhz=clock + 10 * number if clock is not None else None, energy_joules=800.0
        )
        return make_measurement(rate, seed=seed, telemetry=telemetry)

    before, after = clocks
    return [
        {BEFORE: side(1000, before, number, number), AFTER: side(1000 * ratio, after, number, 50 + number)}
        for number in range(5)
    ]


def found_in(rounds: Measured, objective: Objective = SAMPLES_PER_SECOND) -> str | None:
    """What is said of a gain."""
    return Rounds(rounds, objective).ran_faster(BEFORE, AFTER, speedup_in(rounds, BEFORE, AFTER, objective=objective))


@pytest.mark.parametrize(
    ("ratio", "clocks", "faster"),
    [
        (1.10, (1500.0, 1650.0), True),
        (1.10, (1500.0, 1500.0), False),
        (1.50, (1500.0, 1650.0), False),
        (1.10, (1650.0, 1500.0), False),
        (1.10, (None, 1650.0), False),
        (1.00, (1500.0, 1650.0), False),
    ],
    ids=["all of it the clock's", "equal clocks", "part of it", "in spite of it", "unknown clock", "no gain"],
)
def test_a_gain_must_hold_in_cycles(ratio: float, clocks: tuple[float | None, float | None], faster: bool) -> None:
    """It is the card's where rates are equal for the same cycles, and it clocked higher for the faster side."""
    said = found_in(rounds_of(ratio, clocks))
    assert (said is not None) == faster
    if said is not None:
        assert said.startswith(f"{RAN_FASTER}: 1,670 MHz for it and 1,520 MHz for the baseline")


def test_only_what_goes_with_the_rate_is_asked_for_cycles() -> None:
    """For energy a clock that is higher is no advantage."""
    rounds = rounds_of(1.10, (1500.0, 1650.0))
    assert found_in(rounds) is not None
    assert found_in(rounds, SAMPLES_PER_JOULE) is None


def test_a_card_in_a_hot_rack_does_not_widen_a_gain_by_itself() -> None:
    """Clocks that differ between rounds, but not between sides, leave the gain as it is."""
    assert found_in([*rounds_of(1.05, (1900.0, 1900.0)), *rounds_of(1.05, (1400.0, 1400.0))]) is None


def test_a_proof_on_a_card_that_throttled_says_so() -> None:
    """How many rounds, what held the clocks down, and how hot it was; a power cap under full load is normal."""

    def side(*limits: str, celsius: float = 60.0) -> Measurement:
        telemetry = TelemetrySummary(seconds=8.0, clock_limits=limits, temperature_celsius=celsius)
        return make_measurement(1000, telemetry=telemetry)

    capped, hot = side("sw_power_cap"), side("hw_thermal_slowdown", "sw_power_cap", celsius=91.0)
    assert Rounds([{BEFORE: capped, AFTER: capped}] * 3).throttled(BEFORE, AFTER) is None
    assert Rounds([{BEFORE: make_measurement(1000), AFTER: make_measurement(1000)}]).throttled(BEFORE, AFTER) is None
    sides = ((capped, hot), (hot, capped), (capped, capped))
    said = Rounds([{BEFORE: before, AFTER: after} for before, after in sides]).throttled(BEFORE, AFTER)
    assert said is not None
    assert "in 2 of 3 rounds of the proof (hw_thermal_slowdown, at up to 91 °C)" in said
