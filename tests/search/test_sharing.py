"""A study that two machines share: no trial twice, one confirmation, and the same answer for both."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from autotune.errors import UsageError
from autotune.knobs import Choices, Space
from autotune.measuring import Outcome
from autotune.results.result import CONFIRM
from autotune.search import sharing
from autotune.search.sharing import Shared
from autotune.search.storage import open_study
from autotune.search.trials import TrialLog
from tests.factories import make_burst
from tests.processes import budget, run
from tests.search.surface import make_space

TINY = "tests.workloads.tiny:build"


def opened(folder: Path, **changes: object) -> optuna.Study:
    """A study in a database that several machines reach."""
    attributes = {"fingerprint": "f", **changes}
    return open_study(
        name="ours", storage=f"sqlite:///{folder}/trials.db", journal=folder / "unused.journal", sampler="random",
        seed=0, attributes=attributes, resume=False, join=True,
    )  # fmt: skip


def machine(folder: Path) -> TrialLog:
    """One machine's view."""
    study = opened(folder)
    return TrialLog(study, make_space(), others=Shared(study))


def ran(log: TrialLog, rate: float, **knobs: object) -> None:
    """A burst that a machine runs."""
    log.record(make_burst(rate, **knobs), "s", "r")  # type: ignore[arg-type]


def test_what_one_machine_has_run_the_other_knows(tmp_path: Path) -> None:
    """Its bursts, and who leads; each of its own bursts is there once."""
    first, second = machine(tmp_path), machine(tmp_path)
    ran(first, 1000.0, batch_size=32)
    second.sync()
    ran(second, 900.0, batch_size=16)
    first.sync()
    for log in (first, second):
        assert [trial.burst.point.config.batch_size for trial in log.trials] == [32, 16]
        assert log.incumbent() is not None
    assert [trial.resumed for trial in first.trials] == [False, True]


def test_what_one_machine_is_running_the_other_leaves_alone(tmp_path: Path) -> None:
    """Until it has ended; by then it is known."""
    first, second = machine(tmp_path), machine(tmp_path)
    burst = make_burst(1000.0, batch_size=16)
    opened_trial = first.ask(burst.point)
    second.sync()
    assert second.elsewhere(burst.point) == "another machine is trying it"
    assert second.elsewhere(make_burst(1.0, batch_size=8).point) is None
    assert first.elsewhere(burst.point) is None
    first.finish(opened_trial, "s", "r", burst, None)
    second.sync()
    assert second.elsewhere(burst.point) is None
    assert [trial.burst.point for trial in second.trials] == [burst.point]


def test_of_two_that_take_a_point_at_once_the_first_runs_it(tmp_path: Path) -> None:
    """Neither could know of the other; the point is free again when the first has withdrawn it."""
    first, second = machine(tmp_path), machine(tmp_path)
    point = make_burst(1000.0, batch_size=16).point
    taken = first.take(point)
    assert taken is not None
    assert second.elsewhere(point) is None  # it has not looked since
    assert second.take(point) is None
    assert second.elsewhere(point) is not None
    first.withdraw(taken)
    assert second.take(point) is not None


def test_a_baseline_that_runs_elsewhere_keeps_no_value_of_an_argument_from_running(tmp_path: Path) -> None:
    """It leaves the argument to build(), whose default is not known."""
    space, studies = make_space(explored={"width": [32, 64]}), [opened(tmp_path), opened(tmp_path)]
    first, second = (TrialLog(study, space, others=Shared(study)) for study in studies)
    first.ask(make_burst(1000.0, batch_size=64).point)
    second.sync()
    assert second.elsewhere(make_burst(1000.0, batch_size=64).point) is not None
    assert second.elsewhere(make_burst(1000.0, batch_size=64, parameters={"width": 32}).point) is None


def test_one_machine_begins(tmp_path: Path) -> None:
    """The other one waits for its first burst, and runs none itself."""
    first, second = machine(tmp_path), machine(tmp_path)
    first.await_first(lambda: True)
    waiting = threading.Thread(target=lambda: second.await_first(lambda: True))
    waiting.start()
    ran(first, 1000.0, batch_size=32)
    waiting.join(30)
    assert [trial.burst.point.config.batch_size for trial in second.trials] == [32]


def test_one_machine_confirms_and_the_other_waits_for_its_rounds(tmp_path: Path) -> None:
    """The rounds are in both logs in the end."""
    first, second = machine(tmp_path), machine(tmp_path)
    assert first.may_confirm(lambda: True)
    found: list[bool] = []
    waiting = threading.Thread(target=lambda: found.append(second.may_confirm(lambda: True)))
    waiting.start()
    first.record(make_burst(1000.0, batch_size=32), CONFIRM, "r", round_number=0)
    assert waiting.is_alive()
    first.confirmed()
    waiting.join(30)
    assert found == [False]
    assert [trial.round for trial in second.trials] == [0]


