"""Disturbed bursts run again, at most twice; a drifting machine is noticed and its figures are rescaled."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from autotune.bursts.protocol import BurstPlan
from autotune.commands.tuning_result import judge
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Block, Burst, Measurement, Outcome, Point
from autotune.measuring.telemetry_summary import TelemetrySummary
from autotune.search.disturbance import RepeatingRunner, anchor_due, drift_of
from autotune.search.stages import ANCHOR, BASELINE, SINGLE
from autotune.search.trials import Trial
from tests.search.surface import VirtualClock, example_rate, make_search

POINT = Point(config=TrainConfig())
QUIET = TelemetrySummary(seconds=1.0, foreign_cpu_fraction=0.01, idle_cpu_fraction=0.05)


def busy(share: float = 0.5) -> TelemetrySummary:
    """A machine whose CPUs others take a share of."""
    return TelemetrySummary(seconds=1.0, foreign_cpu_fraction=share, idle_cpu_fraction=0.0)


def burst(telemetry: TelemetrySummary | None, rate: float = 1000.0, outcome: Outcome = Outcome.OK) -> Burst:
    """A burst of two seconds with these telemetry."""
    blocks = tuple(Block(samples=100, seconds=100 / rate * (1 + 0.001 * i), data_wait_seconds=0) for i in range(8))
    measurement = Measurement(
        blocks=blocks, steady=True, start_seconds=0, build_seconds=0, warmup_seconds=0.5, telemetry=telemetry
    )
    ok = outcome is Outcome.OK
    return Burst(point=POINT, outcome=outcome, measurement=measurement if ok else None, seconds=2.0)


@dataclass
class Scripted:
    """A runner that plays a list of bursts, two virtual seconds each."""

    bursts: list[Burst]
    clock: VirtualClock
    count: int = 0

    def run(self, point: Point, plan: BurstPlan, deadline_seconds: float) -> Burst:
        """The next burst of the list."""
        self.clock.now += 2.0
        self.count += 1
        return self.bursts[self.count - 1]


@dataclass
class Stand:
    """A repeating runner over a script."""

    bursts: list[Burst]
    allowance_seconds: float = 100.0
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        clock = VirtualClock()
        self.script = Scripted(self.bursts, clock)
        self.runner = RepeatingRunner(
            self.script, self.notes.append, allowance_seconds=self.allowance_seconds, clock=clock
        )

    def run(self, deadline_seconds: float = 60.0) -> Burst:
        """One burst with its repeats."""
        return self.runner.run(POINT, BurstPlan(), deadline_seconds)


def test_an_undisturbed_burst_runs_once() -> None:
    """A quiet machine costs no repeat."""
    stand = Stand([burst(QUIET)])
    assert stand.run().repeats == 0
    assert stand.script.count == 1


def test_a_disturbed_burst_is_replaced_by_a_quiet_one() -> None:
    """The repeat that was not disturbed is kept, and the thrown-away one is counted."""
    stand = Stand([burst(busy(), rate=300), burst(QUIET, rate=1000)])
    kept = stand.run()
    assert kept.disturbance is None
    assert kept.repeats == 1
    assert kept.repeated_seconds > 0


def test_a_burst_is_repeated_at_most_twice_and_the_least_disturbed_is_kept() -> None:
    """Where all three are disturbed, the one with the least foreign load stands, marked."""
    stand = Stand([burst(busy(0.5)), burst(busy(0.2)), burst(busy(0.4)), burst(QUIET)])
    kept = stand.run()
    assert stand.script.count == 3
    assert "20%" in (kept.disturbance or "")


def test_no_repeat_beyond_the_deadline() -> None:
    """A repeat that could not end in time is not begun."""
    stand = Stand([burst(busy()), burst(QUIET)])
    assert stand.run(deadline_seconds=4.0).repeats == 0


def test_repeats_have_an_allowance() -> None:
    """When repeats have taken their share of the budget, disturbed bursts stand as they are, marked."""
    stand = Stand([burst(busy()), burst(QUIET), burst(busy())], allowance_seconds=3.0)
    assert stand.run().repeats == 1
    assert stand.run().disturbance is not None


def test_an_always_busy_machine_is_told_and_not_repeated_for_ever() -> None:
    """After two bursts in a row that stayed disturbed, the rest run once, until one is quiet again."""
    stand = Stand([burst(busy())] * 6 + [burst(busy())] + [burst(QUIET)] + [burst(busy()), burst(QUIET)])
    stand.run()
    stand.run()
    assert "machine is busy" in stand.notes[0]
    assert stand.run().repeats == 0
    assert stand.run().disturbance is None
    assert stand.run().repeats == 1


def test_a_failed_burst_is_not_repeated() -> None:
    """A crash says nothing about other load."""
    stand = Stand([burst(None, outcome=Outcome.CRASHED)])
    assert stand.run().outcome is Outcome.CRASHED
    assert stand.script.count == 1


@pytest.mark.parametrize(
    ("telemetry", "words"),
    [
        (busy(), "other processes took 50%"),
        (TelemetrySummary(seconds=1, stolen_cpu_fraction=0.2), "virtual machines"),
        (TelemetrySummary(seconds=1, foreign_gpu_fraction=0.3), "of the GPU"),
        (TelemetrySummary(seconds=1, clock_limits=("hw_thermal_slowdown", "sw_power_cap")), "hw_thermal_slowdown"),
        (TelemetrySummary(seconds=1, sm_clock_mhz=1900, sm_clock_min_mhz=1200), "dropped by 37%"),
    ],
)
def test_each_disturbance_is_named(telemetry: TelemetrySummary, words: str) -> None:
    """The cause stands in the mark."""
    assert words in (telemetry.disturbance or "")


@pytest.mark.parametrize(
    "telemetry",
    [
        QUIET,
        TelemetrySummary(seconds=1),
        TelemetrySummary(seconds=1, foreign_cpu_fraction=0.2, idle_cpu_fraction=0.6),
        TelemetrySummary(seconds=1, clock_limits=("sw_power_cap",)),
        TelemetrySummary(seconds=1, sm_clock_mhz=1900, sm_clock_min_mhz=1850),
    ],
)
def test_what_does_no_harm_is_no_disturbance(telemetry: TelemetrySummary) -> None:
    """Load that leaves CPUs over, a power cap under full load and small clock changes are normal."""
    assert telemetry.disturbance is None


def trial(rate: float, stage: str, *, resumed: bool = False) -> Trial:
    """A quiet trial of a stage."""
    return Trial(burst(QUIET, rate=rate), stage, "", resumed=resumed)


def test_a_small_change_of_the_anchor_is_no_drift() -> None:
    """Within 3 % nothing is rescaled."""
    assert drift_of([trial(1000, BASELINE), trial(1020, ANCHOR)]).factor == 1.0


def test_a_notable_change_rescales_and_a_large_one_marks_the_machine_noisy() -> None:
    """Above 3 % figures are rescaled by the anchor; above 10 % the intervals are widened too."""
    slower = drift_of([trial(1000, BASELINE), trial(940, ANCHOR), trial(950, ANCHOR)])
    assert slower.factor == pytest.approx(0.95, rel=0.01)
    assert not slower.noisy
    assert drift_of([trial(1000, BASELINE), trial(790, ANCHOR), trial(990, ANCHOR)]).noisy


def test_one_slow_process_is_no_drift() -> None:
    """A change that the next anchor does not show was a process's own; one above 20 % is believed at once."""
    assert drift_of([trial(1000, BASELINE), trial(900, ANCHOR)]).factor == 1.0
    assert drift_of([trial(1000, BASELINE), trial(900, ANCHOR), trial(1000, ANCHOR)]).factor == 1.0
    assert drift_of([trial(1000, BASELINE), trial(700, ANCHOR)]).factor == pytest.approx(0.7, rel=0.01)


