"""The loader of a `build()` workload as an endless stream of batches, and the signal that ended a worker.

Also copies of batches, for jobs that use one more often than training does.
"""

from __future__ import annotations

import contextlib
import copy
import os
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, default_collate

from autotune.recorder.open_files import with_own_places
from autotune.recorder.order import Seeded
from autotune.timing.clock import Clock, clock_of
from autotune.timing.endless import Counted, Endless
from autotune.torch_settings.naming import length_of, tensors_in
from autotune.training.placement import PlacedDataset, place
from autotune.training.ranks import SharedSampler, place_in_data, this_rank
from autotune.training.tuned import Tuned

if TYPE_CHECKING:
    from autotune.workload.workload import Workload

DYING_SECONDS = 0.5
"""Torch may report a worker's death at most this long before its exit status can be read; all workers share it."""


class Feed(Endless):
    """The endless batches of a workload.

    Args:
        seed: Sets the order of samples; the process's own when None.
        start: The first batch's place in the stream of samples.
        clock: Of the device that waits for batches; the host's when None.

    Raises:
        ConfigError: The data set cannot be collated once.
    """

    def __init__(
        self, workload: Workload, tuned: Tuned, seed: int | None = None, start: int = 0, clock: Clock | None = None
    ) -> None:
        self._workload = workload
        self._tuned = tuned
        rank = this_rank()
        seed = torch.initial_seed() - rank.number if seed is None else seed  # one order for all ranks
        super().__init__(seed, start, ranks=rank.count, clock=clock)
        length = length_of(self.loader.sampler)
        self.length = length * self.ranks if length is not None else None
        self.usual_samples = self.loader.batch_size or 1
        dataset = self.loader.dataset
        drawn = length_of(dataset) if isinstance(dataset, IterableDataset) else length
        most = (length_of(self.loader) or 0) * self.usual_samples
        # of the last whole epoch; before its end, by the loader's length; None if unknown
        self.epoch_samples = min(most, drawn or 0) * self.ranks or None

    def _made(self, start: int) -> DataLoader[Any]:
        """Makes a loader with the workload's own sampler, else shuffled; places the data set before any timing."""
        workload, rank = self._workload, this_rank()
        sampler: Any = workload.sampler
        if sampler is None and not isinstance(workload.dataset, IterableDataset):
            sampler = RandomSampler(workload.dataset)  # type: ignore[arg-type]
        if sampler is not None:
            sampler = Seeded(sampler, self.seed, place_in_data(start, length_of(sampler), rank))
        if sampler is not None and not rank.alone:
            sampler = SharedSampler(sampler, rank)
        config = self._tuned.config
        drawn = length_of(workload.dataset if sampler is None else sampler)
        loader = self._tuned.loader(
            workload.dataset,
            sampler=sampler,
            # Another shape would compile again while blocks are timed; a training does so once. Of data without a
            # length, each epoch might be shorter than a batch.
            drop_last=config.is_compiled and drawn is not None and drawn >= config.batch_size,
            collate_fn=workload.collate_fn or default_collate,
            worker_init_fn=with_own_places(workload.worker_init_fn),
        )
        if type(loader.dataset) is PlacedDataset:
            place(loader.dataset)
        loader.collate_fn = Counted(loader.collate_fn)
        return loader

    def _end_epoch(self, seconds: float) -> None:
        if self._whole_from is not None:
            self.epoch_samples = self.samples - self._whole_from
        super()._end_epoch(seconds)

    @property
    def has_dead_worker(self) -> bool:
        """Whether one of its workers was ended, by a signal or by its own failure."""
        return any(_status_of(worker) for worker in self._workers)

    def killing_signal(self) -> int | None:
        """The signal by which a worker was ended, if one was."""
        ends = [worker.sentinel for worker in self._workers if _status_of(worker) is None]
        if not self._signals and ends:
            connection.wait(ends, timeout=DYING_SECONDS)
        return next(iter(self._signals), None) or _signal_of_dead_child()

    @property
    def _signals(self) -> list[int]:
        """The signals that have ended workers."""
        return [-status for worker in self._workers if (status := _status_of(worker) or 0) < 0]


class DeviceFeed(Feed):
    """Repeats a few batches that stay on the device: the rate that compute alone could reach.

    Uses no workers, which would go on preparing batches, and does not place the whole data set.
    """

    def __init__(self, workload: Workload, tuned: Tuned, seed: int | None = None, start: int = 0) -> None:
        here = Tuned(tuned.config.replace(num_workers=0, data_placement="loader"), device=tuned.device)
        super().__init__(workload, here, seed, start, clock=clock_of(tuned.device))
        self._cache = [tuned.to_device(item) for item in self._first_batches()]


def copied(batch: Any) -> Any:
    """A copy of a batch or of samples, which the user's code may change; what cannot be copied is returned itself."""
    try:
        # deepcopy() alone would copy all of the storage of which a tensor may be a small part, such as a row.
        tensors: dict[int, Any] = {id(tensor): tensor.clone() for tensor in tensors_in(batch)}
        return copy.deepcopy(batch, tensors)
    except Exception:  # noqa: BLE001 - an object of the user's may hold a file, or raise anything
        return batch


def _status_of(worker: Any) -> int | None:
    """The exit status of a worker; None while it lives, and 0 where its process object is closed."""
    with contextlib.suppress(ValueError):
        status: int | None = worker.exitcode
        return status
    return 0


def _signal_of_dead_child() -> int | None:
    """The signal that ended a child whose exit status is still unread: workers may die while the loader starts them."""
    if not hasattr(os, "waitid"):
        return None
    with contextlib.suppress(ChildProcessError):
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is not None and ended.si_code in {os.CLD_KILLED, os.CLD_DUMPED}:
            return int(ended.si_status)
    return None
