"""Workers that persist where the script's own would start again: in each epoch they begin as new ones do.

Torch seeds the generators of torch, Python and NumPy in each new worker, and then calls ``worker_init_fn``. A worker
that persists keeps its generators, and never calls it again: augmentation would continue with other numbers.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data._utils import HAS_NUMPY, worker

from .attributes import Watch

Begin = Callable[[int], None]

_own: list[tuple[Begin, torch.Tensor]] = []
"""In a worker: what each epoch calls, and the memory that says when it must not."""


def as_persisting(begin: Begin, must_restart: torch.Tensor) -> Begin:
    """A ``worker_init_fn`` that calls the script's own, which each `NewEpoch` then calls again.

    Args:
        begin: The script's own.
        must_restart: Shared memory. It becomes 1 where a second call might differ from one in a new worker: where the
            first one changes the worker's copy of the data set, as sharding does, or where the second one fails.
    """
    return functools.partial(_begin, begin, must_restart)


def _begin(begin: Begin, must_restart: torch.Tensor, number: int) -> None:
    info = worker.get_worker_info()
    watch = Watch(info and info.dataset, begin)
    begin(number)
    if watch.has_changed:
        must_restart.fill_(1)
    else:
        _own.append((begin, must_restart))


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
