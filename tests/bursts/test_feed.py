"""Batches without end: counted as they are collated, waiting told apart from starting, restarted when asked."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import Dataset, RandomSampler, Subset, default_collate

from autotune.bursts.jobs.feed import DeviceFeed, Feed
from autotune.knobs.config import TrainConfig
from autotune.recorder.order import Seeded
from autotune.timing.endless import Counted
from autotune.timing.loop import reads_batches
from autotune.training.tuned import Tuned
from autotune.workload.workload import Workload
from tests.workloads import mistakes, sleepy


def feed_of(workload: Workload) -> Feed:
    """The feed of a workload's baseline."""
    return Feed(workload, Tuned(workload.baseline_config))


def drawn_from(feed: Feed, batches: int) -> list[tuple[int, Any]]:
    """The first batches of a feed, with their samples."""
    items = iter(feed)
    return [next(items) for _ in range(batches)]


def test_an_iterable_dataset_is_counted_as_it_comes() -> None:
    """Its epoch is known when one has ended: each of two workers yields all ten samples, in 4 + 4 + 2."""
    workload = mistakes.workload(dataset=mistakes.Stream(10), baseline=TrainConfig(batch_size=4, num_workers=2))
    workload = Workload(**{**vars(workload), "batch_size": 4})
    feed = feed_of(workload)
    assert sorted(samples for samples, _ in drawn_from(feed, 7)[:6]) == [2, 2, 4, 4, 4, 4]
    assert feed.epoch_samples == 20


class Rows(Dataset[Any]):
    """Ten samples, the last batch of which is incomplete."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return torch.ones(2, 3)


class Columns(Rows):
    """A dataset that fetches a batch at once, by columns."""

    def __getitems__(self, indices: list[int]) -> dict[str, list[int]]:
        return {"x": indices, "y": indices}


COLLATIONS = {
    "lists in a dict": lambda samples: {"images": list(samples), "sizes": [3] * len(samples)},
    "scalars only": lambda samples: {"mean": torch.stack(samples).mean()},
    "packed": pack_sequence,
    "an object": lambda samples: type("Batch", (), {"samples": samples})(),
    "broken samples left out": lambda samples: samples[:1],
    "time first": lambda samples: torch.stack(samples, dim=1),
    "nothing of torch": len,
}


@pytest.mark.parametrize("collate", COLLATIONS.values(), ids=COLLATIONS.keys())
def test_samples_are_counted_whatever_the_batch(collate: Any) -> None:
    """Counted where they are collated, so that no structure of a batch can mislead."""
    workload = mistakes.workload(dataset=Rows(), collate_fn=collate, batch_size=4)
    feed = feed_of(workload)
    assert [samples for samples, _ in drawn_from(feed, 4)] == [4, 4, 2, 4]
    assert feed.epoch_samples == 10


def test_columns_are_counted_by_their_length() -> None:
    """A dataset may hand over whole columns; its batch has as many samples as a column has values."""
    workload = mistakes.workload(dataset=Columns(), collate_fn=lambda columns: columns, batch_size=4)
    assert [samples for samples, _ in drawn_from(feed_of(workload), 3)] == [4, 4, 2]


def test_waiting_is_told_apart_from_starting() -> None:
    """Four batches of 0.04 s an epoch: one is the start's, three are waited for."""
    feed = feed_of(sleepy.build(samples=16, read_seconds=0.01, batch_size=4))
    drawn_from(feed, 12)
    assert len(feed.starts) == 3
    assert [start.after_epoch for start in feed.starts] == [False, True, True]
    started, waited = sum(start.seconds for start in feed.starts), sum(came - asked for asked, came in feed.waits)
    assert started >= 3 * 0.04
    assert waited == pytest.approx(3 * started, rel=0.3)  # a busy machine makes both longer


def test_a_restart_empties_the_queue_and_ends_no_epoch() -> None:
    """The old workers are gone, the next batch has to be read, and nothing is taken for the length of an epoch."""
    feed = feed_of(sleepy.build(samples=400, read_seconds=0.02, batch_size=4, num_workers=2, prefetch_factor=4))
    items = iter(feed)
    next(items)
    old = {process.pid for process in multiprocessing.active_children()}
    time.sleep(0.6)
    feed.restart(0)
    assert not any(psutil.pid_exists(pid) for pid in old)
    began = time.perf_counter()
    next(items)
    assert time.perf_counter() - began > 0.06
    assert [start.after_epoch for start in feed.starts] == [False, False]
    assert feed.epoch_samples == 400


def test_a_restart_replaces_workers_that_persist() -> None:
    """Their queue would be worked off first, were they only reset."""
    config = {"batch_size": 4, "num_workers": 2, "persistent_workers": True}
    feed = feed_of(sleepy.build(samples=400, read_seconds=0.02, **config))
    items = iter(feed)
    next(items)
    old = {process.pid for process in multiprocessing.active_children()}
    feed.restart(0)
    next(items)
    assert not old & {process.pid for process in multiprocessing.active_children()}


