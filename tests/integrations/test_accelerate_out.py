"""Accelerate trains with what was tuned, in a real loop."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from autotune.training.tuned import Tuned

pytest.importorskip("accelerate")

from accelerate import Accelerator

from autotune.integrations.accelerate import accelerator_kwargs, prepare
from tests.integrations.models import (
    KNOBS,
    LOADER,
    STEPS,
    Net,
    Seen,
    Steps,
    compiling,
    forget_accelerate,
    images,
    is_channels_last,
    loss_fn,
    operators,
    process_settings,
    settings,
    tuned,
)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Each test begins with no state, and leaves none."""
    forget_accelerate()
    yield
    forget_accelerate()


class Run:
    """One epoch with Accelerate."""

    def __init__(self, setting: Tuned, kind: Any = torch.optim.AdamW, hooked: bool = True, **yours: Any) -> None:
        forget_accelerate()
        self.net = Net()
        self.seen = Seen(self.net.conv) if hooked else None
        self.plain = kind(self.net.parameters(), lr=0.01)
        self.steps = Steps(self.plain)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            accelerator = Accelerator(**accelerator_kwargs(setting, **yours))
            self.precision = accelerator.mixed_precision
            self.model, optimizer, self.loader, self.scheduler = prepare(
                setting, accelerator, self.net, self.plain, DataLoader(images(), shuffle=True),
                torch.optim.lr_scheduler.ConstantLR(self.plain),
            )  # fmt: skip
            for batch in self.loader:
                with accelerator.accumulate(self.model):
                    accelerator.backward(loss_fn(self.model, batch))
                    optimizer.step()
                    self.scheduler.step()
                    optimizer.zero_grad()
        self.told = [str(one.message) for one in caught if "what was tuned" in str(one.message)]


@pytest.fixture(scope="module")
def run() -> Run:
    """One training with many knobs."""
    return Run(tuned(**KNOBS))


def test_nothing_is_missing(run: Run) -> None:
    """All of it is in effect, and nobody is warned."""
    assert run.told == []


def test_the_model_runs_in_the_tuned_precision(run: Run) -> None:
    """Accelerate's own mixing is on in the model's forward."""
    assert run.seen is not None
    assert run.precision == "bf16"
    assert run.seen.dtypes == {torch.bfloat16}


def test_gradients_are_accumulated(run: Run) -> None:
    """By ``accelerator.accumulate``; the last group is shorter."""
    assert run.steps.count == STEPS


def test_the_loader_has_the_tuned_settings(run: Run) -> None:
    """The user's loader is made again and prepared."""
    assert settings(run.loader) == LOADER
    assert run.loader.batch_sampler.batch_size == 4
    assert isinstance(run.loader.batch_sampler.sampler, torch.utils.data.RandomSampler)


def test_weights_and_inputs_are_laid_out(run: Run) -> None:
    """Channels last on both sides of the first convolution."""
    assert run.seen is not None
    assert is_channels_last(run.net.conv.weight)
    assert run.seen.channels_last == {True}


def test_the_optimizer_is_switched(run: Run) -> None:
    """The user's own optimizer is fused."""
    assert run.plain.defaults["fused"]


def test_what_else_is_given_is_prepared(run: Run) -> None:
    """A scheduler comes back as Accelerate's."""
    assert type(run.scheduler).__name__ == "AcceleratedScheduler"


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
    assert (ran.steps.count, ran.told) == (2, [])


def test_process_settings_and_attention_are_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads, allocator, and the kernels that attention may use."""
    with process_settings(monkeypatch) as allocators:
        ran = Run(tuned(num_threads=1, allocator="tuned", sdpa_backend="math", batch_size=13))
        assert torch.get_num_threads() == 1
    assert set(allocators) == {torch.device("cpu")}
    assert ran.seen is not None
    assert ran.seen.flash == {False}


def test_an_accelerator_made_otherwise_is_told() -> None:
    """Each knob that it was given otherwise is named."""
    ran = Run(tuned(accumulation_steps=3, batch_size=13), mixed_precision="bf16", gradient_accumulation_steps=1)
    assert ran.told == [
        "Accelerate does not apply what was tuned: precision=fp32 (it is bf16); accumulation_steps=3 (it is 1)"
    ]


def test_fp16_on_a_cpu_is_told() -> None:
    """Accelerate would silently train in fp32."""
    with pytest.warns(UserWarning, match=r"Accelerate does not apply .*: precision=fp16 "):
        assert accelerator_kwargs(tuned(precision="fp16"))["mixed_precision"] == "no"
