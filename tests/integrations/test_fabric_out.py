"""Lightning Fabric trains with what was tuned, in a real loop."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from autotune.training.tuned import Tuned

pytest.importorskip("lightning")

from lightning.fabric import Fabric

from autotune.integrations.fabric import fabric_kwargs, setup
from tests.integrations.models import (
    KNOBS,
    LOADER,
    STEPS,
    Net,
    Seen,
    Steps,
    compiling,
    images,
    is_channels_last,
    loss_fn,
    operators,
    process_settings,
    settings,
    tuned,
)


class Run:
    """One epoch with Fabric."""

    def __init__(self, setting: Tuned, kind: Any = torch.optim.AdamW, hooked: bool = True, **yours: Any) -> None:
        self.net = Net()
        self.seen = Seen(self.net.conv) if hooked else None
        self.plain = kind(self.net.parameters(), lr=0.01)
        self.steps = Steps(self.plain)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.fabric = Fabric(**fabric_kwargs(setting, **yours))
            model, optimizer, self.loader = setup(
                setting, self.fabric, self.net, self.plain, DataLoader(images(), shuffle=True)
            )
            for micro_batches in setting.accumulate(self.loader):
                for batch in micro_batches:
                    self.fabric.backward(loss_fn(model, batch) / len(micro_batches))
                optimizer.step()
                optimizer.zero_grad()
        self.told = [str(one.message) for one in caught if "what was tuned" in str(one.message)]


@pytest.fixture(scope="module")
def run() -> Run:
    """One training with many knobs."""
    return Run(tuned(**KNOBS))


def test_the_model_runs_in_the_tuned_precision(run: Run) -> None:
    """Fabric's own mixing is on in the model's forward."""
    assert run.seen is not None
    assert run.seen.dtypes == {torch.bfloat16}


def test_gradients_are_accumulated(run: Run) -> None:
    """By groups of micro-batches of Fabric's own loader."""
    assert run.steps.count == STEPS


def test_the_loader_has_the_tuned_settings(run: Run) -> None:
    """The user's loader is made again, shuffled as before, and set up."""
    assert (run.loader.batch_size, settings(run.loader)) == (4, LOADER)
    assert isinstance(run.loader.sampler, torch.utils.data.RandomSampler)


def test_weights_and_inputs_are_laid_out(run: Run) -> None:
    """Channels last on both sides of the first convolution."""
    assert run.seen is not None
    assert is_channels_last(run.net.conv.weight)
    assert run.seen.channels_last == {True}


def test_the_optimizer_is_switched(run: Run) -> None:
    """The user's own optimizer is fused."""
    assert run.plain.defaults["fused"]


def test_what_the_loop_must_do_is_told(run: Run) -> None:
    """Fabric has no accumulation: the only knob that is left to the loop."""
    assert run.told == [
        "Fabric does not apply what was tuned: accumulation_steps=3 "
        "(it leaves that to your loop: for micro_batches in tuned.accumulate(loader))"
    ]


def test_the_model_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same way as in bursts."""
    with compiling(monkeypatch) as graphs:
        ran = Run(tuned(compile_mode="default", batch_size=13), hooked=False)
    assert "conv2d" in operators(graphs)
    assert (ran.steps.count, ran.told) == (2, [])


def test_process_settings_and_attention_are_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads, allocator, and the kernels that attention may use."""
    with process_settings(monkeypatch) as allocators:
        ran = Run(tuned(num_threads=1, allocator="tuned", sdpa_backend="math", batch_size=13))
        assert torch.get_num_threads() == 1
    assert set(allocators) == {torch.device("cpu")}
    assert ran.seen is not None
    assert ran.seen.flash == {False}


def test_another_precision_is_told() -> None:
    """An argument of the user's that wins is named."""
    ran = Run(tuned(batch_size=13), precision="bf16-mixed")
    assert ran.told == ["Fabric does not apply what was tuned: precision=fp32 (it is bf16-mixed)"]


def test_fp16_on_a_cpu_is_told() -> None:
    """Fabric would train in bf16."""
    with pytest.warns(UserWarning, match=r"Fabric does not apply .*: precision=fp16 "):
        assert fabric_kwargs(tuned(precision="fp16"))["precision"] == "32-true"
