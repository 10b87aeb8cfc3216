"""The loader of a `build()` workload as batches without end, and how one of its workers was ended."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from autotune.recorder.clock import Clock, clock_of
from autotune.recorder.endless import Counted, Endless
from autotune.recorder.naming import length_of
from autotune.recorder.order import EpochOrder, SeededSampler
from autotune.training.placement import PlacedDataset, place
from autotune.training.ranks import SharedSampler, place_in_data, this_rank
from autotune.training.tuned import Tuned

if TYPE_CHECKING:
    from autotune.workload.workload import Workload

DYING_SECONDS = 0.5
"""Torch may tell a worker's death before its exit status can be read, by so much at most; of all workers together."""


def make_loader(workload: Workload, tuned: Tuned, seed: int = 0, start: int = 0) -> DataLoader[Any]:
    """The workload's loader under a config: its own sampler, else shuffled; its batches come with their samples.

    A data set that is to be collated once is, before anything is timed.

    Args:
        workload: What is trained.
        tuned: The config at work.
        seed: Of the order of samples, which does not depend on the config.
        start: Place in the stream of samples where it begins.

    Raises:
        ConfigError: It cannot be collated once.
    """
    rank = this_rank()
    sampler: Any = None
    if workload.sampler is not None:
        sampler = SeededSampler(workload.sampler, seed, place_in_data(start, length_of(workload.sampler), rank))
    elif not isinstance(workload.dataset, IterableDataset):
        length = len(workload.dataset)  # type: ignore[arg-type]
        sampler = EpochOrder(length, seed, place_in_data(start, length, rank))
    if sampler is not None and not rank.alone:
        sampler = SharedSampler(sampler, rank)
    loader = tuned.loader(
        workload.dataset,
        sampler=sampler,
        collate_fn=workload.collate_fn or default_collate,
        worker_init_fn=workload.worker_init_fn,
    )
    if type(loader.dataset) is PlacedDataset:
        place(loader.dataset)
    loader.collate_fn = Counted(loader.collate_fn)
    return loader


class Feed(Endless):
    """Endless ``(samples, batch)`` of a workload.

    Args:
        workload: What is trained.
        tuned: The config at work.
        seed: Of the order of samples; the process's own when None.
        start: Place in the stream of samples where it begins.
        clock: Of the device that waits for batches; the host's when None.

    Attributes:
        epoch_samples: Of the last whole epoch that has ended, else by the loader's length; None where it has none.
    """

    def __init__(
        self, workload: Workload, tuned: Tuned, seed: int | None = None, start: int = 0, clock: Clock | None = None
    ) -> None:
        self._workload = workload
        self._tuned = tuned
        rank = this_rank()
        seed = torch.initial_seed() - rank.number if seed is None else seed  # one order, of which each has its part
        super().__init__(seed, start, ranks=rank.count, clock=clock)
        length = length_of(self.loader.sampler)
        self.length = length * self.ranks if length is not None else None
        self.usual_samples = self.loader.batch_size or 1
        dataset = self.loader.dataset
        drawn = length_of(dataset) if isinstance(dataset, IterableDataset) else length
        most = (length_of(self.loader) or 0) * self.usual_samples
        self.epoch_samples = min(most, drawn or 0) * self.ranks or None

    def _made(self, start: int) -> DataLoader[Any]:
        return make_loader(self._workload, self._tuned, self.seed, start)

    def _end_epoch(self, seconds: float) -> None:
        if self._whole_from is not None:
            self.epoch_samples = self.samples - self._whole_from
        super()._end_epoch(seconds)

    @property
    def has_dead_worker(self) -> bool:
        """Whether one of its workers was ended, by a signal or by its own failure."""
        return any(worker.exitcode for worker in self._workers)

    def killing_signal(self) -> int | None:
        """The signal by which a worker was ended, if one was."""
        workers = self._workers
        killed_by = _signal_of(workers)
        if killed_by is None and (ends := _ends_of_living(workers)):
            connection.wait(ends, timeout=DYING_SECONDS)
            killed_by = _signal_of(workers)
        return killed_by if killed_by is not None else _signal_of_dead_child()


class DeviceFeed(Feed):
    """A few batches that stay on the device, over and over: what compute alone could reach.

    No worker reads them, which would go on preparing others, and the whole data set is not placed.
    """

    def __init__(self, workload: Workload, tuned: Tuned, seed: int | None = None, start: int = 0) -> None:
        here = Tuned(tuned.config.replace(num_workers=0, data_placement="loader"), device=tuned.device)
        super().__init__(workload, here, seed, start, clock=clock_of(tuned.device))
        self._cache = [tuned.to_device(item) for item in self._first_batches()]


def _signal_of(workers: Sequence[Any]) -> int | None:
    """The signal that ended one of them."""
    for worker in workers:
        with contextlib.suppress(ValueError):  # closed already
            if worker.exitcode is not None and worker.exitcode < 0:
                return -int(worker.exitcode)
    return None


def _ends_of_living(workers: Sequence[Any]) -> list[int]:
    """What can be waited for to see the first of them end."""
    ends = []
    for worker in workers:
        with contextlib.suppress(ValueError):  # closed already
            if worker.exitcode is None:
                ends.append(worker.sentinel)
    return ends


def _signal_of_dead_child() -> int | None:
    """The signal that ended a child that nobody has waited for yet: workers may die while the loader starts them."""
    if not hasattr(os, "waitid"):
        return None
    with contextlib.suppress(ChildProcessError):
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is not None and ended.si_code in {os.CLD_KILLED, os.CLD_DUMPED}:
            return int(ended.si_status)
    return None
