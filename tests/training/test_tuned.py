"""Every knob takes effect in torch, and what the user's training does with a tuned config is what was measured."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler, TensorDataset

from autotune.errors import ConfigError
from autotune.knobs.config import TrainConfig
from autotune.torch_settings.process_settings import restrict_attention
from autotune.training.tuned import Tuned, torch_device
from tests.torch_versions import needs_newer_precision
from tests.training.test_load import write

META = torch.device("meta")


def tuned(**knobs: Any) -> Tuned:
    """The default config with some knobs changed, on the CPU."""
    return Tuned(TrainConfig(**knobs))


def numbers(samples: int) -> TensorDataset:
    """0, 1, 2, … as a dataset."""
    return TensorDataset(torch.arange(samples, dtype=torch.float32)[:, None])


def run(code: str) -> str:
    """What a fresh interpreter prints: for settings that cannot be taken back."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


# The loader


def test_the_loader_has_the_tuned_settings() -> None:
    """Each loader knob reaches the DataLoader."""
    loader = tuned(batch_size=8, num_workers=2, prefetch_factor=4, persistent_workers=True, pin_memory=True).dataloader(
        numbers(64), shuffle=True
    )
    assert (loader.batch_size, loader.num_workers, loader.prefetch_factor) == (8, 2, 4)
    assert loader.persistent_workers
    assert loader.pin_memory
    assert isinstance(loader.sampler, torch.utils.data.RandomSampler)


def test_keyword_arguments_of_the_user_win() -> None:
    """What is passed goes to DataLoader, over what was tuned."""
    loader = tuned(batch_size=8, num_workers=2).dataloader(numbers(64), batch_size=4, num_workers=1)
    assert (loader.batch_size, loader.num_workers) == (4, 1)


def test_workers_can_be_switched_off_to_debug() -> None:
    """What was tuned for workers does not apply without any, where DataLoader would refuse it."""
    config = {"num_workers": 2, "prefetch_factor": 4, "persistent_workers": True}
    loader = tuned(**config).dataloader(numbers(64), num_workers=0)
    assert (loader.num_workers, loader.persistent_workers) == (0, False)


@pytest.mark.parametrize("workers", [0, 1])
def test_arguments_for_workers_apply_where_there_are_some(workers: int) -> None:
    """A script works with each result; what it asks of no workers itself is refused as ever."""
    given = {"persistent_workers": True, "prefetch_factor": 4, "timeout": 60, "multiprocessing_context": "fork"}
    loader = tuned(num_workers=workers).dataloader(numbers(64), **given)
    assert (loader.persistent_workers, loader.prefetch_factor, loader.timeout) == (
        (True, 4, 60) if workers else (False, None, 0)
    )
    assert loader.num_workers == workers
    with pytest.raises(ValueError, match="num_workers"):
        tuned(num_workers=workers).dataloader(numbers(64), num_workers=0, **given)


class Stream(IterableDataset[float]):
    """Each worker yields all of it."""

    def __iter__(self) -> Iterator[float]:
        yield from map(float, range(10))


class SizedStream(Stream):
    """Tells its length."""

    def __len__(self) -> int:
        return 10


@pytest.mark.parametrize(
    ("measured", "stream", "workers"),
    [(100, Stream(), 0), (None, Stream(), 2), (10, SizedStream(), 2)],
    ids=["not the measured one", "iterable", "iterable with a length"],
)
def test_workers_repeat_no_iterable_data_set(measured: int | None, stream: Any, workers: int, tmp_path: Path) -> None:
    """Where samples with indices were measured, any number of workers was right; not so here."""
    _, result = write(tmp_path)
    result = result.model_copy(update={"workload": result.workload.model_copy(update={"samples": measured})})
    setting = Tuned(TrainConfig(num_workers=2, prefetch_factor=4), result=result)
    assert setting.dataloader(stream).num_workers == workers
    assert setting.dataloader(stream, num_workers=1).num_workers == 1
    assert setting.dataloader(numbers(64)).num_workers == 2


def test_a_batch_sampler_takes_the_place_of_the_batch_size() -> None:
    """Batches of the user's making stay as they are, compiled or not; None is no sampler."""
    sampler = BatchSampler(SequentialSampler(range(10)), 3, drop_last=False)
    for mode in (None, "default"):
        loader = tuned(batch_size=8, compile_mode=mode).dataloader(numbers(10), batch_sampler=sampler)
        assert [len(batch[0]) for batch in loader] == [3, 3, 3, 1]
        assert tuned(batch_size=8, compile_mode=mode).dataloader(numbers(64), batch_sampler=None).batch_size == 8


@pytest.mark.parametrize("mode", [None, "default"])
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [({}, [8, 8, 4]), ({"sampler": range(5)}, [5]), ({"drop_last": True}, [8, 8]), ({"batch_size": None}, [1] * 20)],
)
def test_the_last_batch_is_dropped_where_the_user_says_so(mode: Any, arguments: Any, expected: list[int]) -> None:
    """As by a loader of torch's, compiled or not."""
    loader = tuned(batch_size=8, compile_mode=mode).dataloader(numbers(20), **arguments)
    assert [len(batch[0]) for batch in loader] == expected


