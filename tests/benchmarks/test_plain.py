"""The plain loop respects each knob, by means of its own."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from autotune import TrainConfig, Workload
from benchmarks import plain
from tests.knobs.models import stack

LARGE_BLOCKS_MAPPED = """
import ctypes, torch
from benchmarks import plain
class Info(ctypes.Structure):
    names = "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names]
libc = ctypes.CDLL("libc.so.6")
libc.mallinfo2.restype = Info
for allocator in ("default", "tuned"):
    if allocator == "tuned":
        plain.keep_memory(torch.device("cpu"))
    before = libc.mallinfo2().hblks
    large = [torch.empty(2**24) for _ in range(4)]
    print(libc.mallinfo2().hblks - before)
    del large
"""


def sgd(params: Any) -> torch.optim.Optimizer:
    """Plain gradient descent: a step is as long as the gradient."""
    return torch.optim.SGD(params, lr=1.0, momentum=0.5)


def make_workload(samples: int = 10, model: nn.Module | None = None, **fields: Any) -> Workload:
    """A linear model, a few samples, and the squared error."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return (model(batch[0]) - 1).square().mean()

    data = TensorDataset(torch.ones(samples, 3), torch.zeros(samples))
    return Workload(model or nn.Linear(3, 1), data, loss, optimizer=sgd, **fields)


def make_loop(workload: Workload | None = None, **knobs: Any) -> plain.Loop:
    """A loop over that workload on the CPU."""
    return plain.Loop(workload or make_workload(), TrainConfig(**{"batch_size": 2, **knobs}), "cpu")


@pytest.fixture
def _settings_back() -> Iterator[None]:
    """Puts the settings of the process back, whatever a test does."""
    threads, benchmark = torch.get_num_threads(), torch.backends.cudnn.benchmark
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield
    torch.set_num_threads(threads)
    torch.backends.cudnn.benchmark = benchmark
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn


def test_an_epochs_last_step_takes_what_is_left() -> None:
    """Five batches of two, accumulated by two, are steps of four, four and two samples; then the next epoch begins."""
    loop = make_loop(accumulation_steps=2)
    steps = loop.steps()
    assert [next(steps) for _ in range(4)] == [4, 4, 2, 4]
    assert (loop.epochs, loop.batches) == (1, 7)


def test_an_empty_loader_is_an_error() -> None:
    """It would go round for ever."""
    loop = make_loop(make_workload(samples=1), compile_mode="default")
    with pytest.raises(RuntimeError, match="no batch"):
        next(loop.steps())


def test_gradients_are_accumulated_as_a_mean() -> None:
    """Two micro-batches of two step as one batch of four does."""
    weights = []
    for knobs in ({"batch_size": 4}, {"batch_size": 2, "accumulation_steps": 2}):
        torch.manual_seed(0)
        loop = make_loop(**knobs)
        next(loop.steps())
        weights.append(loop.workload.model.weight.detach())
    torch.testing.assert_close(*weights)


def test_gradients_are_clipped() -> None:
    """Without momentum's past, the first step is as long as the clipped gradient."""
    loop = make_loop(make_workload(clip_grad_norm=1e-3))
    before = torch.cat([p.detach().flatten().clone() for p in loop.workload.model.parameters()])
    next(loop.steps())
    after = torch.cat([p.detach().flatten() for p in loop.workload.model.parameters()])
    assert float((after - before).norm()) == pytest.approx(1e-3, rel=1e-2)


def test_workers_are_those_of_the_config() -> None:
    """Number, prefetching, persistence and pinning arrive at the DataLoader."""
    loader = make_loop(num_workers=2, prefetch_factor=5, persistent_workers=True, pin_memory=True).loader
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers, loader.pin_memory) == (
        2,
        5,
        True,
        True,
    )


def test_no_workers_is_pytorchs_default() -> None:
    """What is for workers only is not passed: DataLoader would refuse it."""
    loader = make_loop().loader
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (0, None, False)


def test_only_a_compiled_model_drops_the_incomplete_batch() -> None:
    """Another shape would compile again."""
    assert not make_loop().loader.drop_last
    assert make_loop(compile_mode="default").loader.drop_last


def test_model_is_compiled_when_the_config_says_so() -> None:
    """The compiled model is called, and its parameters are the model's own."""
    loop = make_loop(compile_mode="default")
    assert loop.model is not loop.workload.model
    assert loop.model._orig_mod is loop.workload.model


@pytest.mark.parametrize(("implementation", "foreach", "fused"), [("fused", False, True), ("foreach", True, False)])
def test_optimizer_is_made_anew_in_another_form(implementation: str, foreach: bool, fused: bool) -> None:
    """Its class and settings stay, the form changes."""
    optimizer = plain.make_optimizer(make_workload(), implementation)
    group = optimizer.param_groups[0]
    assert isinstance(optimizer, torch.optim.SGD)
    assert (group["lr"], group["momentum"], group["foreach"], group["fused"]) == (1.0, 0.5, foreach, fused)


