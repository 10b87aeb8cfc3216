"""Pools of a pass: how long they wait for their workers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from autotune.recorder.drawing import Indices, Own
from autotune.recorder.live import pools
from autotune.recorder.live.draws import Draws
from autotune.recorder.live.pools import OwnReading, Pass, Pool, Pools


class Numbers(Dataset[torch.Tensor]):
    """Reads each sample in some seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.tensor(index)


class Noisy(Numbers):
    """Adds noise to each sample."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + torch.rand(())


def opened(seconds: float, patience_seconds: float) -> Pool:
    """A pool of one worker that reads a pass."""
    loader = DataLoader(Numbers(seconds))
    arguments = {"dataset": loader.dataset, "num_workers": 1, "prefetch_factor": 1}
    pool = Pool(loader, (("num_workers", 1),), arguments, patience_seconds)
    pool.open(order(loader))
    return pool


def order(loader: DataLoader[torch.Tensor]) -> Indices:
    """The indices of a first pass."""
    return Indices(loader, Own.of(loader), loader._index_sampler, begins=True)


def test_the_own_pool_takes_over_again_before_another_has_begun() -> None:
    """A candidate that is out by its first block feeds nothing."""
    loader = DataLoader(Numbers(0.0))
    arguments = {"dataset": loader.dataset, "num_workers": 0}
    own, other = (Pool(loader, changed, arguments, 60.0) for changed in ((), (("prefetch_factor", 1),)))
    nothing = lambda *_: None  # noqa: E731
    passing = Pass(
        loader, order(loader), Pools(), own, lazily=False, draws=nothing, drawn=nothing, failed=nothing, ended=nothing
    )
    next(passing)
    passing.go_on_with(other)
    passing.go_on_with(own)
    assert [int(batch) for batch in passing] == [*range(1, 8)]
    assert (own.delivered, other.delivered) == (7, 0)


@pytest.mark.parametrize("is_drawing", [False, True])
def test_only_reading_that_draws_random_numbers_counts_as_drawing(is_drawing: bool) -> None:
    """Torch draws too, where a pass begins after one that has ended."""
    dataset = Noisy(0.0) if is_drawing else Numbers(0.0)
    loader, seen = DataLoader(dataset, shuffle=True), Draws()
    nothing = lambda *_: None  # noqa: E731
    for _ in range(3):
        own = Pool(loader, (), {"dataset": dataset, "num_workers": 0}, 60.0)
        passing = Pass(
            loader, order(loader), Pools(), own, lazily=True, failed=nothing, ended=nothing,
            draws=lambda one: seen.add("", one), drawn=lambda one, batch, _: seen.look_at("", one, batch),
        )  # fmt: skip
        assert len([*passing]) == 8
    assert seen.of("").reading.draws_random_numbers == is_drawing


def test_workers_leave_it_to_the_script_how_its_processes_start() -> None:
    """The first process of a program usually fixes that, and a later choice raises."""
    lines = (
        "from tests.live.test_pools import opened",
        "pool = opened(0.0, 60.0)",
        "import multiprocessing",
        "multiprocessing.set_start_method('spawn')",
        "pool.give_up()",
    )
    ended = subprocess.run([sys.executable, "-c", "; ".join(lines)], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr


def test_a_killed_worker_is_noticed_long_before_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A winner's pool waits two minutes for a batch, which training must not lose when the kernel kills a worker."""
    monkeypatch.setattr(pools, "POLL_SECONDS", 0.05)
    pool = opened(0.0, patience_seconds=10_000.0)
    assert pool.take() == 0
    os.kill(pool.batches._workers[0].pid, signal.SIGKILL)
    with pytest.raises((RuntimeError, OSError, EOFError)):  # it may also die while it hands over a batch
        [pool.take() for _ in range(8)]


@pytest.mark.parametrize(("patience_seconds", "comes"), [(60.0, True), (0.2, False)])
def test_a_slow_batch_is_waited_for_as_long_as_patience_lasts(
    monkeypatch: pytest.MonkeyPatch, patience_seconds: float, comes: bool
) -> None:
    """However often torch stops waiting meanwhile."""
    monkeypatch.setattr(pools, "POLL_SECONDS", 0.05)
    pool = opened(0.6, patience_seconds)
    if comes:
        assert [pool.take().item() for _ in range(2)] == [0, 1]
    else:
        with pytest.raises(RuntimeError, match=r"no batch came within 0\.2 s"):
            pool.take()
    pool.end()


def test_a_pool_waits_as_patiently_for_its_workers_to_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that was left early leaves workers in the middle of a batch."""
    monkeypatch.setattr(pools, "POLL_SECONDS", 0.05)
    pool = opened(0.6, 60.0)
    assert pool.take() == 0
    pool.close()
    pool.open(order(DataLoader(Numbers(0.6))))
    assert pool.take() == 0
    pool.end()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell where a file is read")
@pytest.mark.parametrize(("mode", "is_seen"), [("rb", True), ("r+b", True), ("a+b", True), ("ab", False)])
def test_a_file_that_reading_keeps_open_forbids_workers(tmp_path: Path, mode: str, is_seen: bool) -> None:
    """Whether or not it may be written as well; a log, which is only written, does not."""
    (tmp_path / "data").write_bytes(bytes(100))
    with (tmp_path / "data").open(mode, buffering=0) as file:
        reading = OwnReading()
        for sample in (3, 2):
            reading.before()
            file.seek(10 * sample)
            _ = file.read(10) if file.readable() else file.write(b"read")
            reading.after()
    assert (reading.why_no_workers is not None) is is_seen


def test_a_file_that_reading_opens_allows_workers(tmp_path: Path) -> None:
    """A training that starts with workers opens it in each of them."""
    (tmp_path / "data").write_bytes(bytes(100))
    reading = OwnReading()
    with contextlib.ExitStack() as files:
        file = None
        for sample in (3, 2):
            reading.before()
            file = file or files.enter_context((tmp_path / "data").open("rb", buffering=0))
            file.seek(10 * sample)
            _ = file.read(10)
            reading.after()
    assert reading.why_no_workers is None


def test_a_file_that_the_script_reads_between_batches_allows_workers(tmp_path: Path) -> None:
    """The data set does not read it."""
    (tmp_path / "log").write_bytes(bytes(100))
    reading = OwnReading()
    with (tmp_path / "log").open("rb", buffering=0) as file:
        for _ in range(2):
            reading.before()
            reading.after()
            file.read(10)
    assert reading.why_no_workers is None