def test_a_feed_that_begins_later_draws_what_a_restarted_one_draws() -> None:
    """A player whose loader is made anew reads on in the order that its partner reads."""
    workload = mistakes.workload(dataset=range(40), collate_fn=list, batch_size=4)
    restarted = feed_of(workload)
    restarted.restart(16)
    later = Feed(workload, Tuned(workload.baseline_config), restarted.seed, start=16)
    assert drawn_from(later, 12) == drawn_from(restarted, 12)


def test_batches_on_the_device_need_no_workers() -> None:
    """None is started, for it would go on reading beside what is timed; each batch is moved once."""
    workload = sleepy.build(samples=100, batch_size=8)
    tuned = Tuned(workload.baseline_config)
    moved: list[Any] = []
    tuned.to_device = lambda batch: moved.append(batch) or batch  # type: ignore[method-assign,func-returns-value]
    feed = DeviceFeed(workload, tuned)
    drawn = drawn_from(feed, 10)
    assert len(moved) == 4
    assert [id(batch) for _, batch in drawn[:4]] == [id(batch) for _, batch in drawn[4:8]]
    assert [samples for samples, _ in drawn] == [8] * 10
    assert feed.drawn == 10


def test_the_collation_can_be_sent_to_a_spawned_worker() -> None:
    """What wraps the user's collation must be picklable where theirs is."""
    again = pickle.loads(pickle.dumps(Counted(default_collate)))  # noqa: S301 - our own bytes
    samples, batch = again([torch.ones(2), torch.ones(2)])
    assert (samples, tuple(batch.shape)) == (2, (2, 2))


@pytest.mark.parametrize(
    ("dataset", "whole"),
    [(Rows(), False), (Columns(), True), (Subset(Rows(), [0, 1]), False), (Subset(Columns(), [0, 1]), True),
     (mistakes.Stream(10), True)],
)  # fmt: skip
def test_workers_read_whole_batches_where_the_data_set_can(dataset: Any, whole: bool) -> None:
    """A subset has the method whether or not its data set has it; what iterates may read as it likes."""
    assert reads_batches(dataset) is whole


def test_workers_read_nothing_while_they_are_held() -> None:
    """However long: their queue is as it was, and they go on from there."""
    feed = feed_of(sleepy.build(read_seconds=0.002, batch_size=4, num_workers=2, prefetch_factor=8))
    items = iter(feed)
    next(items)
    feed.hold_workers()
    time.sleep(0.05)  # a read under way still ends
    processes = [psutil.Process(worker.pid) for worker in feed._workers]
    used = [process.cpu_times().user + process.cpu_times().system for process in processes]
    time.sleep(0.3)
    assert [process.status() for process in processes] == [psutil.STATUS_STOPPED] * 2
    assert [process.cpu_times().user + process.cpu_times().system for process in processes] == used
    feed.release_workers()
    assert [next(items)[0] for _ in range(20)] == [4] * 20


class Workers:
    """What a loader's iterator holds of workers, the first of which are alive."""

    def __init__(self, living: int, *statuses: int) -> None:
        self.pipes = [os.pipe() for _ in range(living)]
        alive = [SimpleNamespace(exitcode=None, sentinel=end) for end, _ in self.pipes]
        self._workers = [*alive, *(SimpleNamespace(exitcode=status) for status in statuses)]

    def close(self) -> None:
        """Gives the pipes back."""
        for ends in self.pipes:
            for end in ends:
                os.close(end)


@pytest.fixture
def feed_with_workers(request: pytest.FixtureRequest) -> Iterator[Feed]:
    """A feed whose loader has workers as told."""
    workers = Workers(*request.param)
    feed = feed_of(sleepy.build(batch_size=4))
    feed.running = workers  # type: ignore[assignment]
    yield feed
    workers.close()


@pytest.mark.parametrize("feed_with_workers", [(12,)], indirect=True)
def test_many_workers_that_live_are_waited_for_together(feed_with_workers: Feed) -> None:
    """An error that is none of theirs, as memory that ran out, is told half a second later, not half a dozen."""
    began = time.monotonic()
    assert feed_with_workers.killing_signal() is None
    assert time.monotonic() - began < 4.0


@pytest.mark.parametrize("feed_with_workers", [(12, 0, -signal.SIGKILL)], indirect=True)
def test_a_worker_that_was_killed_is_seen_at_once(feed_with_workers: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever lives before it in the list is not waited for."""
    monkeypatch.setattr("autotune.bursts.jobs.feed.DYING_SECONDS", 60.0)
    began = time.monotonic()
    assert feed_with_workers.killing_signal() == signal.SIGKILL
    assert time.monotonic() - began < 30.0


def test_a_stream_of_unknown_length_drops_no_batch() -> None:
    """An epoch of five samples is shorter than a batch: compiled players would find none."""
    workload = mistakes.workload(dataset=mistakes.Stream(5))
    feed = Feed(workload, Tuned(TrainConfig(batch_size=8, compile_mode="default")))
    assert [samples for samples, _ in drawn_from(feed, 2)] == [5, 5]


def test_an_order_that_nobody_draws_from_takes_no_epoch() -> None:
    """Torch makes two iterators of a batch sampler for workers, and draws from the second."""
    order = Seeded(RandomSampler(range(8)), seed=0, start=3)
    iter(order)
    assert list(order) == list(Seeded(RandomSampler(range(8)), seed=0, start=3))
