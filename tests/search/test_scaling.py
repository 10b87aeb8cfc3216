"""How many ranks pay: the answer on fewer of them, with the same effective batch."""

from __future__ import annotations

import pytest

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Outcome, Point
from autotune.measuring.statistics import Interval
from autotune.results.result import Scaling, ScalingStep, Side
from autotune.results.summary import scaling_text
from autotune.search.costs import Costs
from autotune.search.scaling import fewer, scaling, with_ranks
from autotune.search.stopping import Budget
from autotune.search.trials import Trial
from benchmarks.surfaces.playback import VirtualClock
from tests.conftest import RunnerOf
from tests.factories import make_measurement, make_result
from tests.search.surface import SurfaceRunner, example_rate

PLAN = BurstPlan(measure_seconds=0.4)


def step(ranks: int, ratio: float | None, speed: float | None, *, sure: float = 0.05) -> ScalingStep:
    """A step whose ratio is known to a share."""
    interval = Interval(ratio * (1 - sure), ratio * (1 + sure)) if ratio is not None else None
    outcome = Outcome.OK if speed is not None else Outcome.OOM
    return ScalingStep(ranks=ranks, outcome=outcome, ratio=ratio, ci95=interval, speed=speed)


def on_ranks(ranks: int) -> Side:
    """An answer that trains on several ranks."""
    return Side(config=TrainConfig(ranks=ranks), measurement=make_measurement())


@pytest.mark.parametrize(
    ("ranks", "batch_size", "accumulation_steps"), [(1, 16, 8), (2, 16, 4), (8, 16, 1), (16, 8, 1)]
)
def test_all_ranks_together_take_the_same_samples_in_a_step(
    ranks: int, batch_size: int, accumulation_steps: int
) -> None:
    """What fewer ranks cannot hold at once they accumulate; what more need less of is smaller."""
    found = with_ranks(TrainConfig(ranks=4, batch_size=16, accumulation_steps=2), ranks)
    assert found == TrainConfig(ranks=ranks, batch_size=batch_size, accumulation_steps=accumulation_steps)


@pytest.mark.parametrize(("ranks", "threads", "workers"), [(1, 4, 12), (2, 2, 6), (8, 1, 1)])
def test_fewer_ranks_share_the_cpus_of_all(ranks: int, threads: int, workers: int) -> None:
    """One rank with a quarter of the machine would make four seem to pay wherever the CPUs are what limits."""
    found = with_ranks(TrainConfig(ranks=4, batch_size=16, num_threads=1, num_workers=3), ranks)
    assert found is not None
    assert (found.num_threads, found.num_workers) == (threads, workers)


def test_what_is_left_to_torch_stays_so() -> None:
    """Threads by the rank's part of the CPUs, and no workers."""
    found = with_ranks(TrainConfig(ranks=4, batch_size=16), 1)
    assert found is not None
    assert (found.num_threads, found.num_workers) == (None, 0)


def test_powers_of_two_come_before_the_answers_own_number() -> None:
    """What cannot be shared out evenly is passed over."""
    assert [config.ranks for config in fewer(TrainConfig(ranks=6, batch_size=2))] == [1, 2, 4, 6]
    assert [config.ranks for config in fewer(TrainConfig(ranks=3, batch_size=3))] == [1, 3]


def test_two_real_ranks_are_compared_with_one(runner_of: RunnerOf) -> None:
    """A pair of one and two processes, each with all of the CPUs; the speed is that of the pair."""
    answer = Point(config=TrainConfig(ranks=2, batch_size=8))
    found = scaling(answer, runner_of("tests.workloads.shared:build"), PLAN, Budget(120), Costs([], PLAN))
    assert found is not None
    assert [(one.ranks, one.outcome) for one in found.steps] == [(1, Outcome.OK), (2, Outcome.OK)]
    assert found.steps[0].speed == 1.0
    assert found.steps[1].speed == found.steps[1].ratio


def test_ranks_that_start_slowly_have_time_to_start() -> None:
    """A burst of the answer took a minute, so fewer ranks may take it as well."""
    clock, answer = VirtualClock(), Point(config=TrainConfig(ranks=2, batch_size=8))
    runner = SurfaceRunner(clock, example_rate, cost=60.0)
    costs = Costs([Trial(runner.run(answer, PLAN, 100.0), "", "")], PLAN)
    found = scaling(answer, runner, PLAN, Budget(600, clock=clock), costs)
    assert found is not None
    assert [one.outcome for one in found.steps] == [Outcome.OK, Outcome.OK]


def test_the_answer_tells_speed_and_efficiency_and_how_many_pay() -> None:
    """Four ranks that are no faster than two beyond doubt are not worth their devices."""
    steps = (step(1, None, 1.0), step(2, 1.8, 1.8), step(4, 1.02, 1.84))
    told = scaling_text(make_result(scaling=Scaling(steps=steps), best=on_ranks(4)))
    assert told == (
        "speed by ranks, and efficiency of each: 1: 1.000× (100 %), 2: 1.80× (90 %), 4: 1.84× (46 %); "
        "more than 2 bring no certain gain"
    )


@pytest.mark.parametrize(
    ("last", "ending"),
    [((), "were not measured"), ((step(4, None, None),), "ended as oom")],
    ids=["the time was up", "it failed"],
)
def test_no_gain_is_said_of_a_number_of_ranks_that_gave_no_figure(last: tuple[ScalingStep, ...], ending: str) -> None:
    """Whether it brings one is unknown."""
    steps = (step(1, None, 1.0), step(2, 1.8, 1.8), *last)
    told = scaling_text(make_result(scaling=Scaling(steps=steps), best=on_ranks(4)))
    assert told == f"speed by ranks, and efficiency of each: 1: 1.000× (100 %), 2: 1.80× (90 %); 4 {ending}"


def test_more_ranks_pay_only_where_they_beat_fewer() -> None:
    """Faster than two, which were slower than one, is not yet faster than one."""
    assert Scaling(steps=(step(1, None, 1.0), step(2, 0.8, 0.8), step(4, 1.15, 0.92))).paying == 1


def test_a_number_of_ranks_that_did_not_train_is_left_out() -> None:
    """One device may not hold what two do."""
    found = Scaling(steps=(step(1, None, None), step(2, None, 1.0), step(4, 1.9, 1.9)))
    assert [found.efficiency(one) for one in found.trained] == pytest.approx([1.0, 0.95])
    assert found.paying == 4
    assert scaling_text(make_result()) is None
