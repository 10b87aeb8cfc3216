"""The guides side by side: how a guide is read on a machine, and one from tuning to the written table."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune import TrainConfig
from benchmarks import output
from benchmarks.guides import GUIDES, landmarks_finetune, run
from benchmarks.guides.run import BEFORE, GUIDE, TUNED, alike, as_read_here, overall
from tests.processes import slowness

GPU_ADVICE = TrainConfig(
    batch_size=6, num_workers=6, prefetch_factor=4, pin_memory=True, non_blocking=True, precision="fp16",
    compile_mode="reduce-overhead", cudnn_benchmark=True,
)  # fmt: skip


def test_a_guide_on_a_gpu_is_taken_as_it_is() -> None:
    """With as many processors as it asks workers for."""
    assert as_read_here(GPU_ADVICE, 8, "cuda") == (GPU_ADVICE, ())


def test_no_more_workers_than_processors() -> None:
    """The guides say so themselves."""
    taken, dropped = as_read_here(GPU_ADVICE, 4, "cuda")
    assert taken == GPU_ADVICE.replace(num_workers=4)
    assert dropped == ("num_workers=6 → 4",)


def test_without_a_gpu_what_only_a_gpu_knows_is_dropped() -> None:
    """And what was dropped is told; half precision stays half precision."""
    taken, dropped = as_read_here(GPU_ADVICE, 8, "cpu")
    assert taken == TrainConfig(
        batch_size=6, num_workers=6, prefetch_factor=4, precision="bf16", compile_mode="default"
    )
    assert {text.partition("=")[0] for text in dropped} == {
        "pin_memory", "non_blocking", "precision", "compile_mode", "cudnn_benchmark"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("before", "tuned", "same"), [([1.0, 1.1], [1.15, 1.2], True), ([1.0, 1.1], [1.4, 1.45], False)]
)
def test_losses_are_alike_within_the_spread_of_seeds(before: list[float], tuned: list[float], same: bool) -> None:
    """Two seeds of each side."""
    assert alike({BEFORE: before, TUNED: tuned}) is same


def test_the_overall_figure_is_the_geometric_mean_over_guides() -> None:
    """Of tuned over the guide's advice, and over what its reader trains with."""

    def compared(over_guide: float, over_before: float) -> dict[str, object]:
        ratios = {GUIDE: over_guide, BEFORE: over_before}
        return {"rows": [{"name": name, "tuned_over_it": {"ratio": ratio}} for name, ratio in ratios.items()]}

    found = overall([compared(1.0, 2.0), compared(4.0, 8.0)])
    assert found == {GUIDE: pytest.approx(2.0), BEFORE: pytest.approx(4.0)}


@pytest.mark.slow
def test_one_guide_from_tuning_to_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All sides are really trained, and the loss is compared."""
    monkeypatch.setattr(output, "FOLDER", tmp_path / "benchmarks" / "output")
    (tmp_path / "benchmarks" / "output").mkdir(parents=True)
    monkeypatch.setattr(run, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(run, "SEEDS", (0,))
    # Each process would compile, which the tuning's own tests show.
    monkeypatch.setattr(landmarks_finetune, "GUIDE", landmarks_finetune.GUIDE.replace(compile_mode=None))
    status = run.main(["landmarks_finetune", "--budget", f"{14 * slowness():.0f}", "--seconds", "1", "--rounds", "2"])
    assert status in {0, 1}
    printed = capsys.readouterr().out
    assert "loss after as many samples" in printed
    (compared,) = run.known()
    names = [row["name"] for row in compared["rows"]]
    assert names[:2] == [BEFORE, GUIDE]
    assert names[-1] == TUNED
    assert list(tmp_path.rglob("guide-landmarks-finetune.json"))


def test_every_guide_has_what_is_compared() -> None:
    """By its module."""
    assert "landmarks_finetune" in GUIDES
    assert landmarks_finetune.BEFORE.effective_batch == landmarks_finetune.GUIDE.effective_batch
