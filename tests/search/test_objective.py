"""The objective is a seam: another one finds another winner, in the very same search."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from autotune.bursts.turns.duet import LEAST_TURNS
from autotune.errors import UsageError
from autotune.knobs.config import TrainConfig
from autotune.measuring import objective as objectives
from autotune.measuring.objective import SAMPLES_PER_JOULE, SAMPLES_PER_SECOND, Objective, objective_named
from autotune.measuring.ratios import block_error
from autotune.measuring.records import Measurement
from autotune.results.summary import figures, verdict
from autotune.search.driver import Search
from autotune.search.stopping import plan_for, round_plan
from autotune.search.storage import open_study
from autotune.search.trials import TrialLog
from autotune.sessions.tuning_result import judge, trial_record
from tests.factories import make_burst, make_measurement, make_result
from tests.search.surface import make_search, make_space


def per_gigabyte(measured: Measurement) -> float | None:
    """Samples per second and gigabyte."""
    taken = measured.device_memory_bytes
    return measured.samples_per_second / (taken / 1e9) if taken else None


FRUGAL = Objective("samples_per_gigabyte", "samples/s/GB", per_gigabyte, lambda score: f"{score:.3g} samples/s/GB")


def rate(config: TrainConfig) -> float:
    """bf16 doubles it; each worker adds a fifth."""
    return 1000.0 * (2.0 if config.precision == "bf16" else 1.0) * (1 + 0.2 * config.num_workers)


def taken(config: TrainConfig) -> float:
    """Each worker takes as much memory as all of the rest."""
    return 1e9 * (1 + config.num_workers)


def searched(objective: Objective) -> Search:
    """A search that has ended."""
    space = make_space(only=("precision", "num_workers"))
    search, _ = make_search(rate, budget_seconds=200, space=space, bytes_of=taken, objective=objective)
    search.run()
    return search


def test_another_objective_has_another_winner() -> None:
    """The fastest takes all workers; what trains most for its memory takes none, and both are confirmed."""
    fast, frugal = judge(searched(SAMPLES_PER_SECOND), "budget"), judge(searched(FRUGAL), "budget")
    assert fast[0].config.precision == frugal[0].config.precision == "bf16"
    assert fast[0].config.num_workers > frugal[0].config.num_workers == 0
    assert fast[1] is not None
    assert frugal[1] is not None
    assert frugal[1].ratio == pytest.approx(2.0, rel=0.05)


def test_a_share_of_the_fastest_rate_is_kept_where_that_is_asked_for() -> None:
    """What trains most for its memory takes no worker; of what is nearly as fast as the fastest it takes some."""

    def slightly_faster(config: TrainConfig) -> float:
        return 1000.0 * (2.0 if config.precision == "bf16" else 1.0) * (1 + 0.1 * config.num_workers)

    answers = []
    for at_least in (None, 0.95):
        space = make_space(only=("precision", "num_workers"))
        search, _ = make_search(
            slightly_faster,
            budget_seconds=200,
            space=space,
            bytes_of=lambda config: 1e9 * (1 + 0.15 * config.num_workers),
            objective=FRUGAL,
            at_least=at_least,
        )
        search.run()
        fastest = max(trial.burst.rate or 0.0 for trial in search.log.trials if trial.round is None)
        answers.append((judge(search, "budget")[0].config, fastest))
    (frugal, _), (fast, rate_of_fastest) = answers
    assert frugal.num_workers == 0 < fast.num_workers
    assert slightly_faster(fast) >= 0.95 * 0.98 * rate_of_fastest


def test_the_speedup_is_the_scores_ratio_not_the_rates() -> None:
    """A config as fast as the baseline that takes half the memory scores twice as much."""
    before, after = (make_measurement(1000.0, device_memory_bytes=size) for size in (2 * 10**9, 10**9))
    assert FRUGAL.interval(after).low == pytest.approx(2 * FRUGAL.interval(before).low)
    assert SAMPLES_PER_SECOND.score(before) == before.samples_per_second


def test_a_slow_config_is_not_released_early_where_it_may_score_higher() -> None:
    """Duets are decided early only where the rate is what is maximised."""
    plans = {}
    for objective in (SAMPLES_PER_SECOND, FRUGAL):
        search, surface = make_search(rate, budget_seconds=60, bytes_of=taken, objective=objective)
        seen = plans.setdefault(objective.name, [])
        run = surface.run

        def spy(point, plan, deadline, run=run, seen=seen):  # type: ignore[no-untyped-def]
            seen.append(plan.fastest_wins)
            return run(point, plan, deadline)

        surface.run = spy  # type: ignore[method-assign]
        search.run()
    assert all(plans[SAMPLES_PER_SECOND.name])
    assert not any(plans[FRUGAL.name])


def test_a_burst_without_the_figure_is_not_ranked() -> None:
    """Where memory could not be read there is no score, which is not the same as a low one."""
    search, _ = make_search(rate, space=make_space(), objective=FRUGAL)
    known, unknown = make_burst(1000.0), make_burst(5000.0)
    assert unknown.measurement is not None
    unread = unknown.model_copy(
        update={"measurement": unknown.measurement.model_copy(update={"device_memory_bytes": None})}
    )
    for burst in (known, unread):
        search.log.record(burst, "s", "r")
    best = search.log.incumbent()
    assert best is not None
    assert best.burst == known


def test_a_result_tells_the_score_beside_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures, trials and the headline are those of the objective that the file names."""
    monkeypatch.setattr(objectives, "OBJECTIVES", (SAMPLES_PER_SECOND, FRUGAL))
    result = make_result()
    constraints = result.constraints.model_copy(update={"objective": FRUGAL.name})
    search = searched(FRUGAL)
    trials = tuple(trial_record(trial, search.baseline) for trial in search.log.trials)
    frugal = result.model_copy(update={"constraints": constraints, "trials": trials})
    assert [row.label for row in figures(frugal)][:2] == ["samples per gigabyte", "rate"]
    assert frugal.score_of(trials[0]) == pytest.approx(1000.0, rel=0.1)
    assert frugal.score_of(frugal.best) == FRUGAL.score(frugal.best.measurement)  # type: ignore[arg-type]
    assert verdict(frugal).confirmed
    assert "samples per gigabyte" not in [row.label for row in figures(result)]


