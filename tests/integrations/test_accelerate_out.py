"""Accelerate trains with a tuned config: what the other frameworks do not have."""

from __future__ import annotations

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration

from tests.integrations.models import compiling, operators, tuned
from tests.integrations.trainings.by_accelerate import Run, accelerator_kwargs


def test_what_else_is_given_is_prepared() -> None:
    """A scheduler comes back as Accelerate's."""
    assert type(Run(tuned(batch_size=13)).scheduler).__name__ == "AcceleratedScheduler"


def test_copies_may_be_asynchronous() -> None:
    """``non_blocking`` goes with pinned memory."""
    words = accelerator_kwargs(tuned(pin_memory=True, non_blocking=True))
    assert words["dataloader_config"].non_blocking


@pytest.mark.parametrize("native", [True, False])
def test_the_model_is_compiled_once(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the accelerator where it was told to, else by `prepare`; with what lays out the inputs."""
    yours = {} if native else {"dynamo_plugin": None}
    with compiling(monkeypatch) as graphs:
        setting = tuned(compile_mode="default", batch_size=13, memory_format="channels_last")
        ran = Run(setting, hooked=False, **yours)
    assert operators(graphs).count("conv2d") == 1
    assert isinstance(ran.model, torch._dynamo.OptimizedModule) == native
    assert (ran.steps, ran.told) == (2, [])


def test_an_accelerator_made_otherwise_is_told() -> None:
    """Each knob that it was given otherwise is named; the loader keeps its batch size, so that steps keep theirs."""
    ran = Run(tuned(accumulation_steps=3, batch_size=13), mixed_precision="bf16", gradient_accumulation_steps=1)
    assert ran.told == [
        "Accelerate does not apply what was tuned: precision=fp32 (it is bf16); accumulation_steps=3 (it is 1); "
        "batch_size=13 (it is 1)"
    ]
    assert len(ran.loader) == 26


def test_a_batch_that_ranks_split_has_the_tuned_size_in_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate takes the loader's batch as that of all ranks."""
    monkeypatch.setattr(Accelerator, "num_processes", 2)
    ran = Run(tuned(batch_size=13), hooked=False, dataloader_config=DataLoaderConfiguration(split_batches=True))
    assert len(ran.loader) == 1