def test_groups_of_parameters_keep_their_settings() -> None:
    """Weight decay for some parameters only survives the change of form."""

    def grouped(params: list[nn.Parameter]) -> torch.optim.Optimizer:
        decayed, plain_ones = params[:1], params[1:]
        groups = [{"params": decayed, "weight_decay": 0.3}, {"params": plain_ones, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=0.5)

    model = nn.Linear(3, 1)
    workload = Workload(model, TensorDataset(torch.ones(4, 3)), lambda m, b: m(b[0]).sum(), optimizer=grouped)
    groups = plain.make_optimizer(workload, "fused").param_groups
    assert [(group["weight_decay"], group["lr"], group["fused"]) for group in groups] == [
        (0.3, 0.5, True),
        (0.0, 0.5, True),
    ]


@pytest.mark.parametrize("sampler", [None, [4, 2, 0]])
def test_a_data_set_is_collated_once(sampler: Any) -> None:
    """All rows in a new order each epoch, or those that the sampler draws; a compiled model gets full batches."""
    data = TensorDataset(torch.arange(5.0)[:, None].expand(5, 3))
    workload = Workload(nn.Linear(3, 1), data, lambda model, batch: model(batch[0]).mean(), sampler=sampler)
    full = [2, 2] if sampler is None else [2]
    for mode, counts in ((None, [*full, 1]), ("default", full)):
        config = TrainConfig(batch_size=2, data_placement="collated", compile_mode=mode)
        batches = list(plain.Collated(workload, config, torch.device("cpu")))
        assert [count for count, _ in batches] == counts
        rows = [int(row[0]) for _, (part,) in batches for row in part]
        assert rows == sampler[: sum(counts)] if sampler else set(rows) <= set(range(5))
    assert next(make_loop(data_placement="collated").steps()) == 2


def test_default_optimizer_is_left_as_it_is() -> None:
    """Torch chooses."""
    assert plain.make_optimizer(make_workload(), "default").param_groups[0]["fused"] is None


@pytest.mark.parametrize(("precision", "expected"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_precision_is_that_of_the_products(precision: str, expected: torch.dtype) -> None:
    """Autocast for half precisions, nothing for fp32."""
    model = nn.Linear(3, 1)
    with plain.precision(TrainConfig(precision=precision), torch.device("cpu")):
        assert model(torch.ones(1, 3)).dtype is expected


@pytest.mark.parametrize(("precision", "enabled"), [("fp16", True), ("bf16", False)])
def test_gradients_are_scaled_for_fp16_only(precision: str, enabled: bool) -> None:
    """bf16 has fp32's range."""
    assert make_loop(precision=precision).scaler.is_enabled() is enabled


def test_attention_is_restricted_while_the_loss_is_computed() -> None:
    """The kernel of the config and the plain one are allowed, and afterwards all are again."""
    with plain.attention(TrainConfig(sdpa_backend="math")):
        assert not torch.backends.cuda.flash_sdp_enabled()
        assert torch.backends.cuda.math_sdp_enabled()
    assert torch.backends.cuda.flash_sdp_enabled()


def test_images_and_weights_are_laid_out_channels_last() -> None:
    """Tensors of four dimensions and a floating type; labels are not."""
    workload = make_workload(model=nn.Conv2d(3, 4, 3))
    loop = plain.Loop(workload, TrainConfig(memory_format="channels_last"), "cpu")
    images, labels = loop.to_device([torch.zeros(2, 3, 8, 8), torch.zeros(2, dtype=torch.int64)])
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert workload.model.weight.is_contiguous(memory_format=torch.channels_last)  # type: ignore[operator, union-attr]
    assert labels.shape == (2,)


@pytest.mark.parametrize(
    ("knobs", "read", "expected"),
    [
        ({"num_threads": 1}, torch.get_num_threads, 1),
        ({"cudnn_benchmark": True}, lambda: torch.backends.cudnn.benchmark, True),
        ({"precision": "tf32"}, lambda: torch.backends.cuda.matmul.allow_tf32, True),
    ],
)
@pytest.mark.usefixtures("_settings_back")
def test_settings_of_the_process_are_set(knobs: dict[str, Any], read: Callable[[], Any], expected: object) -> None:
    """Threads, cuDNN's choice and TF32 hold for the whole process."""
    plain.set_process(TrainConfig(**knobs), torch.device("cpu"))
    assert read() == expected


@pytest.mark.skipif(sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc's malloc")
def test_tuned_allocator_maps_no_large_blocks() -> None:
    """By glibc's own count: with its defaults each large tensor is a mapping of its own, tuned none is."""
    done = subprocess.run([sys.executable, "-c", LARGE_BLOCKS_MAPPED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["4", "0"]


def test_blocks_are_compiled_or_computed_again_by_other_means() -> None:
    """The loop finds them by itself; the losses are those of the model as it is."""
    inputs = torch.randn(4, 8)
    model = stack(3)
    before = model(inputs)
    assert all(block.forward.func is checkpoint for block in plain.checkpointed(model, "blocks"))
    torch.testing.assert_close(model(inputs), before)
    compiled = plain.compiled(stack(3), "blocks")
    assert all(isinstance(block, torch._dynamo.OptimizedModule) for block in compiled)
