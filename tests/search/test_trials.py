"""Bursts as trials: what the sampler may draw, what it is told, and what storage keeps."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution

from autotune.errors import UsageError
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Burst, Outcome, Point
from autotune.measuring.speedup import PROCESS_SPREAD
from autotune.measuring.statistics import Interval
from autotune.search.distributions import make_distributions, nearest
from autotune.search.model import Design
from autotune.search.ranking import standings
from autotune.search.storage import open_study
from autotune.search.trials import Trial, TrialLog
from tests.factories import make_burst, make_pair
from tests.search.surface import example_rate, make_search, make_space


def test_scales_are_numbers_and_the_rest_are_categories() -> None:
    """Batch sizes lie on a logarithmic scale; a knob that may be None has no scale."""
    distributions = make_distributions(make_space())
    assert distributions["batch_size"] == IntDistribution(4, 64, log=True)
    assert isinstance(distributions["num_threads"], CategoricalDistribution)
    assert isinstance(distributions["precision"], CategoricalDistribution)


def test_every_value_on_offer_can_be_drawn() -> None:
    """The sampler reaches all values of all knobs."""
    search, _ = make_search(example_rate, sampler="random")
    space, drawn = search.space, {knob: set() for knob in search.space.choices}  # type: ignore[var-annotated]
    for _ in range(400):
        proposed = search.log.propose(lambda _: None, tries=1)
        if proposed is not None:
            asked, point = proposed
            search.log.finish(asked, "s", "", Burst(point=point, outcome=Outcome.CRASHED, seconds=1), None)
            for knob, values in drawn.items():
                values.add(getattr(point.config, knob))
    for knob, choices in space.choices.items():
        assert set(choices.values) <= drawn[knob], knob


@pytest.mark.parametrize(("value", "expected"), [(1, 4), (5, 4), (6, 8), (100, 64)])
def test_a_drawn_number_is_moved_to_the_nearest_choice(value: int, expected: int) -> None:
    """On a logarithmic scale six is nearer to eight than to four."""
    assert nearest(value, (4, 8, 16, 32, 64), logarithmic=True) == expected


BASELINE, FIRST, SECOND = make_burst(1000.0), make_burst(900.0, num_workers=1), make_burst(5000.0, num_workers=2)


@pytest.mark.parametrize(("ratio", "promoted"), [(1.1, True), (1.015, True), (0.97, False)])
def test_the_incumbent_is_what_pairs_show(ratio: float, promoted: bool) -> None:
    """Whatever the machine's speed was at the time of each burst."""
    trials = [Trial(BASELINE, "s", ""), Trial(FIRST, "s", "", pair=make_pair(BASELINE, ratio))]
    best = standings(trials, Design(make_space()))[0]
    assert best.point == (FIRST if promoted else BASELINE).point


def test_scores_are_chained_to_the_first() -> None:
    """A machine that has become five times as fast meanwhile makes no config faster."""
    search, _ = make_search(example_rate)
    for burst, beside in ((BASELINE, None), (FIRST, make_pair(BASELINE, 1.2)), (SECOND, make_pair(FIRST, 1.1))):
        search.log.record(burst, "s", "", beside)
    scores = [trial.score or 0.0 for trial in search.log.trials]
    assert scores == pytest.approx([scores[0], 1.2 * scores[0], 1.32 * scores[0]])


def test_scores_are_not_chained_to_a_round() -> None:
    """The machine's speed in the round that compares allocators is not that of the first burst."""
    search, _ = make_search(example_rate)
    search.log.record(BASELINE, "s", "")
    search.log.record(make_burst(2000.0), "s", "", round_number=0)
    trial = search.log.record(FIRST, "s", "", make_pair(BASELINE, 1.2))
    assert trial.score == pytest.approx(1.2 * (BASELINE.rate or 0.0))


def test_the_luckiest_is_not_the_incumbent() -> None:
    """Of two that play the same partner, the one whose ratio is certain stands before the one with three blocks."""
    lucky = make_burst(1500.0, optimizer_impl="fused")
    wide = make_pair(BASELINE, 1.4).model_copy(update={"ci95": Interval(0.7, 2.8)})
    played = [(BASELINE, None), (lucky, wide), (FIRST, make_pair(BASELINE, 1.3))]
    trials = [Trial(burst, "s", "", pair=beside) for burst, beside in played]
    found = standings(trials, Design(make_space()))
    assert [standing.point for standing in found] == [FIRST.point, lucky.point, BASELINE.point]
    assert found[0].error == 0
    assert found[1].error > found[2].error > PROCESS_SPREAD


def test_pairs_are_kept_with_their_trials() -> None:
    """Partner, ratio, interval and the chained score are known when the study is resumed."""
    search, _ = make_search(example_rate)
    beside = make_pair(BASELINE, 1.2)
    search.log.record(BASELINE, "s", "")
    search.log.record(FIRST, "s", "", beside)
    resumed = TrialLog(search.log.study, search.space)
    assert resumed.trials[1].pair == beside
    assert resumed.trials[1].score == search.log.trials[1].score == pytest.approx(1.2 * (BASELINE.rate or 0.0))


def test_what_a_budget_cut_off_is_tried_again_when_it_is_resumed() -> None:
    """It says nothing of a longer one."""
    search, _ = make_search(example_rate)
    late = FIRST.model_copy(update={"outcome": Outcome.TIMEOUT, "measurement": None, "reason": "too slow"})
    for burst in (BASELINE, late):
        search.log.record(burst, "s", "")
    assert [trial.burst.point for trial in TrialLog(search.log.study, search.space).trials] == [BASELINE.point]


