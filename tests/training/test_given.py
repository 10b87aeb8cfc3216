"""What your own training passes by mistake is told where it is passed, and not by torch, later."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from autotune.errors import UsageError
from autotune.integrations import accelerate, fabric, lightning, transformers
from autotune.knobs.config import TrainConfig
from autotune.training.given import require_parts
from autotune.training.live import live
from autotune.training.tuned import Tuned

MODEL, TUNED = nn.Linear(2, 2), Tuned(TrainConfig())
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=0.1)
OTHER = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
LOADER: DataLoader[Any] = DataLoader([1, 2])  # type: ignore[arg-type]


def made(name: str, *given: Any) -> Callable[[], Any]:
    """A call of one of the methods of a tuned config."""
    return lambda: getattr(TUNED, name)(*given)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (made("prepare", None), "expected an nn.Module as model, got None; pass the model first, then its optimizer"),
        (made("prepare", OPTIMIZER, MODEL), "expected an nn.Module as model, got a SGD; pass the model first"),
        (made("prepare", MODEL, [OPTIMIZER]), "expected a torch.optim.Optimizer as optimizer, got a list"),
        (made("prepare", MODEL, OTHER), "got one that holds none of them; make it from model.parameters()"),
        (made("dataloader", LOADER), "got a DataLoader; pass loader.dataset"),
        (made("dataloader", "train.csv"), "got a str; pass the Dataset itself"),
        (made("eval_dataloader", LOADER), "got a DataLoader; pass loader.dataset"),
        (lambda: accelerate.prepare(TUNED, None, LOADER, OPTIMIZER, MODEL), "as model, got a DataLoader"),
        (lambda: fabric.setup(TUNED, None, MODEL, OPTIMIZER, [1]), "expected a DataLoader as loader, got a list"),
        (lambda: live(1, MODEL, OPTIMIZER), "expected a loader, got an int"),  # type: ignore[type-var]
        (lambda: live(LOADER, OPTIMIZER, MODEL), "expected a model, got a SGD; pass loader, model and"),
    ],
)
def test_what_is_passed_by_mistake_is_told(call: Callable[[], Any], words: str) -> None:
    """In the wrong order, of another kind, or of another model."""
    with pytest.raises(UsageError) as raised:
        call()
    assert words in str(raised.value)


@pytest.mark.parametrize(
    "call",
    [
        accelerate.accelerator_kwargs,
        lambda tuned: accelerate.prepare(tuned, None, MODEL, OPTIMIZER, LOADER),
        fabric.fabric_kwargs,
        lambda tuned: fabric.setup(tuned, None, MODEL, OPTIMIZER, LOADER),
        lightning.trainer_kwargs,
        lightning.tuned_callback,
        lambda tuned: lightning.tuned_datamodule(tuned, SimpleNamespace()),
        transformers.training_kwargs,
        lambda tuned: transformers.tune_trainer(tuned, SimpleNamespace()),
    ],
)
def test_an_integration_that_is_given_a_path_says_what_to_pass(call: Callable[[Any], Any]) -> None:
    """It takes what was loaded, not the file."""
    with pytest.raises(UsageError, match=r"^expected what autotune.load returns, got a str; pass autotune.load\("):
        call("result.json")


def test_an_optimizer_of_other_weights_may_belong_to_the_model() -> None:
    """Of fp32 copies of weights in half precision, or of the head of a frozen model."""
    half, frozen = nn.Linear(2, 2).to(torch.bfloat16), nn.Linear(2, 2).requires_grad_(False)
    copies = [weight.detach().float().requires_grad_() for weight in half.parameters()]
    require_parts(half, torch.optim.SGD(copies, lr=0.1))
    require_parts(frozen, OTHER)


def test_a_model_prepared_without_its_optimizer_is_fine() -> None:
    """So is a model without weights, which no optimizer can hold."""
    assert TUNED.prepare(nn.ReLU(), OTHER)[1] is OTHER
    assert TUNED.prepare(MODEL)[1] is None
