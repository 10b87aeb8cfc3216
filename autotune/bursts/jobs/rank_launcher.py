"""A job of several ranks: one process forks them, passes commands on to all, and reports one outcome for all.

Torch's own elastic launcher does not fit. Its agent keeps its place in the rendezvous by heartbeats every few seconds,
which a runner misses while it is stopped for its partner's turn. It forks beside that thread. And it asks the other
ranks to end by SIGTERM for up to half a minute, which a stopped rank does not receive.

Here a job's own process, with torch and the user's module imported, forks the ranks. So the whole tree is stopped,
continued and killed like that of any other job, and the first failure is reported as a burst's outcome.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from json import dumps, loads  # by name: the user's module may replace what `json` holds
from typing import Any, BinaryIO

import psutil

from autotune.bursts.hosts import cleanup
from autotune.bursts.hosts.endings import CAUSE_SECONDS, RankFailure, cause_among, describe_end
from autotune.bursts.hosts.protocol import PipeReporter, Request
from autotune.bursts.hosts.running_job import Ended
from autotune.measuring import Outcome

LOOK_SECONDS = 0.25
"""Time between two looks at whether all ranks live."""
STOPPED_LOOKS = 8
"""Looks in a row that find a rank stopped before it counts as failed. The parent cannot have stopped it then: it stops
and continues this process first, so that there are no looks while it keeps the ranks stopped."""
LOOPBACK = "127.0.0.1"

RunRank = Callable[[Request, PipeReporter, "BinaryIO | None", Callable[[], None]], int]


@dataclass
class _Rank:
    """A rank, as its launcher sees it."""

    number: int
    pid: int
    events: int
    commands: int | None
    buffer: bytes = b""
    has_failed: bool = False
    result: bytes | None = None
    status: int | None = None
    stopped_looks: int = 0


def run_ranks(request: Request, reporter: PipeReporter, commands: BinaryIO | None, run_rank: RunRank) -> None:
    """Runs a job on all its ranks, and reports its result, or how the first of them failed.

    Args:
        request: The job.
        reporter: Reports to the parent.
        commands: Commands for a host.
        run_rank: Runs one rank in its own process, once it has joined the others; returns the exit status.
    """
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, no exit status would arrive
    listener = socket.create_server((LOOPBACK, 0), backlog=request.ranks)
    ranks: list[_Rank] = []
    try:
        for number in range(request.ranks):
            ranks.append(_fork(number, request, listener, ranks, commands, handler, run_rank))
        listener.close()
        _Launcher(request, reporter, commands, ranks).attend()
    finally:
        own = psutil.Process()
        cleanup.end_processes(lambda: cleanup.descendants(own))


def _fork(
    number: int,
    request: Request,
    listener: socket.socket,
    before: list[_Rank],
    commands: BinaryIO | None,
    handler: Any,
    run_rank: RunRank,
) -> _Rank:
    """Starts a rank."""
    events_in, events_out = os.pipe()
    commands_in, commands_out = os.pipe() if commands is not None else (None, None)
    pid = os.fork()
    if pid != 0:
        os.close(events_out)
        if commands_in is not None:
            os.close(commands_in)
        return _Rank(number, pid, events_in, commands_out)
    status = 1
    try:  # whatever happens, this process must not become a second launcher
        signal.signal(signal.SIGCHLD, signal.SIG_DFL if handler is None else handler)
        cleanup.children_end_with_this()
        theirs = [descriptor for rank in before for descriptor in (rank.events, rank.commands)]
        for descriptor in (events_in, commands_out, *theirs):
            if descriptor is not None:
                os.close(descriptor)
        if commands is not None:
            commands.close()
        own = PipeReporter(os.fdopen(events_out, "wb"), request.number, request.out_of_memory)
        rank_commands = os.fdopen(commands_in, "rb") if commands_in is not None else None
        status = run_rank(request, own, rank_commands, lambda: _join(number, request, listener))
    finally:  # at once, like the process of any job
        os._exit(status)


def _set_environment(number: int, count: int, port: int) -> None:
    """Sets the environment variables that `torchrun` would set, since the user's code may read them."""
    values = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in values.items()}, MASTER_ADDR=LOOPBACK)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else it looks up the host's name, which may fail
    # NCCL's own watchdog would end a rank that is stopped for long; the parent watches instead.
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")


