"""Replication through frameworks: each trains what the plain loop trains, with what was tuned, and is counted alike."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, SequentialSampler, TensorDataset, default_collate, get_worker_info

pytest.importorskip("lightning")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from autotune import TrainConfig, Workload
from autotune.errors import WorkloadError
from autotune.measuring.speedup import Speedup
from autotune.measuring.statistics import Interval
from autotune.results.files import write_document
from autotune.results.result import Side
from autotune.workload.target import load_workload
from benchmarks import frameworks, output, replicate
from benchmarks.alternate import Run, realise_in
from benchmarks.frameworks import NEEDED, loop_class, that_train
from benchmarks.plain import Loop
from benchmarks.ratios import Ratio
from benchmarks.replicate import Replication, Through
from tests.factories import make_result
from tests.integrations.models import KNOBS, Net, Seen, forget_accelerate, images, loss_fn

TINY = "tests.workloads.tiny:build"
MARK = "AUTOTUNE_TEST_WORKER"

pytestmark = pytest.mark.filterwarnings("ignore:.*(many workers|isinstance.treespec)")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Accelerate's state, and torch's random numbers."""
    forget_accelerate()
    torch.manual_seed(0)
    yield
    forget_accelerate()


def make_workload(samples: int = 26, **fields: Any) -> tuple[Workload, list[torch.optim.Optimizer]]:
    """The convolutional network on images of its own; the optimizers that are made are noted."""
    made: list[torch.optim.Optimizer] = []

    def optimizer(params: Any) -> torch.optim.Optimizer:
        made.append(torch.optim.AdamW(params, lr=0.01))
        return made[-1]

    return Workload(Net(), images(samples), loss_fn, **{"optimizer": optimizer, **fields}), made


class Progress:
    """Takes some optimizer steps, and notes what each consumed, and how far training had come."""

    def __init__(self, loop: Any, steps: int) -> None:
        self.loop = loop
        self.samples: list[int] = []
        self.epochs: list[int] = []
        self.batches: list[int] = []
        self.steps = steps
        loop.train(self.on_step)

    def on_step(self, samples: int) -> bool:
        """Notes a step; whether it was the last."""
        self.samples.append(samples)
        self.epochs.append(self.loop.epochs)
        self.batches.append(self.loop.batches)
        return len(self.samples) == self.steps


@pytest.mark.slow
@pytest.mark.parametrize("framework", NEEDED)
def test_steps_are_counted_as_in_the_plain_loop(framework: str) -> None:
    """Seven batches, three at a time: the third step of an epoch takes what is left, the fourth is of the next."""
    workload, _ = make_workload()
    config = TrainConfig(batch_size=4, accumulation_steps=3)
    done = Progress(loop_class(framework)(workload, config, "cpu"), 7)
    assert done.samples == [12, 12, 2, 12, 12, 2, 12]
    assert done.epochs == [0, 0, 0, 1, 1, 1, 2]
    assert done.batches == [3, 6, 7, 10, 13, 14, 17]


@pytest.mark.slow
@pytest.mark.parametrize("framework", NEEDED)
def test_the_same_is_learned_as_in_the_plain_loop(framework: str) -> None:
    """Loss, optimizer, accumulation, clipping and the order of the samples are the workload's own."""
    weights = []
    for make in (Loop, loop_class(framework)):
        torch.manual_seed(0)
        workload, _ = make_workload(24, sampler=SequentialSampler(images(24)), clip_grad_norm=0.05)
        done = Progress(make(workload, TrainConfig(batch_size=4, accumulation_steps=3), "cpu"), 5)
        assert done.samples == [12] * 5
        weights.append(torch.cat([parameter.detach().flatten() for parameter in workload.model.parameters()]))
    torch.testing.assert_close(*weights)


@pytest.mark.slow
@pytest.mark.parametrize("framework", NEEDED)
def test_gradients_are_not_clipped_unasked(framework: str) -> None:
    """The Trainer would, at a norm of one: a step of plain descent on a steep loss is longer than that."""
    data = TensorDataset(torch.ones(8, 3))
    model = torch.nn.Linear(3, 1)
    workload = Workload(
        model, data, lambda m, batch: 100 * m(batch[0]).mean(), optimizer=lambda params: torch.optim.SGD(params, lr=1.0)
    )
    before = model.bias.detach().clone()
    Progress(loop_class(framework)(workload, TrainConfig(batch_size=4), "cpu"), 1)
    assert (model.bias - before).abs().item() == pytest.approx(100)


