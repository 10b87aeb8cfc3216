"""Does a result still hold? The verdict on rounds, and the command on a real workload."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from autotune.hardware import Hardware, probe_host
from autotune.knobs.config import TrainConfig
from autotune.measuring.progress import Progress
from autotune.measuring.records import Burst, Outcome, Point
from autotune.measuring.speedup import Speedup
from autotune.measuring.statistics import Interval
from autotune.results.check import Check
from autotune.results.files import write_document
from autotune.results.result import Result, Side
from autotune.results.trainings import trainings_path
from autotune.search.stopping import Budget
from autotune.sessions import checking
from autotune.sessions.checking import STATUS, by_trainings, check_result
from autotune.sessions.crossing import Place, judge_cross, run_in_turn
from tests.factories import make_gpu, make_hardware, make_measurement, make_result, make_software, note_line
from tests.inside import run_inside
from tests.pages import block
from tests.processes import ROOT, budget, run
from tests.spaces import make_facts

BEFORE, AFTER = TrainConfig(batch_size=32), TrainConfig(batch_size=32, precision="bf16")


def result_of(ratio: float | None = 1.5, **changes: Any) -> Result:
    """A result that claims a speed-up, or recommends its baseline."""
    best = AFTER if ratio is not None else BEFORE
    speedup = Speedup(ratio=ratio, ci95=Interval(0.97 * ratio, 1.03 * ratio), pairs=5) if ratio is not None else None
    fields: dict[str, Any] = {
        "baseline": Side(config=BEFORE, measurement=make_measurement(1000)),
        "best": Side(config=best, measurement=make_measurement(1000 * (ratio or 1))),
        "speedup": speedup,
    }
    return make_result(**fields | changes)


def rounds_of(ratio: float, count: int = 5) -> list[Any]:
    """Interleaved rounds in which the tuned side is faster by this ratio."""
    return [
        {
            Point(config=BEFORE): make_measurement(1000, seed=number),
            Point(config=AFTER): make_measurement(1000 * ratio, seed=100 + number),
        }
        for number in range(count)
    ]


def judged(result: Result, rounds: list[Any], failed: Sequence[Burst]) -> Check:
    """The verdict on rounds, and on bursts that failed."""
    place = Place(make_hardware(), "cpu", make_facts(), None)
    return checking.judge_check(result, "t:build", judge_cross(result, place, (rounds, [*failed])))


@pytest.mark.parametrize(("found", "verdict"), [(1.5, "holds"), (1.7, "holds"), (1.2, "drifted"), (0.8, "drifted")])
def test_the_verdict_follows_from_the_ratio(found: float, verdict: str) -> None:
    """A file that claims 1.5 ×."""
    check = judged(result_of(), rounds_of(found), [])
    assert check.verdict == verdict
    assert check.found is not None
    assert check.found.ratio == pytest.approx(found, rel=0.02)


@pytest.mark.parametrize(("objective", "word"), [("samples_per_second", "slower"), ("samples_per_joule", "worse")])
def test_a_loss_is_named_by_the_objective(objective: str, word: str) -> None:
    """More energy is not slower."""
    constraints = make_result().constraints.model_copy(update={"objective": objective})
    result = result_of(speedup=None, constraints=constraints)
    cross = judge_cross(
        result_of(speedup=None), Place(make_hardware(), "cpu", make_facts(), None), (rounds_of(0.8), [])
    )
    check = checking.judge_check(result, "t:build", cross)
    assert (check.verdict, check.reason) == ("drifted", f"the tuned config is {word} than the baseline here")


def test_a_side_that_hangs_each_time_no_longer_fits() -> None:
    """Not a round came of it."""
    burst = Burst(point=Point(config=AFTER), outcome=Outcome.TIMEOUT, reason="it hung", seconds=1.0)
    check = judged(result_of(), [], [burst])
    assert (check.verdict, check.reason) == ("no longer fits", "with the tuned config it ended as timeout: it hung")


@pytest.mark.parametrize("outcome", [Outcome.OOM, Outcome.CRASHED, Outcome.UNSUPPORTED])
def test_a_tuned_config_that_fails_no_longer_fits(outcome: Outcome) -> None:
    """With how it ended."""
    burst = Burst(point=Point(config=AFTER), outcome=outcome, reason="it broke", seconds=1.0)
    check = judged(result_of(), [], [burst])
    assert (check.verdict, STATUS[check.verdict]) == ("no longer fits", 3)
    assert "it broke" in check.reason


def test_a_baseline_that_fails_no_longer_fits() -> None:
    """There is nothing to compare the tuned config with."""
    burst = Burst(point=Point(config=BEFORE), outcome=Outcome.CRASHED, reason="it broke", seconds=1.0)
    check = judged(result_of(), [{Point(config=AFTER): make_measurement(1000)}], [burst])
    assert (check.verdict, check.reason) == ("no longer fits", "the baseline ended as crashed: it broke")


def test_an_answer_that_trains_where_the_baseline_does_not_holds() -> None:
    """The file says the same."""
    result = result_of(speedup=None, baseline=Side(config=BEFORE, measurement=None))
    burst = Burst(point=Point(config=BEFORE), outcome=Outcome.OOM, reason="too large", seconds=1.0)
    for rounds in ([{Point(config=AFTER): make_measurement(1000)}], rounds_of(1.0, 1)):  # it may fail in the second one
        check = judged(result, rounds, [burst])
        assert (check.verdict, check.reason) == (
            "holds", "the tuned config trains, as in the file, and the baseline ended as oom: too large",
        )  # fmt: skip


def test_a_gain_that_the_rounds_do_not_show_is_undecided() -> None:
    """An interval around 1 and the claim is no evidence, and no failure."""
    check = judged(result_of(), [*rounds_of(0.7, 1), *rounds_of(1.9, 1)], [])
    assert (check.verdict, STATUS[check.verdict]) == ("undecided", 0)
    assert check.reason == "the interval includes 1, so there may be no gain"


def test_a_file_without_a_claim_promises_no_gain() -> None:
    """Though the tuned config is faster here, or no more than in the file."""
    unconfirmed = Speedup(ratio=1.1, ci95=Interval(0.9, 1.3), pairs=3)
    small = Speedup(ratio=1.1, ci95=Interval(1.02, 1.2), pairs=3)
    for speedup, found in ((None, 1.5), (unconfirmed, 1.5), (unconfirmed, 1.0), (small, 1.0)):
        check = judged(result_of(speedup=speedup), rounds_of(found), [])
        assert (check.verdict, "the file claims no gain" in check.reason) == ("holds", True)


def test_a_result_that_recommends_its_baseline_holds_if_that_trains() -> None:
    """There is nothing to compare."""
    check = judged(result_of(None), rounds_of(1.0), [])
    assert check.verdict == "holds"
    assert check.found is None


def of_here() -> dict[str, Any]:
    """The fields of a result that name this machine."""
    here = probe_host()
    return {"hardware": here, "software": here.software}


def noted(folder: Path, *lines: str) -> Path:
    """A result file of this machine and no workload, beside which trainings are noted."""
    path = write(folder, "no_such_module:build", **of_here())
    trainings_path(path).write_text("\n".join(lines))
    return path


def test_a_recent_training_that_reached_the_claim_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is trained; there is nothing to train."""
    result = result_of(**of_here())
    path = noted(tmp_path, note_line(result, "a", 0.7), note_line(result, "b", 0.97))
    check = check_result(result, "no_such_module:build", Budget(30.0), Progress(), file=path)
    assert (check.verdict, check.found) == ("holds", None)
    assert check.trainings == "in 2 trainings: 0.70, 0.97 of the claimed rate"
    monkeypatch.setattr("autotune.commands.check.STARTED", time.monotonic())
    done = run_inside(["check", str(path), "--trust"], tmp_path)
    assert done.status == 0
    assert "nothing was measured; the model's code was not compared" in " ".join(done.err.split())