def test_a_machine_that_is_gone_is_not_waited_for_beyond_the_time_for_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who can wait no longer, and hears nothing, confirms by itself."""
    monkeypatch.setattr(sharing, "ALIVE_SECONDS", 0.0)
    first, second = machine(tmp_path), machine(tmp_path)
    assert first.may_confirm(lambda: True)
    left = iter([True, True, False])
    assert second.may_confirm(lambda: next(left))


def test_a_machine_that_claims_to_begin_and_is_gone_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one begins, and says once that it has waited."""
    monkeypatch.setattr(sharing, "BEGINNING_SECONDS", 1.0)
    told: list[str] = []
    study = opened(tmp_path)
    gone, other = Shared(opened(tmp_path)), Shared(study, note=told.append)
    assert gone.begins()
    TrialLog(study, make_space(), others=other).await_first(lambda: True)
    assert study.user_attrs["beginning"].startswith(other._name)
    assert told == ["another machine of this study runs the baseline; this one waits for it"]


def test_a_machine_that_begins_is_waited_for_while_its_trial_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the first burst takes: its claim alone would have been taken over."""
    monkeypatch.setattr(sharing, "BEGINNING_SECONDS", 0.0)
    first, second = machine(tmp_path), Shared(opened(tmp_path))
    first.await_first(lambda: True)
    first.ask(make_burst(1000.0, batch_size=32).point)
    second.arrived()
    assert not second.begins()


def test_a_machine_that_is_gone_while_it_confirms_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing new has come for long, another one confirms, though there is time to wait."""
    monkeypatch.setattr(sharing, "STALE_SECONDS", 1.0)
    first, second = machine(tmp_path), machine(tmp_path)
    assert first.may_confirm(lambda: True)
    assert second.may_confirm(lambda: True)


def test_an_open_trial_is_stale_by_this_machines_own_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another host's clock may be an hour ahead, or behind."""
    study = opened(tmp_path)
    second = Shared(opened(tmp_path))
    study.add_trial(optuna.trial.create_trial(state=optuna.trial.TrialState.RUNNING))
    (trial,) = study.get_trials()
    assert trial.datetime_start is not None
    second.arrived()
    assert second.is_under_way({})
    monkeypatch.setattr(sharing, "STALE_SECONDS", 0.0)
    second.arrived()
    assert not second.is_under_way({})


def with_modes(*modes: str) -> Space:
    """A space that offers these ways to compile besides none."""
    space = make_space()
    return replace(space, choices={**space.choices, "compile_mode": Choices((None, *modes), "a test's")})


def test_a_machine_with_other_choices_draws_by_those_of_the_study(tmp_path: Path) -> None:
    """A longer budget offers more; what the other one offers alone is not run here, and all of it is stored."""
    notes: list[str] = []
    studies = [opened(tmp_path), opened(tmp_path)]
    first = TrialLog(studies[0], with_modes("default", "reduce-overhead"), others=Shared(studies[0]))
    second = TrialLog(studies[1], with_modes("blocks"), notes.append, others=Shared(studies[1]))
    ran(first, 1000.0, batch_size=32)
    second.sync()
    ran(second, 900.0, batch_size=32, compile_mode="blocks")
    proposed = second.propose(lambda _: None, 50)
    assert proposed is not None
    assert proposed[1].config.compile_mode is None
    (note,) = notes
    assert note.startswith("the study was begun with other choices of compile_mode: ")
    first.sync()
    assert [trial.burst.point.config.compile_mode for trial in first.trials] == [None, "blocks"]


def test_what_another_machines_budget_cut_off_is_not_known_here(tmp_path: Path) -> None:
    """It may fit into this one's."""
    first, second = machine(tmp_path), machine(tmp_path)
    first.record(make_burst(None, outcome=Outcome.TIMEOUT, batch_size=32), "s", "r")
    second.sync()
    assert (len(first.trials), second.trials) == (1, [])


def test_a_study_of_another_workload_cannot_be_joined(tmp_path: Path) -> None:
    """Its trials would be compared with what they are not."""
    opened(tmp_path)
    with pytest.raises(UsageError, match=r"--join: the study ours .* differs"):
        opened(tmp_path, fingerprint="g")


@pytest.mark.slow
def test_two_commands_share_a_study(tmp_path: Path) -> None:
    """Two processes with a budget each: one confirmation, one answer, and no config tried by both at once."""
    from autotune.results.result import read_result

    storage = f"sqlite:///{tmp_path}/shared.db"
    common = (
        f"--model {TINY} --budget {budget(25)} --storage {storage} --join ours --only precision,num_threads".split()
    )
    folders = [tmp_path / "a", tmp_path / "b"]
    outs = [folder / "result.json" for folder in folders]
    finished: list[object] = []

    def tune(out: Path) -> None:
        finished.append(run([*common, "--out", str(out)], out.parent))

    for folder in folders:
        folder.mkdir()
    threads = [threading.Thread(target=tune, args=(out,)) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.status for one in finished] == [0, 0], [one.err for one in finished]  # type: ignore[attr-defined]
    results = [read_result(out) for out in outs]
    assert results[0].best.config == results[1].best.config
    assert results[0].speedup == results[1].speedup
    (study,) = optuna.get_all_study_summaries(storage)
    trials = optuna.load_study(study_name=study.study_name, storage=storage).get_trials(deepcopy=False)
    searched = [trial for trial in trials if "round" not in trial.user_attrs and "burst" in trial.user_attrs]
    for one, other in itertools.combinations(searched, 2):  # a point may play again, but not on both at once
        if one.params == other.params:
            assert one.datetime_complete is not None
            assert other.datetime_start is not None
            assert one.datetime_complete <= other.datetime_start
