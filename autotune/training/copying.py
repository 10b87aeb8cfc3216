"""Copies batches to the device on a stream of their own, beside the training instead of behind it in one queue.

The host runs ahead of the device: while the device still trains on one batch, the host draws the next and requests its
copy. In the stream of training, the copy would wait for the training to end. In another stream it does not, and
training waits only for the copy (`wait_stream`). A batch's memory belongs to the stream that allocated it, so each
tensor is recorded in the other stream: else the next copy could reuse memory that training still reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from autotune.torch_settings.naming import tensors_in


class SideStream:
    """A stream for copies.

    Args:
        device: Where batches are copied to.
        cuda: Provides a device's streams; tests pass a simulation of ``torch.cuda``.
    """

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self._device = device
        self._cuda = cuda
        self._stream = cuda.Stream(device)

    def move(self, batch: Any, copy: Callable[[Any], Any]) -> Any:
        """Copies a batch, and makes the current stream wait for it.

        Batches that are on a device already, or hide their tensors, are copied in the current stream.
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
    """Whether a part moves itself, and so may hold tensors that `tensors_in` does not find."""
    if isinstance(batch, torch.Tensor):
        return False
    if isinstance(batch, Mapping):
        return any(map(_hides_tensors, batch.values()))
    if isinstance(batch, (list, tuple)):
        return any(map(_hides_tensors, batch))
    if dataclasses.is_dataclass(batch) and not callable(getattr(batch, "to", None)):
        return any(_hides_tensors(getattr(batch, field.name, None)) for field in dataclasses.fields(batch))
    return callable(getattr(batch, "to", None))