# Precision and process-wide settings


@pytest.mark.parametrize(
    ("precision", "expected"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_autocast_computes_in_the_tuned_precision(precision: Any, expected: torch.dtype) -> None:
    """A matrix product inside comes out in that type; outside nothing changes."""
    matrix = torch.ones(4, 4)
    with tuned(precision=precision).autocast():
        inside = matrix @ matrix
    assert (inside.dtype, (matrix @ matrix).dtype) == (expected, torch.float32)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_the_scaler_scales_for_fp16_only(precision: Any) -> None:
    """In the other precisions it lets everything through."""
    assert tuned(precision=precision).scaler().is_enabled() == (precision == "fp16")


def test_arguments_of_the_scaler_pass_through() -> None:
    """`growth_interval` and the like are the user's to choose."""
    scaler = tuned(precision="fp16").scaler(growth_interval=7, init_scale=8.0)
    assert (scaler.get_growth_interval(), scaler.get_scale()) == (7, 8.0)


def test_process_settings_take_effect() -> None:
    """Threads, TF32 and cuDNN's benchmark are set for the process; without being asked for they are left alone."""
    code = """
        import torch
        from autotune import TrainConfig, Tuned
        def state():
            cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
            return torch.get_num_threads(), torch.get_float32_matmul_precision(), cuda.allow_tf32, cudnn.benchmark
        before = state()
        Tuned(TrainConfig()).apply_process_settings()
        assert state() == before
        threads = 1 if before[0] > 1 else 2
        Tuned(TrainConfig(num_threads=threads, precision="tf32", cudnn_benchmark=True)).apply_process_settings()
        print(state() == (threads, "high", True, True))
    """
    assert run(code) == "True"


@needs_newer_precision
@pytest.mark.parametrize(
    "before",
    [
        "torch.backends.cuda.matmul.allow_tf32 = False",
        pytest.param("torch.set_float32_matmul_precision('highest')", marks=pytest.mark.slow),
        pytest.param("torch.backends.cuda.matmul.fp32_precision = 'ieee'", marks=pytest.mark.slow),
        pytest.param("torch.backends.fp32_precision = 'ieee'", marks=pytest.mark.slow),
    ],
)
def test_tf32_agrees_with_whichever_interface_the_user_chose(before: str) -> None:
    """After both, each of torch's two interfaces can still be read, as Inductor does, and both say TF32."""
    code = f"""
        import torch
        {before}
        from autotune import TrainConfig, Tuned
        Tuned(TrainConfig(precision="tf32")).apply_process_settings()
        print(torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_tf32)
        print(torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.allow_tf32)
    """
    assert run(code).split() == ["high", "True", "tf32", "True"]


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc is tuned")
def test_the_tuned_allocator_serves_large_tensors_from_the_heap() -> None:
    """A tensor of 64 MiB is an mmap of its own by default, and none with the tuned allocator."""
    code = """
        import ctypes, sys, torch
        from autotune import TrainConfig, Tuned
        class Info(ctypes.Structure):
            names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
            _fields_ = [(name, ctypes.c_size_t) for name in names.split()]
        if not hasattr(ctypes.CDLL(None), "mallinfo2"):
            print("no mallinfo2")
            sys.exit()
        mallinfo2 = ctypes.CDLL(None).mallinfo2
        mallinfo2.restype = Info
        def mapped_by_a_tensor():
            before = mallinfo2().hblkhd
            tensor = torch.ones(2**24)
            return mallinfo2().hblkhd - before >= 2**26
        Tuned(TrainConfig()).apply_process_settings()
        default = mapped_by_a_tensor()
        Tuned(TrainConfig(allocator="tuned")).apply_process_settings()
        print(default, mapped_by_a_tensor())
    """
    assert run(code) in {"True False", "no mallinfo2"}


# Memory format


class Images(nn.Module):
    """Weights of two, four and five dimensions, and a buffer of four."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Linear(4, 2)
        self.picture = nn.Conv2d(3, 8, 3)
        self.video = nn.Conv3d(3, 8, 3)
        self.register_buffer("mean", torch.ones(1, 3, 4, 4))


def test_channels_last_is_for_convolutions_of_images() -> None:
    """Nothing is put around others; weights and buffers keep their strides, in which checkpoints need them."""
    model = Images()
    tuned(memory_format="channels_last").prepare(model)
    wrapped = {name for name, part in model.named_modules() if "forward" in vars(part)}
    assert wrapped == {"", "picture"}
    assert all(value.is_contiguous() for value in model.state_dict().values())


def test_channels_last_changes_no_result() -> None:
    """Trained from the same weights with gradients that are there already, the same weights come out."""
    outcomes = []
    for memory_format in ("contiguous", "channels_last"):
        torch.manual_seed(0)
        model, images = nn.Conv2d(3, 8, 3), torch.randn(2, 3, 8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(images).square().mean().backward()
        setting = tuned(memory_format=memory_format)
        setting.prepare(model, optimizer)
        model(setting.to_device(images)).square().mean().backward()
        optimizer.step()
        outcomes.append(model.weight.detach())
    torch.testing.assert_close(outcomes[1], outcomes[0])


# Compiling and attention


@pytest.mark.parametrize("make", [lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), Images])
def test_compiling_is_in_place_and_real(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One graph is compiled, of a model of torch's own class too, and used again; the keys of its state stay."""
    monkeypatch.setattr(Images, "forward", lambda self, features: self.flat(features).relu())
    torch._dynamo.reset()
    model = make()
    keys, features = list(model.state_dict()), torch.randn(3, 4)
    expected = model(features)
    prepared, _ = tuned(compile_mode="default").prepare(model)
    counters.clear()
    torch.testing.assert_close(prepared(features), expected)
    prepared(features)
    assert prepared is model
    assert list(model.state_dict()) == keys
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


@pytest.mark.usefixtures("_free_attention")
def test_a_copy_of_a_compiled_model_is_its_own() -> None:
    """A deep copy, such as an average of the weights, computes with its own weights and not with the original's."""
    model = nn.Sequential(nn.Linear(4, 2))
    tuned(compile_mode="default", sdpa_backend="math").prepare(model)
    average = AveragedModel(model)
    features = torch.ones(1, 4)
    before = average(features)
    with torch.no_grad():
        model[0].weight.add_(1.0)
    torch.testing.assert_close(average(features), before)


class Attention(nn.Module):
    """Attention of its input with itself."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """``(batch, heads, length, width)`` to the same."""
        return functional.scaled_dot_product_attention(features, features, features)


def attention_kernels(call: Any) -> set[str]:
    """The names of the attention kernels that a call runs."""
    with torch.autograd.profiler.profile() as profile:
        call()
    return {event.name for event in profile.function_events or () if "_attention_" in event.name}


@pytest.fixture
def _free_attention() -> Iterator[None]:
    """Lets torch choose again, whatever a test has asked for."""
    yield
    restrict_attention("default", torch.device("cpu"))


@pytest.mark.usefixtures("_free_attention")
def test_the_attention_backend_is_restricted() -> None:
    """Attention runs on the chosen kernel, until another config leaves the choice to torch."""
    features = torch.randn(1, 2, 8, 16)
    model, tag = Attention(), torch.compiler.config.cache_key_tag
    free = attention_kernels(lambda: model(features))
    tuned(sdpa_backend="math").prepare(model)
    assert "aten::_scaled_dot_product_attention_math" not in free
    assert attention_kernels(lambda: model(features)) == {"aten::_scaled_dot_product_attention_math"}
    assert torch.compiler.config.cache_key_tag != tag  # compiled code on disk is told apart
    tuned().prepare(model)
    assert attention_kernels(lambda: model(features)) == free
    assert torch.compiler.config.cache_key_tag == tag


@pytest.mark.usefixtures("_free_attention")
def test_what_is_computed_again_in_backward_has_the_same_attention() -> None:
    """Outside of the model's forward: another kernel would keep other tensors, which torch refuses."""
    features = torch.randn(1, 2, 8, 16, requires_grad=True)
    model = Attention()
    tuned(sdpa_backend="math").prepare(model)
    loss = checkpoint(model, features, use_reentrant=False).sum()
    assert attention_kernels(loss.backward) >= {"aten::_scaled_dot_product_attention_math"}
    assert not any("flash" in kernel for kernel in attention_kernels(lambda: model(features)))


@pytest.mark.usefixtures("_free_attention")
def test_a_backend_that_cannot_run_falls_back() -> None:
    """Where the chosen kernel does not exist, here a GPU's, the plain one computes the same."""
    features = torch.randn(1, 2, 8, 16)
    model = Attention()
    expected = model(features)
    tuned(sdpa_backend="cudnn_attention").prepare(model)
    torch.testing.assert_close(model(features), expected)


@pytest.mark.usefixtures("_free_attention")
def test_restricting_attention_breaks_no_graph() -> None:
    """Compiled, the restriction is part of the one graph."""
    torch._dynamo.reset()
    model = Attention()
    tuned(sdpa_backend="math", compile_mode="default").prepare(model)
    counters.clear()
    model(torch.randn(1, 2, 8, 16))
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


# Devices


@pytest.mark.parametrize("device", ["cuda:99", "rocm:0", "meta", "toaster"])
def test_a_device_that_is_not_here_is_told(device: str) -> None:
    """What was asked for, what there is, and what to do; also for a word that is no device."""
    with pytest.raises(ConfigError, match=f"torch finds here .cpu.*, got {device!r}; pass device="):
        torch_device(device)


def test_importing_the_package_does_not_import_torch() -> None:
    """Only what is asked for imports torch."""
    code = """
        import sys, autotune
        before = "torch" in sys.modules
        autotune.Tuned
        print(before, "torch" in sys.modules)
    """
    assert run(code) == "False True"
