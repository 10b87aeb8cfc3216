"""The A/A test of the whole policy: whatever is asked for, the baseline runs, and gains are counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.knobs.config import TrainConfig
from autotune.measuring import Point, Speedup
from autotune.measuring.statistics import Interval
from benchmarks import aa_policy, output
from tests.conftest import RunnerOf

TINY = "tests.workloads.tiny:build"
BASELINE = Point(config=TrainConfig(batch_size=32))
IMPOSSIBLE = Point(config=TrainConfig(batch_size=64), parameters={"nonsense": 1})
SHORT = BurstPlan(measure_seconds=0.1)


def test_whatever_is_asked_for_the_baseline_runs(runner_of: RunnerOf) -> None:
    """A point that cannot be built trains, under its own name, beside an incumbent that cannot be built either."""
    same = aa_policy.SameRunner(runner_of(TINY), BASELINE)
    ((first, none),) = same.challenge(None, [IMPOSSIBLE], SHORT, 30, lambda *_: None)
    played = same.challenge(IMPOSSIBLE, [BASELINE, IMPOSSIBLE], SHORT, 30, lambda *_: None)
    rounds = same.play([BASELINE, IMPOSSIBLE], SHORT, 30)
    same.close()
    assert (first.point, first.ok, none) == (IMPOSSIBLE, True, None)
    assert [burst.point for burst, _ in played] == [burst.point for burst in rounds] == [BASELINE, IMPOSSIBLE]
    assert all(burst.ok for burst in (*rounds, *(burst for burst, _ in played)))
    assert {pair.partner for _, pair in played if pair is not None} == {IMPOSSIBLE}


@pytest.mark.parametrize(
    ("ratio", "low", "reported"), [(1.1, 1.05, (True, True)), (1.1, 1.02, (True, False)), (0.9, 0.8, (False, False))]
)
def test_a_gain_lies_some_half_widths_above_one(ratio: float, low: float, reported: tuple[bool, ...]) -> None:
    """By a rule of the product's own, or a weaker one."""
    speedup = Speedup(ratio=ratio, ci95=Interval(low, ratio**2 / low), pairs=4)
    assert tuple(aa_policy.would_report(speedup, doubt) for doubt in (1.0, aa_policy.BEYOND_DOUBT)) == reported
    assert aa_policy.would_report(speedup, aa_policy.BEYOND_DOUBT) is speedup.confirmed


@pytest.mark.usefixtures("few_resamples")
def test_searches_of_a_surface_without_gains_are_counted() -> None:
    """Each seed gives the same answer each time, and nearly none of them is a gain."""
    found = [aa_policy.made_up(25.0, 0.05, seed) for seed in range(4)]
    assert found[0] == aa_policy.made_up(25.0, 0.05, 0)
    assert sum(gains[-1] for gains in found) <= 1


@pytest.mark.slow
def test_tunings_add_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Real ones, the second of which is interrupted and resumed; a second command goes on counting."""
    folder = tmp_path / "benchmarks" / "output"
    folder.mkdir(parents=True)
    monkeypatch.setattr(output, "FOLDER", folder)
    monkeypatch.setattr(aa_policy, "TARGETS", {"tiny": TINY})
    monkeypatch.setattr(aa_policy, "RESUMED_EACH", 2)
    aa_policy.main(["--count", "1", "--budget", "6"])
    aa_policy.main(["--count", "1", "--budget", "6"])
    aa_policy.main(["--count", "1", "--budget", "6", "--neighbour"])
    document = json.loads((folder / "aa_policy.json").read_text())
    assert [(one["number"], one["resumed"], len(one["ends"])) for one in document["quiet"]["tunings"]] == [
        (0, False, 1), (1, True, 2),
    ]  # fmt: skip
    assert all(one["searched"] >= 1 for one in document["quiet"]["tunings"])
    assert document["neighbour"]["repeats"] == 1
    assert "quiet: 0 of 2 report a gain (95 % interval 0.0% – 84.2%)" in capsys.readouterr().out
