"""What the ranks of a script tell becomes what one process would; a launcher's ranks meet at a port of their own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from autotune.bursts.hosts.running_job import Ended, Live
from autotune.recorder.changes import Changes
from autotune.recorder.ranks import Meeting, count_ranks, this_rank, top_of_run
from autotune.recorder.stream import Stream
from autotune.scripts import Script
from autotune.scripts.child import ScriptChild
from autotune.scripts.ranks import Together, free_port, on_port

FIGURES = {"host_memory_bytes": 100, "loss": 1.0}


def joined(*ranks: int) -> Together:
    """Ranks that have come to the loop, in this order."""
    return Together(dict(enumerate(ranks)), len(ranks))


def block(seconds: float, samples: int = 64, *, drained: bool = True, left_out: float = 0.0) -> dict[str, Any]:
    """A block that a rank has trained, from which so many seconds of evaluation were left out."""
    lap = {"seconds": seconds, "samples": samples, "wait_seconds": seconds / 2, "starts": [], "compiled": False}
    lap["left_out"] = left_out
    return {"event": "block", "number": 3, "lap": lap, "drained": drained, "taken": 0.0, "leads_in": False}


def failure(reason: str, outcome: str = "crashed") -> dict[str, Any]:
    """How a rank says that it has failed."""
    return {"event": "failure", "number": 3, "outcome": outcome, "reason": reason}


def test_a_block_takes_as_long_as_its_slowest_rank_and_drains_when_all_have() -> None:
    """Each rank counts the samples of all; nothing is told before the last has told its own."""
    together = joined(0, 1)
    assert together.add_event(0, block(0.2)) == []
    (told,) = together.add_event(1, block(0.3, drained=False))
    assert (told["lap"]["seconds"], told["lap"]["wait_seconds"], told["lap"]["samples"]) == (0.3, 0.15, 64)
    assert not told["drained"]
    assert together.add_event(1, block(0.2)) == []  # the next one begins anew


def test_what_one_rank_evaluates_is_left_out_of_all() -> None:
    """The others wait for it, in a step that seems to take as long."""
    together = joined(0, 1)
    together.add_event(0, block(0.2, left_out=3.0))
    (told,) = together.add_event(1, block(3.3))
    assert told["lap"]["seconds"] == pytest.approx(0.3)


def test_the_first_rank_tells_progress_and_losses_and_memory_adds_up() -> None:
    """Whoever connected first."""
    together = joined(1, 0)
    assert together.add_event(0, {"event": "phase", "number": 3, "phase": "train"}) == []
    assert len(together.add_event(1, {"event": "phase", "number": 3, "phase": "train"})) == 1
    together.add_event(0, {"event": "result", "number": 3, "value": {**FIGURES, "loss": 2.0}})
    (told,) = together.add_event(1, {"event": "result", "number": 3, "value": FIGURES})
    assert told["value"] == {"host_memory_bytes": 200, "loss": 1.0}


def test_the_failure_that_began_it_is_told() -> None:
    """Not what the others say of their lost connections, though it was heard first."""
    together = joined(0, 1)
    together.add_event(0, failure("RuntimeError: [gloo/transport/tcp/pair.cc:525] Connection closed by peer"))
    together.add_event(1, failure("CUDA out of memory", "oom"))
    assert together.has_failed
    (told,) = together.outcome()
    assert (told["reason"], told["outcome"]) == ("on rank 1 of 2: CUDA out of memory", "oom")
    assert together.outcome() == []  # once


def test_a_rank_that_goes_without_a_word_has_failed() -> None:
    """Though another one says that it lost it."""
    together = joined(0, 1)
    together.add_event(0, failure("RuntimeError: Connection closed by peer [127.0.0.1]:4711"))
    together.note_disconnect(1)
    assert "on rank 1 of 2: the process ended without a report" in together.outcome()[0]["reason"]


def test_what_ranks_say_once_time_was_up_is_no_failure() -> None:
    """They are killed one after the other, and each loses the others."""
    live = Live(number=3, child=None, forked=True, began=0.0, kills_before=0, ended=Ended(timed_out=True))  # type: ignore[arg-type]
    live.note(failure("RuntimeError: Connection closed by peer"))
    assert live.ended.message is None


def test_the_failure_is_told_before_the_end() -> None:
    """Whoever waits for the end would not read on."""
    together = joined(0, 1)
    together.add_event(0, failure("MemoryError: no more", "oom"))
    together.add_event(0, {"event": "exit", "number": 3, "status": 0})
    told = together.add_event(1, {"event": "exit", "number": 3, "status": -9})
    assert [one["event"] for one in told] == ["failure", "exit"]
    assert told[1]["status"] == -9


@pytest.mark.parametrize("kind", ["result", "trained"])
def test_ranks_that_have_told_all_may_go(kind: str) -> None:
    """Before the others have, and after."""
    together = joined(0, 1)
    together.add_event(0, {"event": kind, "number": 3, "value": FIGURES})
    together.note_disconnect(0)
    together.add_event(1, {"event": kind, "number": 3, "value": FIGURES})
    together.note_disconnect(1)
    assert not together.has_failed


@pytest.mark.parametrize(
    ("typed", "runs"),
    [
        ("torchrun --nproc-per-node 2 train.py", "torchrun --nproc-per-node 2 train.py"),
        ("torchrun --master-port 29501 train.py", "torchrun --master-port 7 train.py"),
        ("torchrun --master_port=29501 train.py", "torchrun --master_port=7 train.py"),
        ("accelerate launch --main_process_port 1 t.py", "accelerate launch --main_process_port 7 t.py"),
        ("torchrun --rdzv-endpoint=localhost:29400 t.py", "torchrun --rdzv-endpoint=localhost:7 t.py"),
        ("torchrun --rdzv_endpoint localhost t.py", "torchrun --rdzv_endpoint localhost:7 t.py"),
        ("python train.py --master_port", "python train.py --master_port"),
    ],
)
def test_a_launchers_ranks_meet_at_a_port_of_their_own(typed: str, runs: str) -> None:
    """Two sides of a duet live at the same time, and one port serves one of them."""
    words, variables = on_port(typed.split(), {"A": "b"}, 7)
    assert words == runs.split()
    assert variables == {"A": "b", "PET_MASTER_PORT": "7"}


@pytest.mark.parametrize(
    ("asked", "meets"),
    [
        ({"init_method": "tcp://localhost:23456"}, "tcp://localhost:7"),
        ({"init_method": "tcp://[::1]:23456"}, "tcp://[::1]:7"),
        ({"init_method": "file:///tmp/shared"}, "file:///tmp/shared.7"),
        ({"init_method": "env://"}, "env://"),
        ({}, None),
    ],
)
def test_ranks_that_meet_by_themselves_meet_elsewhere(
    asked: dict[str, str], meets: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port or a file of the script's own serves one job; whoever is to know of it is told before, with the rank."""
    called: list[tuple[Any, ...]] = []
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *args, **_: called.append(args))
    monkeypatch.setenv("MASTER_PORT", "12355")
    before: list[int] = []
    Meeting(7, before.append)
    torch.distributed.init_process_group("gloo", rank=1, world_size=2, **asked)
    assert called == [("gloo", meets)]
    assert before == [1]
    assert os.environ["MASTER_PORT"] == "7"