def _join(number: int, request: Request, listener: socket.socket) -> None:
    """Makes this process a rank, on a port that was reserved before any rank started."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from autotune.training import ranks
    from autotune.training.tuned import torch_device

    port = listener.getsockname()[1]
    _set_environment(number, request.ranks, port)
    first = number == 0
    store = TCPStore(
        LOOPBACK, port, request.ranks, is_master=first, timeout=ranks.NO_DEADLINE, wait_for_workers=False,
        master_listen_fd=listener.detach() if first else None,
    )  # fmt: skip
    if not first:
        listener.close()
    device = ranks.device_of_rank(torch_device(request.device or "cpu"))
    ranks.join(device, store=store, rank=number, world_size=request.ranks, timeout=ranks.NO_DEADLINE)


class _Launcher:
    """Attends to ranks that run."""

    def __init__(self, request: Request, reporter: PipeReporter, commands: BinaryIO | None, ranks: list[_Rank]) -> None:
        self._request = request
        self._reporter = reporter
        self._commands = commands.fileno() if commands is not None else None
        self._ranks = ranks
        self._failures: list[RankFailure] = []
        self._failed_at = math.inf
        self._looked = 0.0

    def attend(self) -> None:
        """Runs until all ranks have reported their results, or one has failed."""
        while not self._over():
            sources = {rank.events: rank for rank in self._ranks if rank.events >= 0}
            waited_for = [*sources, *([self._commands] if self._commands is not None else [])]
            readable, _, _ = select.select(waited_for, [], [], LOOK_SECONDS)
            for descriptor in readable:
                if descriptor == self._commands:
                    self._pass_on_commands()
                else:
                    self._read(sources[descriptor])
            if time.monotonic() - self._looked >= LOOK_SECONDS or not readable:
                self._looked = time.monotonic()
                self._look()
        self._report()

    def _over(self) -> bool:
        """Whether there is nothing more to wait for."""
        if all(rank.result is not None for rank in self._ranks):
            return True
        return time.monotonic() - self._failed_at >= CAUSE_SECONDS

    def _pass_on_commands(self) -> None:
        """Passes commands on to all ranks; when there are no more, closes their pipes, so that they end."""
        chunk = os.read(self._commands or 0, 65536)
        for rank in self._ranks:
            if rank.commands is not None:
                with contextlib.suppress(OSError):  # it has ended, which its exit status shows
                    if chunk:
                        os.write(rank.commands, chunk)
                    else:
                        os.close(rank.commands)
        if not chunk:
            self._commands = None

    def _read(self, rank: _Rank) -> None:
        chunk = os.read(rank.events, 65536)
        if not chunk:  # it has ended, or the user's code has closed the pipe: its exit shows which
            os.close(rank.events)
            rank.events = -1
            return
        *lines, rank.buffer = (rank.buffer + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                self._heard(rank, line)

    def _heard(self, rank: _Rank, line: bytes) -> None:
        """Passes on the first rank's progress; keeps results and failures until all ranks have ended."""
        event = loads(line)
        kind = event["event"]
        if kind in {"failure", "error"}:
            self._failed(rank, event, is_silent=False)
        elif kind == "result":
            rank.result = line
        elif rank.number == 0:
            self._reporter.pass_on(line)

    def _look(self) -> None:
        """Notes which ranks have ended, or are stopped."""
        for rank in self._ranks:
            if rank.status is not None:
                continue
            with contextlib.suppress(ChildProcessError):
                ended, status = os.waitpid(rank.pid, os.WNOHANG)
                if ended:
                    rank.status = os.waitstatus_to_exitcode(status)
                    if rank.events >= 0:
                        self._drain(rank)
                    if rank.result is None and not rank.has_failed:
                        self._ended(rank, Outcome.CRASHED, describe_end(Ended(status=rank.status)))
                    continue
            with contextlib.suppress(psutil.Error):
                stopped = psutil.Process(rank.pid).status() == psutil.STATUS_STOPPED
                rank.stopped_looks = rank.stopped_looks + 1 if stopped else 0
                if rank.stopped_looks >= STOPPED_LOOKS and not rank.has_failed:
                    self._ended(rank, Outcome.TIMEOUT, "the process was stopped by a signal, and not continued")

    def _drain(self, rank: _Rank) -> None:
        """Reads a rank's last events; its loader's workers may hold its pipe open."""
        while rank.events >= 0 and select.select([rank.events], [], [], 0)[0]:
            self._read(rank)

    def _ended(self, rank: _Rank, outcome: Outcome, reason: str) -> None:
        """Notes that a rank has ended, or hangs, without a report."""
        number = self._request.number
        event = {"event": "failure", "number": number, "outcome": outcome.value, "reason": reason}
        self._failed(rank, event, is_silent=True)

    def _failed(self, rank: _Rank, event: dict[str, Any], *, is_silent: bool) -> None:
        rank.has_failed = True
        self._failures.append(RankFailure(rank.number, event, is_silent))
        self._failed_at = min(self._failed_at, time.monotonic())

    def _report(self) -> None:
        """Reports the first rank's result, or the failure that made the others fail."""
        if self._failures:
            self._reporter.pass_on(dumps(cause_among(self._failures, len(self._ranks))).encode())
        else:
            self._reporter.pass_on(self._ranks[0].result or b"")