def test_a_failure_is_told_as_a_violated_constraint() -> None:
    """Optuna's own tools see an out-of-memory trial as infeasible, not as a fast one."""
    search, _ = make_search(example_rate, oom_above=1)
    search.run()
    frozen = search.log.study.trials[0]
    assert frozen.value == 0.0
    assert frozen.constraints["memory"] > 0
    assert frozen.constraints["runs"] <= 0


def test_a_killed_runs_open_trial_is_closed() -> None:
    """A trial that was running when its process died would repel the sampler for ever."""
    space = make_space()
    study = optuna.create_study(direction="maximize")
    study.ask(make_distributions(space))
    TrialLog(study, space)
    assert [trial.state.name for trial in study.trials] == ["FAIL"]


def test_a_point_outside_the_space_is_kept_all_the_same() -> None:
    """A baseline that pins exclude is a trial without parameters."""
    space = make_space(pinned={"precision": "bf16"})
    log = TrialLog(optuna.create_study(direction="maximize"), space)
    point = Point(config=TrainConfig(batch_size=7))
    log.record(Burst(point=point, outcome=Outcome.CRASHED, seconds=1), "baseline", "")
    assert [trial.burst.point for trial in log.trials] == [point]


def test_an_argument_that_is_left_to_build_has_no_value_in_the_study() -> None:
    """Its default is not known: the sampler would learn about one of the values to explore."""
    log = TrialLog(optuna.create_study(direction="maximize"), make_space(explored={"width": [32, 64]}))
    log.record(make_burst(1000.0, batch_size=64), "baseline", "")
    log.record(make_burst(1000.0, batch_size=64, parameters={"width": 32}), "s", "")
    left, named = (trial.params for trial in log.study.trials)
    assert named.pop("build.width") == 32
    assert named == left


def open_in(folder: Path, *, storage: str | None = None, resume: bool = False) -> optuna.Study:
    """A study of one workload in a folder."""
    return open_study(
        name=f"s{len(list(folder.iterdir()))}-{resume}",
        storage=storage,
        journal=folder / "run.journal",
        sampler="tpe",
        seed=0,
        attributes={"target": "a:b"},
        resume=resume,
    )


def test_resume_takes_the_newest_study(tmp_path: Path) -> None:
    """Of several runs the last is gone on with."""
    open_in(tmp_path)
    newest = open_in(tmp_path)
    assert open_in(tmp_path, resume=True).study_name == newest.study_name


def test_other_choices_than_before_lose_no_trial(tmp_path: Path) -> None:
    """With a longer budget more is on offer, and Optuna holds a study to the categories that it was begun with."""
    notes: list[str] = []
    first = TrialLog(open_in(tmp_path), make_space(unsound={("optimizer_impl", "fused"): "it is wrong here"}))
    first.record(BASELINE, "baseline", "")
    again = TrialLog(open_in(tmp_path, resume=True), make_space(), notes.append)
    assert again.propose(lambda _: None, tries=5) is not None
    again.record(FIRST, "s", "")
    known = TrialLog(open_in(tmp_path, resume=True), make_space()).trials
    assert [trial.burst.point for trial in known] == [BASELINE.point, FIRST.point]
    assert notes == []


def test_a_database_url_serves_as_storage(tmp_path: Path) -> None:
    """Trials can lie in a relational database, for Optuna's dashboard."""
    url = f"sqlite:///{tmp_path}/trials.db"
    study = open_in(tmp_path, storage=url)
    assert optuna.load_study(study_name=study.study_name, storage=url).user_attrs["target"] == "a:b"


def test_a_journal_that_is_no_journal_is_a_usage_error(tmp_path: Path) -> None:
    """A file of something else is told by its name, and left as it is."""
    (tmp_path / "run.journal").write_text("not a journal\n{}\n[1, 2]\n")
    with pytest.raises(UsageError, match=r"run\.journal"):
        open_in(tmp_path)


def test_the_lock_can_be_taken_again_after_its_holder_is_gone(tmp_path: Path) -> None:
    """A lock file that a killed run left behind blocks nobody."""
    (tmp_path / "run.journal.lock").touch()
    study = open_in(tmp_path)
    assert open_in(tmp_path, resume=True).study_name == study.study_name


@pytest.mark.parametrize("database", [False, True])
def test_text_that_is_no_unicode_can_be_stored_and_resumed(database: bool, tmp_path: Path) -> None:
    """A workload in a folder that was named in Latin-1, and errors that name it."""
    odd = "caf\udce9/train.py:build"
    folder = tmp_path / "caf\udce9"
    folder.mkdir()

    def opened(*, resume: bool) -> TrialLog:
        study = open_study(
            name="s", storage=f"sqlite:///{tmp_path}/trials.db" if database else None, journal=folder / "run.journal",
            sampler="tpe", seed=0, attributes={"target": odd}, resume=resume,
        )  # fmt: skip
        return TrialLog(study, make_space())

    point = Point(config=TrainConfig(), parameters={"path": odd})
    burst = Burst(point=point, outcome=Outcome.CRASHED, reason=odd, seconds=1)
    opened(resume=False).record(burst, "baseline", odd)
    assert [trial.burst for trial in opened(resume=True).trials] == [burst]
