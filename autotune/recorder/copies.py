"""Copies of a script's batches to the device that nobody waits for.

A script says ``batch.to(device)``; that copy is made as ``batch.to(device, non_blocking=True)`` where it comes out of
the page-locked memory of a batch that the loader has just handed over. Nothing else is touched: a copy back to the host
would be read before it is there, and page-locked memory of the script's own may be written to again meanwhile. The
loader's is not: torch's allocator of such memory keeps a block until the copies out of it have ended.
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
"""Batches whose tensors are known: frameworks draw one or two ahead of the one that they copy. Chosen."""


class Copies:
    """Makes copies that do not wait of those that may.

    Attributes:
        overlapped: Copies that were changed so far.
    """

    def __init__(self) -> None:
        self.overlapped = 0
        self._recent: deque[set[int]] = deque(maxlen=RECENT)

    def install(self) -> Undo:
        """From here on ``Tensor.to`` and ``Tensor.cuda`` are asked first."""
        import torch

        ways = [(name, self._asking(getattr(torch.Tensor, name))) for name in ("to", "cuda")]
        return in_reverse([put(torch.Tensor, name, asking) for name, asking in ways])

    def drawn(self, batch: Any) -> None:
        """A batch was handed over: what of it lies in page-locked memory may be copied without waiting."""
        self._recent.append({place_of(tensor) for tensor in tensors_in(batch) if is_pinned(tensor)})

    def may_overlap(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is of a batch, or a part of one, that was handed over lately, in page-locked memory."""
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
    """Whether a call of ``to`` or ``cuda`` says by itself whether it waits: by name, or by its place."""
    return "non_blocking" in kwargs or any(isinstance(argument, bool) for argument in args)


def place_of(tensor: torch.Tensor) -> int:
    """Where the memory begins that a tensor lies in; the same for all its parts. 0 where it has none."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse tensors, and those without memory
        return 0


def is_pinned(tensor: torch.Tensor) -> bool:
    """Whether it lies in page-locked memory of the host."""
    return tensor.device.type == "cpu" and tensor.layout is _strided() and tensor.is_pinned()


@functools.cache
def _strided() -> Any:
    import torch

    return torch.strided