def with_joules(watts: list[float]) -> Measurement:
    """Blocks of a thousand samples a second, each at its own power."""
    plain = make_measurement(1000.0, spread=0, blocks=len(watts))
    blocks = [
        block.model_copy(update={"joules": power * block.seconds})
        for block, power in zip(plain.blocks, watts, strict=True)
    ]
    return plain.model_copy(update={"blocks": tuple(blocks)})


def test_samples_per_joule_are_those_of_the_blocks_that_count() -> None:
    """Twice the power at one rate is half the score; power that varies widens the interval, and the rate's not."""
    calm, hungry, restless = with_joules([100.0] * 8), with_joules([200.0] * 8), with_joules([50.0, 150.0] * 4)
    assert SAMPLES_PER_JOULE.score(calm) == pytest.approx(10.0)
    assert SAMPLES_PER_JOULE.score(hungry) == pytest.approx(5.0)
    low, high = SAMPLES_PER_JOULE.interval(restless)
    assert low < 8
    assert high > 12
    assert block_error(calm, restless) == pytest.approx(0, abs=1e-9)
    assert (block_error(calm, restless, SAMPLES_PER_JOULE.costs) or 0) > 0.1


def test_turns_are_long_enough_for_the_counter() -> None:
    """In challenges and rounds alike, however short the budget."""
    for plan in (plan_for(SAMPLES_PER_JOULE), round_plan(plan_for(SAMPLES_PER_JOULE), 18.0)):
        assert plan.turn_seconds == SAMPLES_PER_JOULE.turn_seconds
        assert plan.measure_seconds >= LEAST_TURNS * (plan.turn_seconds or math.inf)


def test_a_machine_without_a_counter_has_no_samples_per_joule() -> None:
    """None, which is not ranked, rather than a low score."""
    assert SAMPLES_PER_JOULE.score(make_measurement(1000.0)) is None


def test_an_unknown_objective_is_one_sentence() -> None:
    """A file of a newer version may name one."""
    with pytest.raises(
        UsageError, match=r"expected one of the objectives samples_per_second, .*, got 'samples_per_day'"
    ):
        objective_named("samples_per_day")


def test_a_study_of_another_objective_is_not_resumed(tmp_path: Path) -> None:
    """Its trials were judged by something else."""
    journal = tmp_path / "run.journal"

    def study(attributes: dict[str, str], *, resume: bool) -> str:
        return open_study(
            name="s", storage=None, journal=journal, sampler="tpe", seed=0, attributes={"target": "t"} | attributes,
            resume=resume,
        ).study_name  # fmt: skip

    study({"objective": "samples_per_second"}, resume=False)
    assert study({"objective": "samples_per_second"}, resume=True) == "s"
    with pytest.raises(UsageError, match=r"maximises samples_per_gigabyte.* got one that maximises samples_per_second"):
        study({"objective": "samples_per_gigabyte"}, resume=True)
    with pytest.raises(UsageError, match="expected an earlier run of this workload"):
        study({"target": "other", "objective": "samples_per_second"}, resume=True)


def test_a_resumed_study_is_judged_by_its_objective() -> None:
    """What an earlier run measured is scored as what follows is."""
    search = searched(FRUGAL)
    resumed = TrialLog(search.log.study, search.space, objective=FRUGAL)
    assert [trial.score for trial in resumed.trials] == [trial.score for trial in search.log.trials]


@pytest.mark.parametrize(("name", "soon"), [("samples_per_second", True), ("samples_per_joule", False)])
def test_duets_end_as_soon_as_they_are_decided_where_the_faster_is_the_better(name: str, soon: bool) -> None:
    """A joule may be better spent by the slower."""
    assert plan_for(objective_named(name)).fastest_wins is soon
