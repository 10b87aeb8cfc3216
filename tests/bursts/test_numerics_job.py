"""The numerics check for real: eager fp32, again, and a config, each from one state, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.jobs.numerics_job import _train
from autotune.errors import WorkloadError
from autotune.knobs.config import TrainConfig
from autotune.measuring.numerics import Agreement, Numerics, judge_agreement
from autotune.measuring.records import Outcome, Point
from autotune.recorder.gradients import cosine, gradient_of
from autotune.training.tuned import Tuned
from autotune.workload.workload import Workload
from tests.conftest import RunnerOf

PLAN = BurstPlan(measure_seconds=0.2)


@pytest.fixture
def measured(runner_of: RunnerOf) -> Callable[..., Agreement]:
    """The figures of a config over some steps of one of the workloads with known numerics."""

    def measure(workload: str, steps: int = 10, **knobs: object) -> Agreement:
        config = TrainConfig(**{"batch_size": 32, **knobs})
        return runner_of(f"tests.workloads.precision:{workload}").agreement(Point(config=config), steps, 120.0)

    return measure


@pytest.fixture
def verdict(measured: Callable[..., Agreement]) -> Callable[..., Numerics]:
    """What is made of them."""

    def judge(workload: str, steps: int = 10, **knobs: object) -> Numerics:
        config = TrainConfig(**{"batch_size": 32, **knobs})
        return judge_agreement(measured(workload, steps, **knobs), config, TrainConfig(batch_size=32))

    return judge


def test_fp32_agrees_with_itself_to_the_bit(measured: Callable[..., Agreement]) -> None:
    """One state, one set of batches, the same random numbers."""
    found = measured("sound")
    assert found.candidate.losses == found.reference.losses
    assert found.candidate.cosine == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_agrees_where_it_is_sound(precision: str, verdict: Callable[..., Numerics]) -> None:
    """Within the limits of its rounding."""
    found = verdict("sound", precision=precision)
    assert found.outcome == "agrees", found.reason


@pytest.mark.slow
def test_a_compiled_model_agrees(verdict: Callable[..., Numerics]) -> None:
    """The compiler orders sums again, and no more."""
    found = verdict("sound", compile_mode="default")
    assert found.outcome == "agrees", found.reason


def test_dropout_does_not_hide_the_rest(measured: Callable[..., Agreement]) -> None:
    """Each precision draws other masks, so none are drawn."""
    assert measured("with_dropout", precision="bf16").candidate.cosine > 0.99


def test_another_loss_in_bf16_is_found(verdict: Callable[..., Numerics]) -> None:
    """It is finite and it falls; only beside fp32 can one see that it is wrong."""
    assert verdict("wrong_in_bf16", precision="bf16").outcome == "disagrees"


def test_ctc_that_overflows_in_fp16_is_found(verdict: Callable[..., Numerics]) -> None:
    """Its sum passes what fp16 holds, from the first step on: infinity."""
    found = verdict("ctc", 2, precision="fp16", batch_size=64)
    assert found.outcome == "disagrees"
    assert "not finite" in found.reason


def test_ctc_that_overflows_in_fp16_is_no_burst_that_ended_well(runner_of: RunnerOf) -> None:
    """So it is never even a candidate."""
    point = Point(config=TrainConfig(batch_size=64, precision="fp16"))
    burst = runner_of("tests.workloads.precision:ctc").run(point, PLAN, 60.0)
    assert burst.outcome is Outcome.INVALID


@pytest.mark.slow
def test_ctc_summed_in_fp32_agrees(verdict: Callable[..., Numerics]) -> None:
    """The remedy of the one above."""
    found = verdict("ctc_summed_in_fp32", precision="fp16", batch_size=64)
    assert found.outcome == "agrees", found.reason


def test_eager_fp32_without_memory_is_compared_on_smaller_batches(verdict: Callable[..., Numerics]) -> None:
    """Whatever type the error has: 32 samples are halved to eight."""
    found = verdict("large_in_fp32", precision="bf16")
    assert found.outcome == "agrees", found.reason


class Replayed(torch.autograd.Function):
    """Leaves each loss in the same memory, as a CUDA graph does."""

    memory = torch.zeros(())

    @staticmethod
    def forward(_: Any, loss: torch.Tensor) -> torch.Tensor:
        """The loss, in place of the last one."""
        Replayed.memory.copy_(loss)
        return Replayed.memory.detach()

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Nothing is changed."""
        return gradient


def test_losses_of_micro_batches_are_those_that_the_graph_has_left() -> None:
    """The second micro-batch overwrites the first one's."""
    model, config = nn.Linear(1, 1, bias=False), TrainConfig(batch_size=1, accumulation_steps=2)
    nn.init.ones_(model.weight)

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return Replayed.apply(model(batch).mean())

    batches = [torch.full((1, 1), value) for value in (1.0, 2.0)]
    workload = Workload(model, TensorDataset(torch.ones(4, 1)), loss, batch_size=1)
    trace, _ = _train(workload, Tuned(config), batches, 2, seed=0)
    assert trace.losses == (1.0, 2.0)


def test_batch_norm_is_seen(measured: Callable[..., Agreement]) -> None:
    """What it means is told where the micro-batch has changed."""
    assert measured("with_batch_norm").has_batch_norm
    assert not measured("sound").has_batch_norm


@pytest.mark.parametrize(("workload", "half"), [("in_bf16", True), ("loss_in_bf16", True), ("sound", False)])
def test_half_precision_of_the_models_own_is_seen(
    workload: str, half: bool, measured: Callable[..., Agreement]
) -> None:
    """Whatever the config, its losses are rounded."""
    assert measured(workload).reference.half is half


def test_a_check_that_takes_too_long_says_so(runner_of: RunnerOf) -> None:
    """It is ended like any burst."""
    runner = runner_of("tests.workloads.precision:slow")
    with pytest.raises(WorkloadError, match="numerics check did not finish"):
        runner.agreement(Point(config=TrainConfig()), 20, 1.0)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1.0, 0.0], [2.0, 0.0], 1.0),
        ([1.0, 0.0], [0.0, 1.0], 0.0),
        ([1.0], [-1.0], -1.0),
        ([0.0], [0.0], 1.0),
        ([1.0], [1.0, 0.0], 0.0),
        ([None, 1.0], [2.0, 1.0], 0.2**0.5),
    ],
)
def test_cosines(one: list[float | None], other: list[float | None], expected: float) -> None:
    """A weight without a gradient counts as zeros; gradients of different weights have nothing in common."""
    gradients = []
    for elements in (one, other):
        weights = [torch.zeros(1, requires_grad=True) for _ in elements]
        for weight, element in zip(weights, elements, strict=True):
            weight.grad = None if element is None else torch.tensor([element])
        gradients.append(gradient_of([torch.zeros(3), *weights], lambda part: part))
    assert cosine(gradients[0][0], gradients[1][0]) == pytest.approx(expected)
    assert gradients[1][1] == pytest.approx(sum(element**2 for element in other if element) ** 0.5)


def test_a_large_gradient_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its norm is of all elements."""
    monkeypatch.setattr("autotune.recorder.gradients.MOST_ELEMENTS", 10)
    weight = torch.zeros(5, 20, requires_grad=True)
    weight.grad = torch.ones(5, 20)
    values, norm = gradient_of([weight], lambda part: part)
    assert (values.shape, norm) == ((10,), 10.0)
