"""Frameworks are extras: nothing imports one that is not used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from tests.integrations.models import Net, forget_accelerate, images, loss_fn, tuned
from tests.pages import block


def example(name: str) -> str:
    """The code in the guide to a framework."""
    return block(f"docs/guides/{name}.md", f"autotune.integrations.{name}")


def test_the_integrations_import_no_framework() -> None:
    """Not even when they are imported themselves, or when a plain workload is adapted."""
    code = """
        import sys
        import autotune.integrations.accelerate, autotune.integrations.fabric, autotune.integrations.lightning
        import autotune.integrations.transformers
        from autotune.workload.target import load_workload
        load_workload("tests.workloads.tiny:build")
        load_workload("tests.workloads.tiny:build_tuple")
        frameworks = ("accelerate", "lightning", "pytorch_lightning", "transformers")
        print([name for name in frameworks if name in sys.modules])
    """
    lines = "\n".join(line.strip() for line in code.splitlines())
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["lightning", "fabric", "transformers", "accelerate"])
def test_the_guide_has_a_short_example(name: str) -> None:
    """Ten lines at most."""
    assert len(example(name).splitlines()) <= 10


def run(text: str, **names: Any) -> dict[str, Any]:
    """Runs a guide's code, with what its reader has already."""
    torch.manual_seed(0)
    exec(compile(text, "guide.md", "exec"), names)  # noqa: S102 - the guide's own code
    return names


@pytest.fixture
def loop() -> dict[str, Any]:
    """What a loop of one's own has."""
    model = Net()
    return {
        "tuned": tuned(batch_size=8), "model": model, "loader": DataLoader(images()), "loss_fn": loss_fn,
        "optimizer": torch.optim.AdamW(model.parameters()),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["fabric", "accelerate"])
def test_the_guides_loops_train(name: str, loop: dict[str, Any]) -> None:
    """As they stand, with a model, an optimizer, a loader and a loss."""
    pytest.importorskip("lightning" if name == "fabric" else name)
    if name == "accelerate":
        forget_accelerate()
    before = loop["model"].head.bias.detach().clone()
    used = run(example(name), **loop)
    assert not torch.equal(loop["model"].head.bias, before)
    assert used["loader"].batch_sampler.batch_size == 8


def test_the_guides_lightning_example_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a module and a DataModule."""
    pytest.importorskip("lightning")
    from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel

    monkeypatch.chdir(tmp_path)
    text = example("lightning")
    used = run(text, tuned=tuned(batch_size=8), module=BoringModel(), datamodule=BoringDataModule())
    assert used["trainer"].train_dataloader.batch_size == 8


@pytest.mark.slow
def test_the_guides_transformers_example_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a model and a dataset."""
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from tests.integrations.workloads import transformers_built as built

    monkeypatch.chdir(tmp_path)
    text = example("transformers")
    used = run(text, tuned=tuned(batch_size=32), model=built.generator(), dataset=built.Texts())
    assert used["trainer"].state.global_step == 2 * used["args"].num_train_epochs
