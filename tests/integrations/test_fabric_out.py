"""Lightning Fabric trains with a tuned config: what the other frameworks do not have."""

from __future__ import annotations

import sys
from unittest.mock import MagicMock

import pytest
import torch

from autotune.integrations.fabric import fabric_kwargs, setup
from tests.integrations.models import compiling, operators, tuned
from tests.integrations.trainings.by_fabric import Run


def test_the_model_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same way as in bursts."""
    with compiling(monkeypatch) as graphs:
        ran = Run(tuned(compile_mode="default", batch_size=13), hooked=False)
    assert "conv2d" in operators(graphs)
    assert (ran.steps, ran.told) == (2, [])


def test_the_standalone_package_serves_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """``lightning_fabric`` has classes of its own."""
    other = pytest.importorskip("lightning_fabric")
    monkeypatch.setitem(sys.modules, "lightning.fabric", None)  # as if it were not installed
    assert isinstance(fabric_kwargs(tuned(ranks=2))["strategy"], other.strategies.DDPStrategy)


def test_another_precision_is_told() -> None:
    """An argument of the user's that wins is named."""
    ran = Run(tuned(batch_size=13), precision="bf16-mixed")
    assert ran.told == ["Fabric does not apply what was tuned: precision=fp32 (it is bf16-mixed)"]


def test_clipping_in_fp16_is_kept_before_the_fused_form() -> None:
    """Fabric refuses both together; it needs a GPU to train so, so its precision is pretended."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    fabric = MagicMock(device=torch.device("cpu"))
    fabric.strategy.precision.precision = "16-mixed"
    fabric.setup.return_value = model, optimizer
    with pytest.warns(UserWarning, match="it does not clip gradients that a fused optimizer unscales"):
        setup(tuned(optimizer_impl="fused"), fabric, model, optimizer, torch.utils.data.DataLoader([1.0]))  # type: ignore[arg-type]
    assert not optimizer.defaults["fused"]