def test_ranks_meet_where_torchrun_waits_for_them_until_they_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its port serves the first job; each that is forked opens its own."""
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *_, **__: None)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("MASTER_PORT", "29500")
    meeting = Meeting(7)
    torch.distributed.init_process_group("gloo")
    assert os.environ["MASTER_PORT"] == "29500"
    meeting.move(8)
    torch.distributed.init_process_group("gloo")
    assert (os.environ["MASTER_PORT"], os.environ["TORCHELASTIC_USE_AGENT_STORE"]) == ("8", "False")


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_count_the_samples_of_all_and_come_to_the_same_places(workers: int) -> None:
    """Each reads its share; an epoch ends where all have read theirs, and a place in the stream is that of all."""
    data = TensorDataset(torch.arange(40))
    found = []
    for rank in range(2):
        loader = DataLoader(data, batch_size=6, num_workers=workers, sampler=DistributedSampler(data, 2, rank))
        stream = Stream(loader, Changes({}), 0, ranks=2)
        places, read = [], []
        for _ in range(8):
            read += next(stream)[1][0].tolist()
            places.append(stream.position)
        found.append((places, read, stream.samples, stream.epoch_samples))
        stream.restart(12)
        assert next(stream)[1][0].numel() == 6
    assert found[0][0] == found[1][0] == [12, 24, 36, 40, 52, 64, 76, 80]
    assert sorted(found[0][1][:20] + found[1][1][:20]) == list(range(40))
    assert found[0][2:] == (80, 40)


def test_a_script_runs_where_there_is_no_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a sandbox without a network: a script of one process needs none."""

    def refused(*_: Any) -> None:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr("socket.create_server", refused)
    assert free_port() == 29500


class Uneven(IterableDataset[Any]):
    """Ranks that share out their data themselves: one has batches that are smaller at times."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def __iter__(self) -> Any:
        return (torch.zeros(size) for size in self.sizes * 10)


def test_ranks_with_batches_of_different_sizes_come_to_the_same_places() -> None:
    """Else one would wait for a command while the other waits for it in an exchange."""
    places = []
    for sizes in ([4, 4, 4], [4, 1, 3]):
        stream = Stream(DataLoader(Uneven(sizes), batch_size=None), Changes({}), 0, ranks=2, usual_samples=4)
        places.append([(next(stream), stream.position)[1] for _ in range(6)])
    assert places[0] == places[1] == [8, 16, 24, 32, 40, 48]


def test_the_top_of_a_run_is_what_started_it() -> None:
    """A mark in the environment tells it from whoever started that."""
    inner = (
        "import os; from autotune.recorder.ranks import top_of_run; print(os.getppid(), top_of_run('mark-of-a-run'))"
    )
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    environment = {**os.environ, "ORDERS": "mark-of-a-run"}
    told = subprocess.run([sys.executable, "-c", outer], env=environment, capture_output=True, text=True, check=True)
    above, top = map(int, told.stdout.split())
    assert top == above
    assert top_of_run("no such mark") == os.getpid()


@pytest.mark.parametrize("value", ["", "none", "2"])
def test_a_variable_of_ranks_may_hold_anything(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a number in it, the process trains alone."""
    monkeypatch.setenv("WORLD_SIZE", value)
    monkeypatch.setenv("RANK", value)
    assert (count_ranks(), this_rank()) == ((2, 2) if value == "2" else (1, 0))


@pytest.mark.parametrize("shared", [".", "missing"])
def test_a_script_that_cannot_be_started_leaves_no_socket_open(shared: str, tmp_path: Path) -> None:
    """Its parent may go on to start others."""
    before = os.listdir("/proc/self/fd")
    fails = {"command": lambda *_, **__: (tmp_path / "nothing").read_text(), "storing": contextlib.nullcontext}
    protection: Any = SimpleNamespace(shared=tmp_path / shared, **fails)
    with pytest.raises(FileNotFoundError) as failed:
        ScriptChild(Script(("none",)), {"role": "look"}, {}, tmp_path, protection, "look")
    assert len(os.listdir("/proc/self/fd")) == len(before), failed  # which refers to the child
