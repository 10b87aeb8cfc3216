"""The state in which evaluation leaves glibc's malloc: bursts never evaluate, so they bring it about themselves.

glibc serves what is larger than a threshold by a fresh mmap, and gives memory back when more than twice that lies free
at the end of its heap; both cost a fault for each page that is touched again. Whenever a chunk that came by mmap is
freed, the threshold rises to its size (mallopt(3), M_MMAP_THRESHOLD). Evaluation mostly takes larger batches, so that
training is faster after the first epoch than before: of a small CNN, 3,450 samples/s for 2,700.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .naming import batches_of, is_own_batch_sampler, length_of, tensors_in

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

LARGEST_THRESHOLD_BYTES = 4 * 1024 * 1024 * ctypes.sizeof(ctypes.c_long)
"""The threshold rises no higher: glibc's DEFAULT_MMAP_THRESHOLD_MAX."""


class Activations:
    """Sizes of what the modules of a script return in training on a CPU."""

    def __init__(self) -> None:
        self._bytes: set[int] = set()

    def note(self, returned: Any) -> None:
        """A module has returned."""
        import torch

        # While tracing, sizes are tensors, which would be part of the script's graph.
        is_tracing = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        if is_tracing or not torch.is_grad_enabled():
            return
        with contextlib.suppress(Exception):  # whatever a class of the script's makes of being looked into
            for tensor in tensors_in(returned):
                if tensor.device.type == "cpu":
                    self._bytes.add(tensor.numel() * tensor.element_size())

    def in_evaluation(
        self,
        batch_samples: int,
        training: Sequence[DataLoader[Any]],
        made: Iterable[DataLoader[Any]],
        evaluates: Callable[[], bool],
    ) -> int:
        """The largest chunk that evaluation frees and that the threshold follows; 0 where training's are as large.

        Args:
            batch_samples: Of a batch in training.
            training: Loaders that feed it.
            made: All loaders that the script has made; those that do not feed training are there to evaluate.
            evaluates: Whether it evaluates; asked where it trains from loaders and has no other one: taken to be on so
                many samples at once that the threshold rises as far as it can.
        """
        if not self._bytes:
            return 0
        feeding = {id(loader) for loader in training}
        others = _batch_sizes(loader for loader in made if id(loader) not in feeding)
        if not others:
            return LARGEST_THRESHOLD_BYTES if training and evaluates() else 0
        larger = max(others) / max(1, batch_samples)
        sizes = [round(size * larger) for size in self._bytes]
        return max((size for size in sizes if size <= LARGEST_THRESHOLD_BYTES), default=0) if larger > 1 else 0


def free_chunk(size: int) -> None:
    """Allocates and frees so many bytes, none of which is touched, as evaluation does."""
    if size and sys.platform == "linux":
        library = ctypes.CDLL(None)
        library.malloc.restype = ctypes.c_void_p
        library.malloc.argtypes = [ctypes.c_size_t]
        library.free.argtypes = [ctypes.c_void_p]
        library.free(library.malloc(size))


def _batch_sizes(loaders: Iterable[DataLoader[Any]]) -> list[int]:
    """The batch sizes of loaders, as far as they have one: no larger than their data sets."""
    sizes = []
    for loader in loaders:
        with contextlib.suppress(Exception):  # whatever a class of the script's makes of being looked into
            size = None if is_own_batch_sampler(loader) else batches_of(loader)[1]
            if size:
                sizes.append(min(size, length_of(loader.dataset) or size))
    return sizes
