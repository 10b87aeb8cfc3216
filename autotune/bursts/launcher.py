"""A job of several ranks: one process that forks them, hands commands on to all, and tells one outcome for all.

Not torch's own elastic launcher, though it does the like: its agent keeps its place in the rendezvous by heartbeats of
a few seconds, which a runner that is stopped for its partner's turns misses; it forks beside that thread; and it asks
the other ranks to end by SIGTERM for up to half a minute, which one that is stopped does not hear. Here the ranks are
forked from a job's own process, with torch and the user's module imported, so that the whole tree is stopped, continued
and killed like any other job's, and the first failure is told in the words of a burst's outcome.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from json import dumps, loads  # by name: the user's module may replace what `json` holds
from typing import Any, BinaryIO

import psutil

from autotune.bursts import cleanup
from autotune.bursts.endings import CAUSE_SECONDS, describe_end, lost_another
from autotune.bursts.live import Ended
from autotune.bursts.protocol import Commands, PipeReporter, Request
from autotune.measuring import Outcome

LOOK_SECONDS = 0.25
"""Between two looks at whether all ranks live."""
STOPPED_LOOKS = 8
"""In so many looks in a row a rank is stopped that nobody but itself can have stopped. The parent stops and continues
this process first: while the ranks are stopped by it, nobody looks."""
LOOPBACK = "127.0.0.1"

RunRank = Callable[[Request, PipeReporter, "Commands | None", Callable[[], None]], int]


@dataclass
class _Rank:
    """A rank, as its launcher sees it."""

    number: int
    pid: int
    events: int
    commands: int | None
    buffer: bytes = b""
    failure: dict[str, Any] | None = None
    result: bytes | None = None
    status: int | None = None
    stopped_looks: int = 0
    is_silent: bool = True
    failed_at: float = field(default=float("inf"))

    @property
    def lost_another(self) -> bool:
        """Whether it failed of another one's end: what it says is of a connection."""
        return not self.is_silent and lost_another(self.failure or {})


def run_ranks(request: Request, reporter: PipeReporter, commands: BinaryIO | None, run_rank: RunRank) -> None:
    """Runs a job on all its ranks, and tells its result, or how the first of them failed.

    Args:
        request: The job.
        reporter: To the parent.
        commands: What a live runner is told to do.
        run_rank: Runs one rank in its own process, once it has joined the others; returns the status to exit with.
    """
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # were it ignored, no status would come
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
    try:  # whatever happens, this process must not go on as a second launcher
        signal.signal(signal.SIGCHLD, signal.SIG_DFL if handler is None else handler)
        cleanup.children_end_with_this()
        theirs = [descriptor for one in before for descriptor in (one.events, one.commands)]
        for descriptor in (events_in, commands_out, *theirs):
            if descriptor is not None:
                os.close(descriptor)
        if commands is not None:
            commands.close()
        own = PipeReporter(os.fdopen(events_out, "wb"), request.number)
        told = os.fdopen(commands_in, "rb") if commands_in is not None else None
        status = run_rank(request, own, told, lambda: _join(number, request, listener))
    finally:  # at once, as any job's process ends
        os._exit(status)


def _say_who(number: int, count: int, port: int) -> None:
    """What `torchrun` would say in the environment, for whoever of the user's code reads it."""
    told = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in told.items()}, MASTER_ADDR=LOOPBACK)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else it asks for the host's name, which may lead nowhere
    # NCCL's own watch would end a rank that is stopped for longer than it waits; the parent watches.
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")


