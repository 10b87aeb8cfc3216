"""Non-blocking copies of a script's batches to the device.

A script calls ``batch.to(device)``. The copy becomes ``batch.to(device, non_blocking=True)`` if its source is the
page-locked memory of a batch that the loader has just handed over. Other copies stay as they are: a copy back to the
host would be read before it arrives, and the script may write to its own page-locked memory meanwhile. The loader's
memory is safe: torch's allocator of such memory keeps a block until the copies out of it have ended.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .naming import tensors_in
from .undo import Undo, in_reverse, put

if TYPE_CHECKING:
    import torch

RECENT = 4
"""Batches whose tensors are remembered: frameworks draw one or two ahead of the one that they copy. Not tuned."""


class Copies:
    """Makes copies non-blocking where that is safe."""

    def __init__(self) -> None:
        self.overlapped = 0  # copies that were changed so far
        self._recent: deque[set[int]] = deque(maxlen=RECENT)

    def install(self) -> Undo:
        """Patches ``Tensor.to`` and ``Tensor.cuda``."""
        import torch

        ways = [(name, self._asking(getattr(torch.Tensor, name))) for name in ("to", "cuda")]
        return in_reverse([put(torch.Tensor, name, asking) for name, asking in ways])

    def drawn(self, batch: Any) -> None:
        """Notes a batch that was handed over: its page-locked tensors may be copied without waiting."""
        self._recent.append({place_of(tensor) for tensor in tensors_in(batch) if is_pinned(tensor)})

    def may_overlap(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is page-locked and belongs to a batch that was handed over lately."""
        if tensor.device.type != "cpu" or not any(self._recent):
            return False
        place = place_of(tensor)
        return any(place in places for places in self._recent) and is_pinned(tensor)

    def _asking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def copy(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if says_itself(args, kwargs) or not self.may_overlap(tensor):
                return original(tensor, *args, **kwargs)
            copied = original(tensor, *args, **kwargs, non_blocking=True)
            self.overlapped += copied.device != tensor.device
            return copied

        return copy


def says_itself(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of ``to`` or ``cuda`` sets ``non_blocking`` itself, by name or by position."""
    return "non_blocking" in kwargs or any(isinstance(argument, bool) for argument in args)


def place_of(tensor: torch.Tensor) -> int:
    """The address of a tensor's storage, the same for all its views; 0 where it has none."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse tensors, and those without memory
        return 0


def is_pinned(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in page-locked memory of the host."""
    return tensor.device.type == "cpu" and tensor.layout is _strided() and tensor.is_pinned()


@functools.cache
def _strided() -> Any:
    import torch

    return torch.strided