def test_a_run_that_was_not_steady_shows_no_drift() -> None:
    """Its interval is of its own unrest: it says nothing about the machine."""
    unsteady = trial(700, BASELINE)
    measured = unsteady.burst.measurement
    assert measured is not None
    burst_ = unsteady.burst.model_copy(update={"measurement": measured.model_copy(update={"steady": False})})
    assert drift_of([Trial(burst_, BASELINE, ""), trial(1000, ANCHOR)]).factor == 1.0


def test_the_anchor_is_due_every_ten_bursts_and_after_a_resume() -> None:
    """The baseline runs again when ten other bursts have run, or when an earlier run's figures are taken over."""
    trials = [trial(1000, BASELINE), *(trial(1000, SINGLE) for _ in range(9))]
    assert not anchor_due(trials)
    assert anchor_due([*trials, trial(1000, SINGLE)])
    assert anchor_due([trial(1000, BASELINE, resumed=True), trial(1000, SINGLE, resumed=True)])


def test_a_rescaled_search_still_finds_the_best() -> None:
    """A machine that loses 30 % of its speed half-way does not make early figures look better than late ones."""
    search, surface = make_search(example_rate, budget_seconds=240)
    surface.rate = lambda config: example_rate(config) * (1.0 if surface.clock.now < 20 else 0.7)
    search.run()
    best, speedup, _ = judge(search)
    assert search.drift.noisy
    assert example_rate(best.config) >= 0.95 * max(example_rate(t.burst.point.config) for t in search.log.trials)
    assert speedup is not None
