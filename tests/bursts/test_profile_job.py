"""Profiles for real: the slowest operators, waits for the device, and what reading a sample takes."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, IterableDataset, Subset

from autotune.bursts.jobs import profile_job
from autotune.bursts.jobs.feed import DeviceFeed
from autotune.bursts.jobs.profile_job import batch_gain, operators_of, sample_cost, synchronisations
from autotune.bursts.jobs.trainer import Trainer
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Point
from autotune.training.tuned import Tuned
from autotune.workload.workload import Workload
from tests.conftest import RunnerOf


def read() -> torch.Tensor:
    """Takes two milliseconds."""
    time.sleep(0.002)
    return torch.ones(8)


def augment(sample: torch.Tensor) -> torch.Tensor:
    """Takes six milliseconds."""
    time.sleep(0.006)
    return sample * 2


class Slow(Dataset[torch.Tensor]):
    """Its samples take eight milliseconds."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return augment(read())


class Endless(IterableDataset[torch.Tensor]):
    """Without indices."""

    def __iter__(self) -> Any:
        while True:
            yield torch.ones(8)


def make_workload(dataset: Any, loss: Any = None) -> Workload:
    """A linear model on some samples."""
    plain = lambda model, batch: model(batch).square().mean()  # noqa: E731
    return Workload(nn.Linear(8, 512), dataset, loss or plain, batch_size=4)


def trainer_of(workload: Workload) -> Trainer:
    """Its baseline, eager."""
    tuned = Tuned(workload.baseline_config)
    return Trainer(workload, tuned, DeviceFeed(workload, tuned))


@pytest.mark.parametrize("wrap", [lambda data: data, lambda data: Subset(data, range(32))])
def test_a_sample_is_split_by_what_reading_it_calls(wrap: Any) -> None:
    """Through a dataset that only wraps another one, too."""
    cost = sample_cost(make_workload(wrap(Slow())))
    assert cost is not None
    assert [part.name for part in cost.parts] == ["augment", "read"]
    assert 0.5 < cost.parts[0].seconds / cost.seconds < 0.9  # three quarters, where nobody else wants the processor
    assert (cost.parts[0].where or "").startswith("test_profile_job.py:")


class Summing(Slow):
    """Reads a sample in a generator expression."""

    def __getitem__(self, index: int) -> torch.Tensor:
        total = 0.0
        for number in (float(n) for n in range(20_000)):
            total += number
        return torch.full((8,), total)


def test_a_generator_expression_keeps_its_name() -> None:
    """As Python writes it: only what is built in is unwrapped."""
    cost = sample_cost(make_workload(Summing()))
    assert cost is not None
    assert cost.parts[0].name == "<genexpr>"


def test_an_iterable_dataset_has_no_samples_to_read_apart() -> None:
    """They come when they come."""
    assert sample_cost(make_workload(Endless())) is None


def test_the_slowest_operators_are_those_of_the_model() -> None:
    """Forward, backward and optimizer; the time of one sample."""
    profile = operators_of(trainer_of(make_workload(Slow())))
    names = [operator.name for operator in profile.operators]
    assert {"aten::addmm", "aten::mm"} & set(names)
    assert 0 < len(names) <= 10
    assert profile.operator_calls > 10
    assert profile.busy_fraction is None


def test_a_loss_that_waits_for_the_device_is_found_by_its_line() -> None:
    """Every value that it asks for is waited for."""

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        value = functional.mse_loss(model(batch), torch.zeros(len(batch), 512))
        assert value.item() >= 0
        return value

    (found,) = synchronisations(trainer_of(make_workload(Slow(), loss)))
    assert found.operator == "aten::_local_scalar_dense"
    assert found.where.startswith("test_profile_job.py:")
    assert found.calls == 1


def test_a_loss_that_does_not_wait_has_nothing_to_report() -> None:
    """Whatever torch and autotune do themselves is not the user's."""
    assert synchronisations(trainer_of(make_workload(Slow()))) == ()


def gain_of(workload: Workload, step_seconds: Callable[[int], float], monkeypatch: pytest.MonkeyPatch) -> float | None:
    """What `batch_gain` finds where a step takes so long for its number of samples, and nothing else takes any time."""
    now = 0.0

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        nonlocal now
        now += step_seconds(len(batch))
        return model(batch).square().mean()

    monkeypatch.setattr(profile_job, "perf_counter", lambda: now)
    return batch_gain(trainer_of(dataclasses.replace(workload, loss=loss)))


@pytest.mark.parametrize(
    ("step_seconds", "gain"),
    [(lambda _: 0.02, 2.0), (lambda samples: 0.005 * samples, 1.0)],
    ids=["fixed", "by sample"],
)
def test_what_a_step_takes_for_few_samples_too_is_measured(
    step_seconds: Callable[[int], float], gain: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that takes 20 ms in any case leaves half of the rate unused; one that follows its samples does not."""
    assert gain_of(make_workload(torch.ones(64, 8)), step_seconds, monkeypatch) == pytest.approx(gain)


def test_incomplete_batches_are_counted_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch of five samples fills no batch of eight; a step whose time follows its samples gains nothing by more."""
    workload = dataclasses.replace(make_workload(torch.ones(5, 8)), batch_size=8)
    assert gain_of(workload, lambda samples: 0.005 * samples, monkeypatch) == pytest.approx(1.0)


@pytest.mark.parametrize("compile_mode", [None, pytest.param("default", marks=pytest.mark.slow)])
def test_a_profile_comes_from_a_process_of_its_own(compile_mode: Any, runner_of: RunnerOf) -> None:
    """Compiled or not."""
    runner = runner_of("tests.workloads.tiny:build")
    profile = runner.profile(Point(config=TrainConfig(compile_mode=compile_mode)), 120.0)
    assert profile.operators
    assert profile.sample is not None
    assert (profile.batch_gain is None) == (compile_mode is not None)
