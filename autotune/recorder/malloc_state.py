"""Recreates the state in which evaluation leaves glibc's malloc: bursts never evaluate.

glibc serves allocations above a threshold by a fresh mmap, and returns memory when more than twice that is free at the
end of its heap. Both cost a fault for each page that is touched again. Whenever a chunk from mmap is freed, the
threshold rises to its size (mallopt(3), M_MMAP_THRESHOLD). Evaluation mostly uses larger batches, so training is faster
after the first epoch than before: 3,450 samples/s instead of 2,700 for a small CNN.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..sandbox.system import LINUX, libc
from ..torch_settings.naming import batches_of, is_own_batch_sampler, length_of, tensors_in

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

LARGEST_THRESHOLD_BYTES = 4 * 1024 * 1024 * ctypes.sizeof(ctypes.c_long)
"""Upper limit of the threshold: glibc's DEFAULT_MMAP_THRESHOLD_MAX."""


class Activations:
    """Sizes of the tensors that a script's modules return in training on a CPU."""

    def __init__(self) -> None:
        self._bytes: set[int] = set()

    def note(self, returned: Any) -> None:
        """Notes what a module has returned."""
        # While tracing, sizes are tensors, which would be part of the script's graph.
        is_tracing = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        if is_tracing or not torch.is_grad_enabled():
            return
        with contextlib.suppress(Exception):  # a class of the script's may raise
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
        """The largest chunk that evaluation frees and that raises the threshold; 0 if training's are as large.

        Args:
            batch_samples: Samples of a batch in training.
            training: Loaders that feed training.
            made: All loaders that the script has made; the others are assumed to feed evaluation.
            evaluates: Whether the script evaluates. Called if it has no loader besides those that feed training. Then
                evaluation is assumed to use enough samples to raise the threshold to its limit.
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
    """Allocates and frees a chunk, as evaluation does, without touching its pages."""
    if size and LINUX:
        libc.malloc.restype = ctypes.c_void_p
        libc.malloc.argtypes = [ctypes.c_size_t]
        libc.free.argtypes = [ctypes.c_void_p]
        libc.free(libc.malloc(size))


def _batch_sizes(loaders: Iterable[DataLoader[Any]]) -> list[int]:
    """The batch sizes of the loaders that have one, limited to the length of their data sets."""
    sizes = []
    for loader in loaders:
        with contextlib.suppress(Exception):  # a class of the script's may raise
            size = None if is_own_batch_sampler(loader) else batches_of(loader)[1]
            if size:
                sizes.append(min(size, length_of(loader.dataset) or size))
    return sizes
