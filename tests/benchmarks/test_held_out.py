"""The held-out benchmark: which sides train, how processes differ, what is counted, and that all of it runs."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Outcome
from autotune.measuring.speedup import Speedup
from autotune.measuring.statistics import Interval
from autotune.results.files import write_document
from autotune.results.result import Side, TrialRecord
from autotune.workload.target import load_workload
from benchmarks import held_out, output
from benchmarks.alternate import Run
from benchmarks.held_out_workloads import NAMES, target
from benchmarks.plain import Loop
from tests.factories import make_result
from tests.processes import budget

TINY = "tests.workloads.tiny:build"
FUSED = Side(config=TrainConfig(batch_size=32, optimizer_impl="fused"), measurement=None)
SPEEDUP = Speedup(ratio=2.0, ci95=Interval(1.9, 2.1), pairs=4)


def make_trial(outcome: Outcome = Outcome.OK, width: float = 0.1, stage: str = "gain", **changes: Any) -> TrialRecord:
    """A burst of the search that trained beside another one."""
    ok = outcome is Outcome.OK
    return TrialRecord(
        stage=stage, reason="why", changes=changes, outcome=outcome, seconds=1.0, ratio=1.0 if ok else None,
        ci95=Interval(math.exp(-width), math.exp(width)) if ok else None,
    )  # fmt: skip


def make_runs(rates: list[float]) -> list[Run]:
    """What a side realised in each round."""
    return [
        Run(samples_per_second=rate, timed_seconds=1, warmup_seconds=1, epochs_crossed=0, last_loss=0.0)
        for rate in rates
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_workload_trains(name: str) -> None:
    """Two steps of the baseline give finite losses, and samples that its length function takes."""
    workload = load_workload(target(name), {})
    loop = Loop(workload, workload.baseline_config, "cpu")
    steps = loop.steps()
    assert [next(steps), next(steps)] == [workload.batch_size] * 2
    assert bool(torch.isfinite(loop.last_loss))
    if workload.sample_size is not None:
        assert workload.sample_size(workload.dataset[0]) > 0


@pytest.mark.parametrize("spreads", [{"a": 0.01, "b": 0.03, "c": 0.0}, {"a": 0.02, "b": 0.02}])
def test_the_spread_of_processes_is_each_sides_own(spreads: dict[str, float]) -> None:
    """What slows all sides of a round by a third does not count, nor what another side scatters."""
    rng = random.Random(0)
    drift = [rng.choice([1.0, 0.7]) for _ in range(4000)]
    rates = {name: [slow * math.exp(rng.gauss(0, spread)) for slow in drift] for name, spread in spreads.items()}
    assert held_out.process_spread(rates) == pytest.approx(spreads, abs=0.002)


def test_equal_answers_train_once_but_for_the_judged_one() -> None:
    """An answer that is the baseline trains beside it all the same: the two show what chance does."""
    same = make_result(best=make_result().baseline)
    fused = make_result(best=FUSED, speedup=SPEEDUP)
    sides, roles = held_out.sides_of({"30s": fused, "2m": same, "5m": fused}, "2m")
    assert list(sides) == ["baseline", "tuned", "answer after 30s"]
    assert roles == {"2m": "tuned", "30s": "answer after 30s", "5m": "answer after 30s"}


def test_a_candidate_counts_once_and_only_in_the_search() -> None:
    """What was hardly seen is not decided; what failed is counted apart; rounds of the confirmation do not count."""
    trials = (
        make_trial(), make_trial(num_threads=1), make_trial(num_threads=1), make_trial(precision="bf16", width=2.0),
        make_trial(Outcome.OOM, batch_size=64), make_trial(compile_mode="default"),
        make_trial(stage=held_out.CONFIRM, optimizer_impl="fused"),
    )  # fmt: skip
    found = held_out.tuning_figures(make_result(trials=trials))
    assert (found["decided"], found["failed"], found["compiled"]) == (2, 1, True)


def test_a_workload_is_judged_by_the_loop() -> None:
    """Fractions are of the fastest side, and the claim's interval covers the ratio or not."""
    results = {"30s": make_result(best=make_result().baseline), "2m": make_result(best=FUSED, speedup=SPEEDUP)}
    rates = {"baseline": [100.0, 102.0], "tuned": [195.0, 197.0]}
    row = held_out.judged_row(results, "2m", {name: make_runs(found) for name, found in rates.items()})
    assert row["of_best_known"]["2m"]["ratio"] == 1
    assert row["of_best_known"]["30s"]["ratio"] == pytest.approx(0.515, abs=0.01)
    assert row["claim"]["covers"] is True
    assert row["claim"]["half_width"] == pytest.approx(0.05)
    overall = held_out.together({"a": row | {"first": "30s", "last": "2m"}})
    by = {one["figure"]: one for one in overall}
    assert by["half-width of a claim, median"]["met"] is False
    assert by["claims come true within 5%"]["value"] == "1 of 1"


def test_a_tuning_that_the_folder_holds_is_read(tmp_path: Path) -> None:
    """So that an interrupted run goes on where it was."""
    write_document(make_result(name="earlier"), tmp_path / "30s-seed-0.json")
    assert held_out.tuned("no.such:build", "30s", 0, tmp_path).workload.name == "earlier"


@pytest.mark.slow
def test_a_workload_is_tuned_and_trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the real command and in the real loop."""
    monkeypatch.setattr(held_out, "target", lambda _: TINY)
    folder = tmp_path / "benchmarks" / "output"
    folder.mkdir(parents=True)
    monkeypatch.setattr(output, "FOLDER", folder)
    least, more = budget(20), budget(22)
    options = f"--budgets {least} {more} --best-known-budget {least} --rounds 2 --seconds 0.6"
    held_out.main([NAMES[0], *options.split(), "--folder", str(tmp_path / "results")])
    document = json.loads((folder / "held_out.json").read_text())
    assert list(document["workloads"]) == [NAMES[0]]
    for row in document["workloads"].values():
        assert set(row["tunings"]) == {least, more, f"{least}, seed 1"}
        assert max(one["ratio"] for one in row["of_best_known"].values()) <= 1
        assert all(spread >= 0 for spread in row["process_spread"].values())
    assert (tmp_path / "results" / NAMES[0] / f"{more}-seed-0.journal").exists()