def _join(number: int, request: Request, listener: socket.socket) -> None:
    """Makes this process a rank, on a port that was taken before any of them began."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from autotune.training import ranks
    from autotune.training.tuned import torch_device

    port = listener.getsockname()[1]
    _say_who(number, request.ranks, port)
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
        self._looked = 0.0

    def attend(self) -> None:
        """Until all have told their result, or one has failed."""
        while not self._over():
            sources = {rank.events: rank for rank in self._ranks if rank.events >= 0}
            waited_for = [*sources, *([self._commands] if self._commands is not None else [])]
            readable, _, _ = select.select(waited_for, [], [], LOOK_SECONDS)
            for descriptor in readable:
                if descriptor == self._commands:
                    self._hand_on()
                else:
                    self._read(sources[descriptor])
            if time.monotonic() - self._looked >= LOOK_SECONDS or not readable:
                self._looked = time.monotonic()
                self._look()
        self._tell()

    def _over(self) -> bool:
        """Whether there is nothing more to wait for."""
        if all(rank.result is not None for rank in self._ranks):
            return True
        failed = min(rank.failed_at for rank in self._ranks)
        return time.monotonic() - failed >= CAUSE_SECONDS

    def _hand_on(self) -> None:
        """Passes commands on to all ranks; when there are no more, lets them end."""
        chunk = os.read(self._commands or 0, 65536)
        for rank in self._ranks:
            if rank.commands is not None:
                with contextlib.suppress(OSError):  # it has gone, which shows in its exit
                    if chunk:
                        os.write(rank.commands, chunk)
                    else:
                        os.close(rank.commands)
        if not chunk:
            self._commands = None

    def _read(self, rank: _Rank) -> None:
        chunk = os.read(rank.events, 65536)
        if not chunk:  # it has ended, or the user's code has closed it: the exit tells
            os.close(rank.events)
            rank.events = -1
            return
        *lines, rank.buffer = (rank.buffer + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                self._heard(rank, line)

    def _heard(self, rank: _Rank, line: bytes) -> None:
        """What the first rank says of its progress is passed on; ends are kept until all have come to theirs."""
        event = loads(line)
        kind = event["event"]
        if kind in {"failure", "error"}:
            rank.is_silent = False
            self._failed(rank, event)
        elif kind == "result":
            rank.result = line
        elif rank.number == 0:
            self._reporter.pass_on(line)

    def _look(self) -> None:
        """Sees which ranks have ended, or are stopped."""
        for rank in self._ranks:
            if rank.status is not None:
                continue
            with contextlib.suppress(ChildProcessError):
                ended, status = os.waitpid(rank.pid, os.WNOHANG)
                if ended:
                    rank.status = os.waitstatus_to_exitcode(status)
                    if rank.events >= 0:
                        self._drain(rank)
                    if rank.result is None and rank.failure is None:
                        self._failed(rank, self._failure(Outcome.CRASHED, describe_end(Ended(status=rank.status))))
                    continue
            with contextlib.suppress(psutil.Error):
                stopped = psutil.Process(rank.pid).status() == psutil.STATUS_STOPPED
                rank.stopped_looks = rank.stopped_looks + 1 if stopped else 0
                if rank.stopped_looks >= STOPPED_LOOKS and rank.failure is None:
                    reason = "the process was stopped by a signal, and nobody has continued it"
                    self._failed(rank, self._failure(Outcome.TIMEOUT, reason))

    def _drain(self, rank: _Rank) -> None:
        """Reads what a rank said before it ended; its loader's workers may hold its pipe open."""
        while rank.events >= 0 and select.select([rank.events], [], [], 0)[0]:
            self._read(rank)

    def _failure(self, outcome: Outcome, reason: str) -> dict[str, Any]:
        return {"event": "failure", "number": self._request.number, "outcome": outcome.value, "reason": reason}

    def _failed(self, rank: _Rank, event: dict[str, Any]) -> None:
        rank.failure = event
        rank.failed_at = time.monotonic()

    def _tell(self) -> None:
        """Tells the first rank's result, or the failure that came first; others failed of it."""
        failed = [rank for rank in self._ranks if rank.failure is not None]
        if not failed:
            self._reporter.pass_on(self._ranks[0].result or b"")
            return
        # What others say of their lost connection may have come before it is seen that somebody died without a word.
        causes = [rank for rank in failed if not rank.lost_another]
        cause = min(causes or failed, key=lambda rank: (rank.is_silent, rank.failed_at))
        event = dict(cause.failure or {})
        if event["event"] == "failure":
            event["reason"] = f"on rank {cause.number} of {len(self._ranks)}: {event['reason']}"
        self._reporter.pass_on(dumps(event).encode())
