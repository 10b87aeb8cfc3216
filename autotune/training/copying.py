"""Copies to the device on a stream of their own, beside what it computes, rather than behind it in one queue.

The host runs ahead of the device: while that still trains on one batch, the next is drawn and its copy asked for. In
the stream of training, the copy would wait for the training to end. In another, it need not, and training waits for the
copy (`wait_stream`) and for nothing else. Memory of a batch belongs to the stream that it was allocated in, so each
tensor is recorded in the other one: else it could be given to the next copy while training still reads it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from autotune.workload.batches import tensors_in


class SideStream:
    """A stream for copies.

    Args:
        device: Where batches are copied to.
        cuda: The streams of a device, as ``torch.cuda`` has them: another one simulates them.
    """

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self._device = device
        self._cuda = cuda
        self._stream = cuda.Stream(device)

    def move(self, batch: Any, copy: Callable[[Any], Any]) -> Any:
        """A batch that the present stream may use.

        What is on a device already, and what hides its tensors, is copied in the present stream.

        Args:
            batch: In pinned memory.
            copy: Copies it to the device, without waiting.
        """
        if _hides_tensors(batch) or any(tensor.device.type != "cpu" for tensor in tensors_in(batch)):
            return copy(batch)
        training = self._cuda.current_stream(self._device)
        with self._cuda.stream(self._stream):
            copied = copy(batch)
        training.wait_stream(self._stream)
        for tensor in tensors_in(copied):
            tensor.record_stream(training)
        return copied


def _hides_tensors(batch: Any) -> bool:
    """Whether a part knows how to move itself, and may hold tensors that nobody finds."""
    if isinstance(batch, torch.Tensor):
        return False
    if isinstance(batch, Mapping):
        return any(map(_hides_tensors, batch.values()))
    if isinstance(batch, (list, tuple)):
        return any(map(_hides_tensors, batch))
    if dataclasses.is_dataclass(batch) and not hasattr(batch, "to"):
        return any(_hides_tensors(getattr(batch, field.name, None)) for field in dataclasses.fields(batch))
    return hasattr(batch, "to")
