"""What the user's module has told torch before: it is the baseline, and a knob sets it both ways."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch._inductor import config as inductor
from torch.nn import attention

from autotune.knobs import with_what_is_in_force
from autotune.knobs.config import TrainConfig
from autotune.knobs.knob import Knob
from autotune.knobs.registry import KNOBS
from autotune.torch_settings.in_force import attention as read_attention
from autotune.torch_settings.precision import matmul_precision, products_in
from autotune.torch_settings.process_settings import restrict_attention, try_nvgemm, tune_allocator
from tests.torch_versions import needs_newer_precision

CUDA = torch.device("cuda")  # only named: nothing here asks a card


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All process-wide settings as they were, whatever a test does."""
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    newer = getattr(matmul, "fp32_precision", None)  # since torch 2.9
    search, convolutions = cudnn.benchmark, cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision("highest")
    if newer is not None:
        matmul.fp32_precision = newer
    cudnn.benchmark, cudnn.allow_tf32 = search, convolutions


def in_force(**knobs: object) -> TrainConfig:
    """A baseline as it really trains."""
    return with_what_is_in_force(TrainConfig.model_validate(knobs), CUDA)


def test_a_module_that_says_nothing_changes_nothing() -> None:
    """Torch's own settings are the defaults."""
    assert in_force() == TrainConfig()


def test_tf32_of_the_module_is_the_baselines() -> None:
    """Else its fp32 would be measured with TF32, and told as fp32."""
    torch.set_float32_matmul_precision("high")
    assert in_force().precision == "tf32"


@needs_newer_precision
def test_tf32_by_the_newer_interface_is_seen_as_well() -> None:
    """Which makes the older one raise, when it is asked."""
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    assert in_force().precision == "tf32"


def test_a_stated_precision_stays() -> None:
    """The baseline says what it is where it says something."""
    torch.set_float32_matmul_precision("high")
    assert in_force(precision="bf16").precision == "bf16"


def test_on_a_cpu_tf32_means_nothing() -> None:
    """The same setting allows bf16 there, at most."""
    torch.set_float32_matmul_precision("high")
    assert with_what_is_in_force(TrainConfig(), torch.device("cpu")).precision == "fp32"


def test_fp32_takes_tf32_back() -> None:
    """A candidate in fp32 computes in fp32, whatever the module has set; convolutions keep what they had."""
    torch.set_float32_matmul_precision("high")
    set_precision = KNOBS["precision"].on_process
    assert set_precision is not None
    set_precision("fp32", CUDA)
    assert matmul_precision() == "highest"
    set_precision("tf32", CUDA)
    assert matmul_precision() == "high"


SWITCHED = [knob for knob in KNOBS.values() if knob.scope in {"live", "compiled"} and knob.part != "loader"]
OTHER = {
    "precision": "tf32", "memory_format": "channels_last", "sdpa_backend": "math", "checkpointing": "blocks",
    "compile_mode": "default", "optimizer_impl": "fused", "num_threads": 3,
    "fp16_accumulation": True, "nvgemm": True,
}  # fmt: skip


@pytest.mark.parametrize("knob", SWITCHED, ids=lambda knob: knob.name)
def test_what_a_live_process_switches_is_read_and_taken_back(knob: Knob) -> None:
    """Each knob has a function that sets it, whose undo takes it back, and one that reads it."""
    model = nn.Sequential(*(nn.Sequential(nn.Conv2d(3, 3, 3)) for _ in range(2)))
    optimizer = torch.optim.SGD(model.parameters())
    config = TrainConfig.model_validate({knob.name: OTHER[knob.name]})
    assert knob.reads is not None
    before = knob.reads(model, optimizer, CUDA)
    if knob.on_process is not None:
        undo = knob.on_process(OTHER[knob.name], CUDA)
    elif knob.on_model is not None:
        undo = knob.on_model(model, config)
    else:
        assert knob.on_optimizer is not None
        undo = knob.on_optimizer(optimizer, OTHER[knob.name])
    assert knob.reads(model, optimizer, CUDA) == OTHER[knob.name] != before
    undo()
    assert knob.reads(model, optimizer, CUDA) == before


def test_nvidias_kernels_are_added_once() -> None:
    """A process is set up again for each model, and twice would be another key in Inductor's caches."""
    before = inductor.max_autotune_gemm_backends
    undo = try_nvgemm(True, CUDA)
    again = try_nvgemm(True, CUDA)
    assert inductor.max_autotune_gemm_backends == f"{before},NVGEMM"
    again()
    assert inductor.max_autotune_gemm_backends == f"{before},NVGEMM"
    undo()
    assert inductor.max_autotune_gemm_backends == before


def test_cudnns_search_is_set_both_ways() -> None:
    """A module that switches it on has it in its baseline; a candidate without it has it off."""
    torch.backends.cudnn.benchmark = True
    assert in_force().cudnn_benchmark is True
    let_search = KNOBS["cudnn_benchmark"].on_process
    assert let_search is not None
    let_search(False, CUDA)
    assert torch.backends.cudnn.benchmark is False


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_growing_segments_of_the_environment_are_the_baselines(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """By the newer variable and the older."""
    monkeypatch.setenv(name, "max_split_size_mb:128, expandable_segments:True")
    assert in_force().allocator == "tuned"


def test_what_the_environment_asks_of_the_allocator_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older torch takes one string for all settings: what it does not name is forgotten."""
    told: list[str] = []
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128,expandable_segments:False")
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", told.append, raising=False)
    tune_allocator(CUDA)
    assert told == ["max_split_size_mb:128,expandable_segments:True"]


@needs_newer_precision
@pytest.mark.parametrize("before", ["none", "ieee", "tf32"])
@pytest.mark.parametrize(("precision", "within"), [("fp32", "ieee"), ("tf32", "tf32")])
def test_products_are_computed_otherwise_for_a_while(precision: str, within: str, before: str) -> None:
    """What was set comes back after an error too, "none" included: compiled code is cached by it."""
    parts = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    parts[0].fp32_precision = before
    kept = [part.fp32_precision for part in parts]
    with contextlib.suppress(RuntimeError), products_in(precision):
        inside = parts[0].fp32_precision
        raise RuntimeError
    assert inside == within
    assert [part.fp32_precision for part in parts] == kept


@needs_newer_precision
def test_the_older_flag_can_be_read_afterwards() -> None:
    """Mixing both interfaces makes torch raise where it is read."""
    torch.backends.cuda.matmul.allow_tf32 = True
    with products_in("fp32"):
        pass
    assert torch.backends.cuda.matmul.allow_tf32


@pytest.mark.skipif(not hasattr(attention, "activate_flash_attention_impl"), reason="torch has its own kernels alone")
def test_a_later_flash_attention_takes_the_place_of_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through torch's own registry, until another config leaves the choice to torch."""
    removed: list[str] = []

    class Handle:
        def remove(self) -> None:
            removed.append("FA3")

    monkeypatch.setitem(attention._registry._FLASH_ATTENTION_IMPLS, "FA3", Handle)
    undo = restrict_attention("flash_attention_3", CUDA)
    assert read_attention() == "flash_attention_3"
    assert not removed
    undo()
    assert read_attention() == "default"
    assert removed == ["FA3"]
