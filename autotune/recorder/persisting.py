"""Workers that persist where the script's own would start again: in each epoch they begin as new ones do.

Torch seeds the generators of torch, Python and NumPy in each new worker, and then calls ``worker_init_fn``. A worker
that persists keeps its generators, and never calls it again: augmentation would continue with other numbers. It also
keeps what reading has changed in its copy of the data set, so such workers start again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data._utils import HAS_NUMPY, worker

from .attributes import Watch, figures_of

Begin = Callable[[int], None]

_own: list[tuple[Begin, torch.Tensor]] = []
"""In a worker: what each epoch calls, and the memory that says when it must not."""


class Persisting:
    """A script's ``worker_init_fn`` and ``collate_fn`` for workers that persist; each `NewEpoch` calls the first again.

    Args:
        begin: The script's ``worker_init_fn``.
        collate: Its ``collate_fn``.
        must_restart: Shared memory. It becomes 1 where the next epoch might differ in a new worker. This is so where
            ``begin`` changes the worker's copy of the data set, as sharding does, or fails when it is called again. It
            is also so where the first batch changes a number or a generator of random numbers in that copy.
    """

    def __init__(self, begin: Begin | None, collate: Any, must_restart: torch.Tensor) -> None:
        self._begin, self._collate, self._must_restart = begin, collate, must_restart
        self._figures: list[Any] | None = None  # in a worker, before its first batch

    def begin(self, number: int) -> None:
        """Begins a worker."""
        dataset = getattr(worker.get_worker_info(), "dataset", None)
        if self._begin is not None:
            watch = Watch(dataset, self._begin)
            self._begin(number)
            if watch.has_changed:
                self._must_restart.fill_(1)
            else:
                _own.append((self._begin, self._must_restart))
        self._figures = figures_of(dataset)

    def __call__(self, samples: Any) -> Any:
        """Collates samples."""
        batch = self._collate(samples)
        if self._figures is not None:
            before, self._figures = self._figures, None
            if figures_of(getattr(worker.get_worker_info(), "dataset", None)) != before:
                self._must_restart.fill_(1)
        return batch


class NewEpoch:
    """What torch sends to a worker that persists, as the seed of an epoch. The worker is seeded as it unpickles this.

    Args:
        base_seed: What torch would seed new workers from.
    """

    def __init__(self, base_seed: int) -> None:
        self._base_seed = base_seed

    def __reduce__(self) -> tuple[Any, ...]:
        return _begin_again, (self._base_seed,)


def _begin_again(base_seed: int) -> None:
    """Does in a worker what torch does in a new one, in the same order."""
    info = worker.get_worker_info()
    assert info is not None  # noqa: S101 - the message goes to workers alone
    seed = base_seed + info.id
    random.seed(seed)
    torch.manual_seed(seed)
    if HAS_NUMPY:
        import numpy as np

        np.random.seed(worker._generate_state(base_seed, info.id))  # type: ignore[no-untyped-call]
    worker._worker_info = type(info)(id=info.id, num_workers=info.num_workers, seed=seed, dataset=info.dataset)
    for begin, must_restart in _own:
        try:
            begin(info.id)
        except Exception:  # noqa: BLE001, PERF203 - some functions of torch may be called once in a process
            must_restart.fill_(1)
