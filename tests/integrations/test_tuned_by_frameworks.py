"""Each framework trains with a tuned config: each knob is looked for where it takes effect, in a real epoch."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch

from autotune.integrations import common
from tests.integrations.models import KNOBS, LOADER, STEPS, process_settings, settings, tuned

pytestmark = pytest.mark.filterwarnings("ignore:.*(many workers|logging interval|barebones|isinstance.treespec)")


@pytest.fixture(scope="module", params=["lightning", "fabric", "accelerate", "transformers"])
def framework(request: pytest.FixtureRequest) -> Any:
    """How a framework trains; skipped where it is not installed."""
    return import_module(f"tests.integrations.trainings.by_{request.param}")


@pytest.fixture(scope="module")
def run(framework: Any) -> Any:
    """One training with many knobs."""
    return framework.Run(tuned(**KNOBS))


def test_nothing_is_missing(framework: Any, run: Any) -> None:
    """All of it is in effect, without a warning; Fabric has no accumulation, which it leaves to the loop."""
    assert tuple(run.told) == framework.TOLD


def test_the_step_runs_in_the_tuned_precision(run: Any) -> None:
    """Autocast is on in the model's forward."""
    assert run.seen.dtypes == {torch.bfloat16}


def test_gradients_are_accumulated(run: Any) -> None:
    """Seven batches, three at a time, are three optimizer steps; the last group is shorter."""
    assert (len(run.loader), run.steps) == (7, STEPS)


def test_the_loader_has_the_tuned_settings(framework: Any, run: Any) -> None:
    """The user's loader is made again, and draws as before."""
    assert settings(run.loader) == LOADER
    assert run.loader.batch_sampler.batch_size == 4
    assert isinstance(run.loader.batch_sampler.sampler, framework.SAMPLER)


def test_workers_that_persist_draw_as_those_that_start_again(framework: Any) -> None:
    """The same batches, and the same random numbers afterwards; a framework may have made its own loader of ours."""
    drawn = []
    for persists in (False, True):
        loader = framework.Run(tuned(batch_size=4, num_workers=1, persistent_workers=persists)).loader
        loader = getattr(loader, "base_dataloader", loader)  # what Accelerate puts around it needs its state
        torch.manual_seed(0)
        epochs = [[str(batch) for batch in loader] for _ in range(2)]
        drawn.append((epochs, torch.rand(1)))
    assert drawn[0] == drawn[1]


def test_convolutions_compute_channels_last(run: Any) -> None:
    """Their weights stay: safetensors refuses others, at the first checkpoint."""
    assert run.conv.weight.is_contiguous()
    assert run.seen.channels_last == {True}


def test_the_optimizer_is_switched(run: Any) -> None:
    """The user's own optimizer is fused."""
    assert run.optimizer.defaults["fused"]


def test_process_settings_and_attention_are_applied(framework: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads, allocator, and the kernels that attention may use."""
    with process_settings(monkeypatch) as allocators:
        ran = framework.Run(tuned(num_threads=1, allocator="tuned", sdpa_backend="math", batch_size=13))
        assert torch.get_num_threads() == 1
    assert set(allocators) == {torch.device("cpu")}
    assert ran.seen.flash == {False}


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("compiles", [False, True], ids=["here", "by the framework"])
def test_gradients_survive_replays_where_the_framework_accumulates(compiles: bool, accumulation: int) -> None:
    """Its own arguments may say so where a single micro-batch was tuned, and the other way round."""
    model = torch.nn.Linear(1, 1)
    setting = tuned(compile_mode="reduce-overhead", accumulation_steps=4 - accumulation)
    common.apply(setting, model, [], device=setting.device, compiles=compiles, micro_steps=accumulation)
    assert bool(model.weight._post_accumulate_grad_hooks) == (accumulation > 1)  # type: ignore[attr-defined]


def test_fp16_on_a_cpu_is_told(framework: Any) -> None:
    """The framework would silently train in another precision."""
    word, value = framework.FP32
    with pytest.warns(UserWarning, match=rf"{framework.NAME} does not apply .*: precision=fp16 "):
        assert framework.words(tuned(precision="fp16"))[word] == value
