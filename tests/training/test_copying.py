"""Copies in a stream of their own: on a simulated device with two of them, training waits for a copy and nothing else.

The device keeps a queue a stream; a virtual clock moves with the work that is launched. What is exercised is the real
order of the calls: which stream a copy is launched in, who waits for whom, and which memory is kept for whom.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.knobs.config import TrainConfig
from autotune.training.copying import SideStream

COPY, COMPUTE = 3.0, 5.0
DEVICE = torch.device("meta")


class Stream:
    """A queue of work; the last of it is done at `free_at`."""

    def __init__(self, device: object = None) -> None:
        self.free_at = 0.0

    def launch(self, now: float, seconds: float) -> None:
        """Begins when all before it is done."""
        self.free_at = max(self.free_at, now) + seconds

    def wait_stream(self, other: Stream) -> None:
        """What is launched from here on begins when all that the other has now is done."""
        self.free_at = max(self.free_at, other.free_at)


class Cuda:
    """The streams of a simulated device, as torch.cuda has them."""

    Stream = Stream

    def __init__(self) -> None:
        self.training = self.present = Stream()

    def current_stream(self, device: object = None) -> Stream:
        """The one that work is launched in."""
        return self.present

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        """Another one meanwhile."""
        before, self.present = self.present, stream
        try:
            yield
        finally:
            self.present = before


class Copied(torch.Tensor):
    """A tensor of the simulated device: keeps the streams that it was recorded in."""

    recorded: list[Stream]

    def record_stream(self, stream: Any) -> None:
        """Its memory stays until this stream has passed."""
        self.recorded = [*getattr(self, "recorded", []), stream]


def copier(cuda: Cuda) -> Any:
    """Copies a batch in the present stream."""

    def copy(batch: Any) -> Any:
        cuda.present.launch(0.0, COPY)
        if isinstance(batch, dict):
            return {name: part.as_subclass(Copied) for name, part in batch.items()}
        return batch.as_subclass(Copied)

    return copy


def trained(cuda: Cuda, move: Any, batches: int = 10) -> float:
    """When the device is done with some batches, the host being far ahead of it."""
    for _ in range(batches):
        move(torch.ones(2))
        cuda.current_stream().launch(0.0, COMPUTE)
    return cuda.training.free_at


def test_copies_hide_behind_computing() -> None:
    """In one queue a step takes both; with a stream of their own, copies take no time but the first."""
    cuda = Cuda()
    assert trained(cuda, copier(cuda)) == 10 * (COPY + COMPUTE)
    cuda = Cuda()
    side = SideStream(DEVICE, cuda)
    assert trained(cuda, lambda batch: side.move(batch, copier(cuda))) == COPY + 10 * COMPUTE


def test_training_waits_for_the_copy() -> None:
    """Where copying takes longer, no batch is trained on before it is there."""
    cuda = Cuda()
    side = SideStream(DEVICE, cuda)
    side.move(torch.ones(2), copier(cuda))
    assert cuda.training.free_at == COPY


def test_each_tensors_memory_is_kept_for_training() -> None:
    """Recorded in the stream that uses it, not in the one that it was copied in."""
    cuda = Cuda()
    moved = SideStream(DEVICE, cuda).move({"image": torch.ones(2), "label": torch.ones(1)}, copier(cuda))
    assert all(part.recorded == [cuda.training] for part in moved.values())
    assert cuda.present is cuda.training


@pytest.mark.parametrize(
    "batch",
    [[SimpleNamespace(to=print), torch.ones(1)], (torch.ones(1, device="meta"), torch.ones(1))],
    ids=["an object that moves itself", "a tensor of the device"],
)
def test_what_could_be_used_too_early_is_copied_in_the_stream_of_training(batch: Any) -> None:
    """Tensors that nobody finds cannot be recorded, and what training has made is not ready for another stream."""
    cuda = Cuda()
    streams: list[Stream] = []
    assert SideStream(DEVICE, cuda).move(batch, lambda given: streams.append(cuda.present) or given) is batch
    assert streams == [cuda.training]


def test_it_is_reset_where_nothing_is_copied_from_pinned_memory() -> None:
    """And with it no copy is waited for."""
    assert not TrainConfig(device_prefetch=True).device_prefetch
    assert not TrainConfig(device_prefetch=True, pin_memory=True, data_placement="device").device_prefetch
    assert TrainConfig(device_prefetch=True, pin_memory=True).non_blocking
