"""What importing a config costs: both loops train alike, both costs are measured for real, and add up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import SequentialSampler

from autotune import TrainConfig, Tuned, Workload
from autotune.measuring.statistics import Interval
from autotune.results.files import write_document
from autotune.results.result import Side
from benchmarks import import_cost, output
from benchmarks.import_cost import Extra, ReadmeLoop, mean_difference, total
from benchmarks.plain import Loop
from benchmarks.ratios import Ratio
from tests.factories import make_result
from tests.integrations.models import Net, images, loss_fn

TINY = "tests.workloads.tiny:build"


def make_workload(samples: int, **fields: Any) -> Workload:
    """The convolutional network on images in order."""
    return Workload(Net(), images(samples), loss_fn, sampler=SequentialSampler(images(samples)), **fields)


def test_the_readmes_loop_counts_its_samples() -> None:
    """Seven batches, three at a time: the third step takes what is left, the fourth is of the next epoch."""
    steps = ReadmeLoop(make_workload(26), Tuned(TrainConfig(batch_size=4, accumulation_steps=3))).steps()
    assert [next(steps) for _ in range(4)] == [12, 12, 2, 12]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_both_loops_learn_the_same(precision: str) -> None:
    """What is compared is the same work: precision, layout, optimizer, accumulation and clipping."""
    knobs: dict[str, Any] = {"memory_format": "channels_last", "optimizer_impl": "fused", "precision": precision}
    config = TrainConfig(batch_size=4, accumulation_steps=3, **knobs)
    weights = []
    for by_hand in (True, False):
        torch.manual_seed(0)
        workload = make_workload(24, clip_grad_norm=0.05)
        steps = (Loop(workload, config, "cpu") if by_hand else ReadmeLoop(workload, Tuned(config))).steps()
        assert [next(steps) for _ in range(5)] == [12] * 5
        weights.append(torch.cat([parameter.detach().flatten() for parameter in workload.model.parameters()]))
    torch.testing.assert_close(*weights)


def test_differences_are_those_of_pairs() -> None:
    """A machine that is slow for a while is slow for both scripts: the same difference each time has no spread."""
    mean, interval = mean_difference([1.0, 3.0, 2.0], [1.5, 3.5, 2.5])
    assert (mean, interval) == (0.5, Interval(0.5, 0.5))


@pytest.mark.parametrize(
    ("ratio", "met", "beyond_doubt"), [(0.997, True, False), (0.98, False, True), (1.004, True, True)]
)
def test_the_cost_is_that_of_the_start_and_of_the_loop(ratio: float, met: bool, beyond_doubt: bool) -> None:
    """Three seconds of 600 are half a per cent; the loop's loss comes on top, and the errors add up as squares."""
    start = Extra(seconds=3.0, ci95=Interval(1.2, 4.8), bare=[2.0], with_autotune=[5.0])
    cost = total(start, Ratio(ratio=ratio, ci95=Interval(ratio - 0.004, ratio + 0.004)), 600.0)
    assert cost.share == pytest.approx(0.005 + 1 - ratio)
    assert cost.ci95 == pytest.approx((cost.share - 0.005, cost.share + 0.005))
    assert (cost.met, cost.beyond_doubt) == (met, beyond_doubt)


@pytest.mark.slow
def test_a_result_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scripts in turn, and both loops in fresh processes; the figures are written with what they came from."""
    path = tmp_path / "tiny.json"
    best = Side(config=TrainConfig(batch_size=32, optimizer_impl="fused"), measurement=None)
    write_document(make_result(target=TINY, name="tiny", best=best), path)
    monkeypatch.setattr(output, "FOLDER", tmp_path)
    words = ["--rounds", "2", "--seconds", "0.2", "--starts", "2", "--training", "10m"]
    assert import_cost.main([str(path), *words]) in {0, 1}
    document: dict[str, Any] = json.loads((tmp_path / "import_cost.json").read_text())
    assert document["training_seconds"] == 600
    assert [len(document["start"][name]) for name in ("bare", "with_autotune")] == [2, 2]
    assert [len(document["rates"][name]) for name in ("by_hand", "with_autotune")] == [2, 2]
    assert min(document["rates"]["by_hand"] + document["rates"]["with_autotune"]) > 0
    lost = document["start"]["seconds"] / 600 + 1 - document["rate"]["ratio"]
    assert document["cost"]["share"] == pytest.approx(lost)
    assert "of 10 minutes of training" in capsys.readouterr().out


def test_without_a_result_it_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The digits' result may not have been made here."""
    monkeypatch.setattr(import_cost, "ROOT", tmp_path)
    with pytest.raises(SystemExit) as ended:
        import_cost.main([])
    assert ended.value.code == 2
    assert "name a result file" in capsys.readouterr().err


def test_a_length_that_cannot_be_read_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """In the sentence of autotune's own options."""
    with pytest.raises(SystemExit) as ended:
        import_cost.main(["--training", "long"])
    assert ended.value.code == 2
    assert "a duration such as 90s" in capsys.readouterr().err
