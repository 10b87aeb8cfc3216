"""A small convolutional network that remembers under what it ran, its data, and tuned configs to train it with."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import autotune.torch_settings.process_settings
from autotune.knobs.config import TrainConfig
from autotune.training.tuned import Tuned

if TYPE_CHECKING:
    import pytest

SAMPLES = 26
"""In batches of 4, accumulated three at a time: 7 batches and 3 optimizer steps."""
STEPS = 3
KNOBS: dict[str, Any] = {
    "batch_size": 4, "accumulation_steps": 3, "precision": "bf16", "memory_format": "channels_last",
    "optimizer_impl": "fused", "num_workers": 1, "prefetch_factor": 3, "persistent_workers": True,
    "dataloader_in_order": False,
}  # fmt: skip
LOADER = {"num_workers": 1, "prefetch_factor": 3, "persistent_workers": True, "in_order": False}


def tuned(**knobs: Any) -> Tuned:
    """The default config with some knobs changed, on the CPU."""
    return Tuned(TrainConfig(**knobs))


class Net(nn.Module):
    """Images to scores of four classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Linear(8, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """``(batch, 3, height, width)`` to ``(batch, 4)``."""
        return self.head(self.conv(images).relu().mean((2, 3)))


class Seen:
    """What a convolution met: each call's type and layout of output, and kernels that attention may use."""

    def __init__(self, conv: nn.Conv2d) -> None:
        self.dtypes: set[torch.dtype] = set()
        self.channels_last: set[bool] = set()
        self.flash: set[bool] = set()
        self._convolve = conv._conv_forward
        conv._conv_forward = self._see  # type: ignore[method-assign,assignment]  # for hooks, the layout would stay

    def _see(self, *inputs: Any) -> torch.Tensor:
        output = self._convolve(*inputs)
        self.dtypes.add(output.dtype)
        self.channels_last.add(is_channels_last(output))
        self.flash.add(torch.backends.cuda.flash_sdp_enabled())
        return output


class OwnLoop:
    """The network and its optimizer, whose steps are counted, for a loop of one's own."""

    def __init__(self, hooked: bool) -> None:
        self.net = Net()
        self.conv = self.net.conv
        self.seen = Seen(self.conv) if hooked else None
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.01)
        self.counted = Steps(self.optimizer)


@contextmanager
def remarks() -> Iterator[list[str]]:
    """Collects, at its end, what an integration has warned of what was tuned."""
    told: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield told
    sentences = [str(one.message) for one in caught]
    told += [sentence for sentence in sentences if "what was tuned" in sentence or "micro-batches: " in sentence]


def uneven(framework: str) -> str:
    """What is told of the seventh batch, where three are accumulated."""
    return (
        f"{framework} does not apply what was tuned: accumulation_steps=3 (1 batch is left for the last step of an "
        "epoch, and it divides by 3 all the same)"
    )


def is_channels_last(tensor: torch.Tensor) -> bool:
    """Whether it is laid out so, and not contiguous as well."""
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def images(samples: int = SAMPLES) -> TensorDataset:
    """Images of 8 × 8 with labels."""
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.randn(samples, 3, 8, 8, generator=generator), torch.randint(0, 4, (samples,), generator=generator)
    )


def loss_fn(model: Any, batch: Any) -> torch.Tensor:
    """Cross-entropy."""
    pixels, labels = batch
    return functional.cross_entropy(model(pixels), labels)


def settings(loader: Any) -> dict[str, Any]:
    """The loader settings of `LOADER`."""
    return {name: getattr(loader, name) for name in LOADER}


class Steps:
    """Counts the steps of an optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.count = 0
        optimizer.register_step_post_hook(self._step)

    def _step(self, *_: Any) -> None:
        self.count += 1


@contextmanager
def process_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.device]]:
    """Reverts threads and attention; the allocator is not touched, but the devices it was tuned for are listed."""
    threads, devices = torch.get_num_threads(), []
    monkeypatch.setattr(autotune.torch_settings.process_settings, "tune_allocator", devices.append)
    try:
        yield devices
    finally:
        torch.set_num_threads(threads)
        autotune.torch_settings.process_settings.restrict_attention("default", torch.device("cpu"))


@contextmanager
def compiling(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.fx.GraphModule]]:
    """Lists the graphs that Inductor is asked to compile, and runs them as they are: its C++ takes long."""
    graphs: list[torch.fx.GraphModule] = []

    def compile_fx(graph: torch.fx.GraphModule, *_args: Any, **_kwargs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    torch._dynamo.reset()
    try:
        yield graphs
    finally:
        torch._dynamo.reset()


def operators(graphs: list[torch.fx.GraphModule]) -> str:
    """All that the graphs compute, as text."""
    return " ".join(str(node.target) for graph in graphs for node in graph.graph.nodes)


def forget_accelerate() -> None:
    """Accelerate keeps its state for the whole process: what another test has made would be in the way."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