@pytest.mark.slow
@pytest.mark.parametrize("framework", NEEDED)
def test_the_settings_are_in_effect(framework: str) -> None:
    """Precision, layout, the optimizer's form: through autotune's integration alone."""
    workload, made = make_workload()
    seen = Seen(workload.model.conv)  # type: ignore[arg-type]
    Progress(loop_class(framework)(workload, TrainConfig(**KNOBS), "cpu"), 4)
    assert seen.dtypes == {torch.bfloat16}
    assert seen.channels_last == {True}
    assert made[0].defaults["fused"]


def mark_worker(_: int) -> None:
    """As a workload's `worker_init_fn`."""
    os.environ[MARK] = "1"


def collate_with_origin(samples: list[Any]) -> Any:
    """Images and labels, and whether a worker that was initialised has loaded them."""
    in_worker = get_worker_info() is not None and MARK in os.environ
    return [*default_collate(samples), torch.full((len(samples),), in_worker)]


@pytest.mark.slow
@pytest.mark.parametrize("framework", NEEDED)
def test_the_loaders_functions_are_kept(framework: str) -> None:
    """The workload's collation and its workers' initialisation, in as many workers as were tuned."""
    origins: list[bool] = []

    def loss(model: Any, batch: Any) -> torch.Tensor:
        origins.extend(batch[2].tolist())
        return loss_fn(model, batch[:2])

    workload = Workload(Net(), images(), loss, collate_fn=collate_with_origin, worker_init_fn=mark_worker)
    Progress(loop_class(framework)(workload, TrainConfig(batch_size=13, num_workers=1), "cpu"), 2)
    assert origins == [True] * 26


class Endless(IterableDataset[torch.Tensor]):
    """Ones."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.ones(3)


@pytest.mark.slow
@pytest.mark.parametrize("framework", NEEDED)
def test_iterable_data_is_trained_on_or_refused(framework: str) -> None:
    """Where Accelerate loads, its batches cannot be counted, and a sentence says so."""
    workload = Workload(torch.nn.Linear(3, 1), Endless(), lambda model, batch: model(batch).mean())
    loop = loop_class(framework)(workload, TrainConfig(batch_size=4), "cpu")
    if framework in {"lightning", "fabric"}:
        assert Progress(loop, 3).samples == [4, 4, 4]
    else:
        with pytest.raises(WorkloadError, match="iterable dataset"):
            Progress(loop, 3)


@pytest.mark.slow
@pytest.mark.parametrize("framework", NEEDED)
def test_a_run_is_timed(framework: str) -> None:
    """In turns after a warm-up, as the plain loop is; what is not in effect is told with it."""
    side = Side(config=TrainConfig(batch_size=64, accumulation_steps=2, optimizer_impl="fused"), measurement=None)
    (run,) = realise_in((framework,), TINY, {"tuned": side}, "cpu", 1.0, 1)[framework]["tuned"]
    assert run.samples_per_second > 0
    assert run.epochs_crossed > 0
    assert run.last_loss > 0
    assert [sentence.split(" does")[0] for sentence in run.not_in_effect] == (
        ["Fabric"] if framework == "fabric" else []
    )


@pytest.mark.parametrize(
    ("target", "expected"),
    [(TINY, ["fabric", "transformers", "accelerate"]), ("benchmarks.frameworks.lightning:build", ["lightning"])],
)
def test_a_file_is_trained_by_what_keeps_gradients_alike(target: str, expected: list[str]) -> None:
    """What was measured from a LightningModule by Lightning, the rest by the others."""
    assert that_train(load_workload(target)) == expected


def make_replication(claimed: float, through: float) -> Replication:
    """A replication that came true in the plain loop, with one framework; narrow intervals."""

    def around(ratio: float) -> Ratio:
        return Ratio(ratio=ratio, ci95=Interval(ratio - 0.001, ratio + 0.001))

    rates = {"baseline": 100.0, "tuned": 200.0}
    runs = [Run(
        samples_per_second=1.0, timed_seconds=1.0, warmup_seconds=1.0, epochs_crossed=1, last_loss=1.0,
        not_in_effect=("Lightning does not apply what was tuned: x=1 (why)",),
    )]  # fmt: skip
    found = Through(
        claimed=around(claimed), realised=around(through), realised_rates=rates, of_plain=around(through / claimed),
        runs={"baseline": [], "tuned": runs},
    )  # fmt: skip
    return Replication(
        file="result.json", workload="tiny", device="cpu", changed_knobs={}, claimed=around(claimed),
        realised=around(claimed), claimed_rates=rates, realised_rates=rates, runs={}, frameworks={"lightning": found},
    )  # fmt: skip


@pytest.mark.parametrize(("through", "status"), [(1.96, 0), (1.8, 1)])
def test_exit_status_counts_frameworks_too(
    through: float, status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A framework in which a gain is lost speaks against the claim; what it did not apply is printed."""
    monkeypatch.setattr(replicate, "replicate", lambda *_: make_replication(2.0, through))
    monkeypatch.setattr(output, "FOLDER", tmp_path)
    assert replicate.main(["result.json", "--framework", "lightning"]) == status
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("lightning"))
    assert ("NOT within 5%" in line) == bool(status)
    (row,) = json.loads((tmp_path / "replicate_frameworks.json").read_text())["replications"]
    assert row["frameworks"]["lightning"]["within_tolerance"] is not bool(status)
    assert "does not apply" in row["frameworks"]["lightning"]["runs"]["tuned"][0]["not_in_effect"][0]