def test_a_recent_training_that_fell_short_is_told_and_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a command that then finds no workload."""
    path = noted(tmp_path, note_line(result_of(**of_here()), "a", 0.7))
    monkeypatch.setattr("autotune.commands.check.STARTED", time.monotonic())
    done = run_inside(["check", str(path), "--trust"], tmp_path)
    assert done.status == 2
    assert "the last training on this machine fell 30 % short of the claim" in " ".join(done.err.split())


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"ended": "2020-01-01T00:00:00+00:00"}, id="long ago"),
        pytest.param({"hostname": "elsewhere"}, id="on another machine"),
        pytest.param({"torch": "1.0"}, id="with another torch"),
        pytest.param({"seconds": 20.0}, id="for a moment"),
    ],
)
def test_other_trainings_say_nothing_of_today(change: dict[str, Any], tmp_path: Path) -> None:
    """Then both sides are measured."""
    result = result_of(**of_here())
    assert by_trainings(result, "t:build", noted(tmp_path, note_line(result, **change))) is None


OTHER_CPU = make_hardware().cpu.model_copy(update={"model": "another"})


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"software": make_software(torch="1.0")}, id="torch"),
        pytest.param({"hardware": make_hardware(cpu=OTHER_CPU)}, id="processor"),
    ],
)
def test_trainings_say_nothing_once_the_machine_has_changed(change: dict[str, Any], tmp_path: Path) -> None:
    """Though they ran on a machine of this name, before it changed."""
    result = result_of(**of_here() | change)
    assert by_trainings(result, "t:build", noted(tmp_path, note_line(result))) is None


@pytest.mark.parametrize(
    ("here", "device", "torch", "is_like"),
    [
        pytest.param(make_hardware(), "cpu", "2.13.0", True, id="the same"),
        pytest.param(make_hardware(), "cpu", "2.13.0+cu130", True, id="metadata without the build"),
        pytest.param(make_hardware(), "cpu", "2.11.0+cu130", False, id="another torch"),
        pytest.param(make_hardware(), "cpu", None, False, id="a torch that is not known"),
        pytest.param(
            make_hardware(software=make_software(torch="2.13.0+cpu")), "cpu", "2.13.0+cu130", False, id="another build"
        ),
        pytest.param(make_hardware(), "cuda", "2.13.0", False, id="no GPU"),
        pytest.param(make_hardware(make_gpu(name="NVIDIA H100")), "cuda", "2.13.0", False, id="another GPU"),
        pytest.param(make_hardware(make_gpu()), "cuda", "2.13.0", True, id="the same GPU"),
        pytest.param(make_hardware(), "mps", "2.13.0", True, id="a GPU that only torch knows"),
    ],
)
def test_a_machine_is_like_that_of_the_result(here: Hardware, device: str, torch: str | None, is_like: bool) -> None:
    """By what is read of it without torch."""
    constraints = make_result().constraints.model_copy(update={"device": device})
    measured = make_hardware(make_gpu(kind=device) if device != "cpu" else None)
    result = result_of(constraints=constraints, hardware=measured, software=make_software(torch=torch))
    assert checking.is_like(here, result) is is_like


class Runner:
    """Bursts of a known ratio, on a clock of their own."""

    def __init__(self, ratio: float, noise: float = 0.0, seconds: float = 2.0) -> None:
        self.ratio, self.seconds = ratio, seconds
        self.noise, self.rng = noise, random.Random(0)
        self.now = 0.0
        self.ran: list[Point] = []

    def clock(self) -> float:
        """Seconds so far."""
        return self.now

    def run(self, point: Point, plan: Any, deadline_seconds: float) -> Burst:
        """Takes its seconds, of which two are timed."""
        self.ran.append(point)
        self.now += self.seconds
        rate = 1000 * (self.ratio if point.config == AFTER else 1) * self.rng.gauss(1, self.noise)
        measured = make_measurement(rate, blocks=2, seed=len(self.ran))
        return Burst(point=point, outcome=Outcome.OK, measurement=measured, seconds=self.seconds)

    def play(self, points: Sequence[Point], plan: Any, deadline_seconds: float) -> list[Burst]:
        """One after the other."""
        return [self.run(point, plan, deadline_seconds) for point in points]


@pytest.mark.parametrize("budget_seconds", [20.0, 50.0])
def test_both_sides_run_in_turn_within_the_budget(budget_seconds: float) -> None:
    """As often the one as the other."""
    runner = Runner(1.5)
    rounds, failed = run_in_turn(
        Point(config=BEFORE), [Point(config=AFTER)], runner, Budget(budget_seconds, clock=runner.clock), Progress()
    )
    assert runner.now <= budget_seconds
    assert not failed
    assert len(rounds) >= 2
    assert runner.ran.count(Point(config=BEFORE)) == runner.ran.count(Point(config=AFTER)) == len(rounds)


def test_no_round_begins_that_the_last_one_shows_to_be_too_long() -> None:
    """Whatever takes most of a round's thirty seconds, a fifth one does not fit."""
    runner = Runner(1.5, noise=0.05, seconds=15.0)
    points = Point(config=BEFORE), [Point(config=AFTER)]
    rounds, _ = run_in_turn(*points, runner, Budget(142.0, clock=runner.clock), Progress())
    assert len(rounds) == 4


