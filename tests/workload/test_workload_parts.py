"""What a build may return: its parts, what is wrong with each, and what follows from those that are right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from autotune import TrainConfig, Workload
from autotune.errors import TargetError, WorkloadError
from autotune.workload.target import adapt, import_target, load_workload
from tests.messages import told
from tests.workloads import mistakes


@pytest.mark.parametrize(
    ("name", "came"),
    [("nothing", "None"), ("two", "a tuple of 2"), ("dictionary", "a dict"), ("workload_class", "the class Workload")],
)
def test_a_wrong_return_is_told(name: str, came: str) -> None:
    """What must be returned is said with what came."""
    target = f"tests.workloads.mistakes:{name}"
    message, trace = told(WorkloadError, lambda: load_workload(target))
    assert message.startswith(f"{target}: expected an autotune.Workload, a tuple (model, dataset, loss)")
    assert f", got {came};" in message
    assert trace is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model_class", "expected an nn.Module as model, got the class Linear; call it"),
        ("swapped", "got a TensorDataset; return (model, dataset, loss) in this order"),
        ("elsewhere", "expected a model on the CPU, got one with parts on meta; leave out .to(device)"),
        ("buffer_elsewhere", "got one with parts on meta"),
        ("frozen", "no trainable parameter; set requires_grad"),
        ("loader_for_dataset", "got a DataLoader; pass loader.dataset"),
        ("path_for_dataset", "got a str; pass the Dataset itself"),
        ("splits_for_dataset", 'got a dict; pass one of its splits, such as dataset["train"]'),
        ("class_for_dataset", "got the class TensorDataset; pass the Dataset itself"),
        ("number_for_dataset", "got an int"),
        ("generator_for_dataset", "got a generator; derive it from torch.utils.data.IterableDataset"),
        ("unsized_dataset", "got an Unsized; give it __len__"),
        ("broken_length", "the len() of the dataset raised: OSError: no index file"),
        ("empty_dataset", "the dataset is empty (len() is 0); check its path or its filter"),
        ("no_loss", "expected a callable as loss, got None"),
        ("criterion_for_loss", "torch's CrossEntropyLoss, which takes scores and labels"),
        ("functional_for_loss", "torch's cross_entropy, which takes scores and labels"),
        ("optimizer_instance", "expected a callable as optimizer, got an AdamW; pass the function itself"),
        ("no_batch", "batch_size=0 cannot be used: expected greater than or equal to 1"),
        ("baseline_as_dict", "expected an autotune.TrainConfig as baseline, got a dict"),
        ("text_for_batch_size", "expected a whole number as batch_size, got a str; pass batch_size=32"),
        ("two_batch_sizes", "batch_size is 64, but that of the baseline is 16; state it in the baseline only"),
    ],
)
def test_a_wrong_part_is_told(name: str, words: str) -> None:
    """Each part of a workload that cannot be what it is meant to be: target, expectation, what came, remedy."""
    target = f"tests.workloads.mistakes:{name}"
    message, _ = told(WorkloadError, lambda: load_workload(target))
    assert message.startswith(f"{target}: ")
    assert words in message


def test_exit_statuses_tell_whose_mistake_it_is() -> None:
    """A target that leads nowhere is a wrong option (2); a build that cannot be trained is the user's code (1)."""
    with pytest.raises(TargetError) as target:
        import_target("nowhere_at_all:build")
    with pytest.raises(WorkloadError) as workload:
        load_workload("tests.workloads.mistakes:nothing")
    assert (target.value.exit_status, workload.value.exit_status) == (2, 1)


def test_a_tuple_of_three_is_a_workload() -> None:
    """(model, dataset, loss) needs nothing of autotune's; the rest is PyTorch's defaults."""
    model, dataset = mistakes.model(), mistakes.dataset()
    built = adapt((model, dataset, mistakes.loss), "train:build")
    assert (built.model, built.dataset, built.loss) == (model, dataset, mistakes.loss)
    assert built.baseline_config == TrainConfig(batch_size=32)


@pytest.mark.parametrize("dataset", [torch.randn(8, 4), [torch.ones(4)] * 8, {0: torch.ones(4), 1: torch.ones(4)}])
def test_whatever_a_loader_takes_is_a_dataset(dataset: Any) -> None:
    """A tensor, a list and a mapping by index are map-style datasets too."""
    assert adapt(mistakes.workload(dataset=dataset), "train:build").dataset is dataset


def test_the_baseline_is_made_of_batch_and_accumulation() -> None:
    """Without a baseline the rest is PyTorch's defaults."""
    workload = Workload(nn.Linear(1, 1), mistakes.dataset(), mistakes.loss, batch_size=16, accumulation_steps=4)
    assert workload.baseline_config == TrainConfig(batch_size=16, accumulation_steps=4)


def test_the_optimizer_is_made_of_trainable_parameters() -> None:
    """AdamW when none is given; frozen parameters are left out either way."""
    model = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 2))
    default = mistakes.workload(model=model).make_optimizer()
    given = mistakes.workload(model=model, optimizer=torch.optim.SGD).make_optimizer()
    assert (type(default), type(given)) == (torch.optim.AdamW, torch.optim.SGD)
    for optimizer in (default, given):
        assert optimizer.param_groups[0]["params"] == list(model[1].parameters())