@pytest.mark.slow
def test_a_result_file_is_replicated_through_a_framework(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Both sides, in the plain loop and in the framework, each in fresh processes."""
    path = tmp_path / "tiny.json"
    best = Side(config=TrainConfig(batch_size=32, optimizer_impl="fused", num_threads=1), measurement=None)
    speedup = Speedup(ratio=1.5, ci95=Interval(0.01, 100.0), pairs=2)
    write_document(make_result(target=TINY, name="tiny", best=best, speedup=speedup), path)
    monkeypatch.setattr(output, "FOLDER", tmp_path)
    assert replicate.main([str(path), "--seconds", "0.6", "--rounds", "2", "--framework", "fabric"]) in {0, 1}
    (row,) = json.loads((tmp_path / "replicate_frameworks.json").read_text())["replications"]
    through = row["frameworks"]["fabric"]
    assert {name: len(runs) for name, runs in row["runs"].items()} == {"baseline": 2, "tuned": 2}
    assert {name: len(runs) for name, runs in through["runs"].items()} == {"baseline": 2, "tuned": 2}
    assert through["of_plain"]["ratio"] == pytest.approx(through["realised"]["ratio"] / row["realised"]["ratio"])


@pytest.mark.parametrize(
    ("text", "names"), [("all", tuple(NEEDED)), ("lightning,fabric", ("lightning", "fabric")), ("fabric", ("fabric",))]
)
def test_frameworks_are_named_on_the_command_line(text: str, names: tuple[str, ...]) -> None:
    """One, several, or all."""
    assert replicate.frameworks_in(text) == names


def test_an_unknown_framework_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is read or trained; the known ones are listed."""
    with pytest.raises(SystemExit) as ended:
        replicate.main(["result.json", "--framework", "keras"])
    assert ended.value.code == 2
    assert "'keras' is no framework that is known here; use lightning, fabric," in capsys.readouterr().err


def test_a_framework_that_is_not_installed_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what to install."""
    monkeypatch.setattr(frameworks.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SystemExit) as ended:
        replicate.main(["result.json", "--framework", "transformers"])
    assert ended.value.code == 2
    assert "pip install transformers accelerate" in capsys.readouterr().err


def test_a_file_that_is_missing_ends_with_a_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """No traceback."""
    assert replicate.main([str(tmp_path / "none.json")]) == 2
    assert "expected a result file at" in capsys.readouterr().err