@pytest.mark.parametrize("ratio", [1.5, 1 / 1.5])
def test_a_lead_of_either_side_ends_no_rounds(ratio: float) -> None:
    """To stop when the claim holds, but not when it does not, would find too many that hold."""
    runner = Runner(ratio, noise=0.05)
    points = Point(config=AFTER), [Point(config=BEFORE)]
    rounds, _ = run_in_turn(*points, runner, Budget(60.0, clock=runner.clock), Progress())
    assert len(rounds) > 8


def write(folder: Path, target: str, **changes: Any) -> Path:
    """A result file of a workload."""
    result = result_of(**changes)
    workload = result.workload.model_copy(update={"target": target})
    path = folder / "result.json"
    write_document(result.model_copy(update={"workload": workload}), path)
    return path


@pytest.mark.slow
def test_the_command_says_whether_a_result_holds(tmp_path: Path) -> None:
    """From a file whose path is not here to the exit status and JSON; a warning says that the fingerprint differs."""
    path = write(tmp_path, "gone/train.py:build", ratio=None)
    done = run(
        ["check", str(path), "--model", "tests.workloads.tiny:build", "--budget", budget(30), "--json"], tmp_path
    )
    assert done.status == 0, done.err
    assert json.loads(done.out)["verdict"] == "holds"
    assert "fingerprint" in done.err
    assert not done.left


@pytest.mark.slow
def test_the_steps_of_the_guide_comment_the_verdict(tmp_path: Path) -> None:
    """Its job runs as it stands; in place of GitHub's own program one prints the comment."""
    (tmp_path / "train.py").write_text("from tests.workloads import tiny\ndef build():\n    return tiny.build()\n")
    (tmp_path / "results").mkdir()
    write(tmp_path, "train:build", ratio=None).rename(tmp_path / "results/train-build-cpu.json")
    programs = {"autotune": f'exec {sys.executable} -m autotune "$@"', "gh": 'echo "$1 $2 $3 $4"; cat "$5"'}
    for name, line in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    steps = re.findall(r"^  run: (.*)$", block("docs/guides/ci.md", "--markdown", "yaml"), flags=re.MULTILINE)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "PULL_REQUEST": "7"}
    done = subprocess.run(
        ["bash", "-e", "-c", "\n".join(steps)], cwd=tmp_path, env={**os.environ, **environment}, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, heading = done.stdout.splitlines()[:2]
    assert first == "pr comment 7 --body-file"
    assert heading == "### autotune: holds"


@pytest.mark.slow
def test_a_claim_that_is_not_true_here_has_drifted(tmp_path: Path) -> None:
    """Nothing makes so small a model twenty times as fast."""
    path = write(tmp_path, "tests.workloads.tiny:build", ratio=20.0)
    done = run(["check", str(path), "--trust", "--budget", budget(30)], tmp_path)
    assert done.status == 1, done.err
    assert "drifted" in done.err


@pytest.mark.slow
def test_a_workload_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    """With the way to name another."""
    done = run(["check", str(write(tmp_path, "no_such_module:build"))], tmp_path)
    assert done.status == 2
    assert "no_such_module" in done.err


@pytest.mark.slow
def test_a_device_that_is_not_here_is_told(tmp_path: Path) -> None:
    """A result of a GPU, on a machine without."""
    constraints = make_result().constraints.model_copy(update={"device": "mps"})
    path = write(tmp_path, "tests.workloads.tiny:build", constraints=constraints)
    done = run(["check", str(path), "--trust", "--budget", budget(20)], tmp_path)
    told = " ".join(done.err.split())
    assert done.status == 2, told
    assert "the result is of mps" in told
    assert "'autotune cross --device cpu'" in told


@pytest.mark.slow
def test_checking_needs_no_command() -> None:
    """The function that the command calls is there for scripts."""
    workload = result_of(None).workload.model_copy(update={"target": "tests.workloads.tiny:build"})
    result = result_of(None).model_copy(update={"workload": workload})
    assert check_result(result, workload.target, Budget(30.0), Progress()).verdict == "holds"
