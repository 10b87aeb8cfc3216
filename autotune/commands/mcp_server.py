"""The MCP server: one measurement at a time, with progress; whatever ends a request leaves no process behind."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from mcp.server.mcpserver import Context, MCPServer

from autotune import __version__
from autotune.errors import INTERRUPTED_STATUS, Interrupted, UsageError
from autotune.search.interrupts import Stop
from autotune.secrets import masked_text
from autotune.terminal.sentence import Sentence

PROGRESS_SECONDS = 1.0
"""Between two words of progress."""
ENDING_SECONDS = 10.0
"""For which a call waits until the work of a cancelled one has ended: as its bursts do, within three each. Chosen."""
INSTRUCTIONS = """\
autotune finds the fastest correct way to train a PyTorch model on this machine. Begin with dry_run, which says what
would be tried. run tunes within a budget of wall-clock time and reports progress meanwhile; cancelling it keeps what
was measured by then. A result is a file, which show reads, check measures again, and compare puts beside others.
Only one measurement runs at a time, since two would disturb each other; leave the machine alone while one does.
Believe a speed-up only where it is confirmed, and report its interval."""
Answer = TypeVar("Answer")
Work = Callable[[Sentence, Stop], Answer]


@dataclass
class Desk:
    """Where measurements are asked for: one at a time, each in a thread of its own.

    Attributes:
        out_anywhere: Whether tools may write outside the working directory.
        running: What is being measured; None while nothing is.
    """

    out_anywhere: bool = False
    running: str | None = None
    _stop: Stop | None = None
    _idle: anyio.Event = field(default_factory=anyio.Event)

    async def measure(self, context: Context[Any, Any], what: str, seconds: float, work: Work[Answer]) -> Answer:
        """Runs `work` to its end, or until the request is cancelled or the client has gone.

        Args:
            context: Of the request; told how it goes.
            what: It is called in the refusal of a second one.
            seconds: Its budget, of which progress is a share.
            work: Runs in a thread.

        Raises:
            UsageError: Something is being measured already.
            AutotuneError: What `work` raises.
        """
        await self._have_room()
        told, stop = Sentence(), Stop()
        self.running, self._stop = what, stop
        ended: list[Answer | BaseException] = []

        def run() -> None:
            try:
                ended.append(work(told, stop))
            except (Exception, Interrupted) as error:  # noqa: BLE001 - raised below, where it is no group
                ended.append(error)

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._tell, context, told, seconds, stop)
                await anyio.to_thread.run_sync(run)  # a cancelled request waits for it: that is when all is gone
                group.cancel_scope.cancel()
        finally:
            self.running = self._stop = None
            self._idle.set()
            self._idle = anyio.Event()
        (answer,) = ended
        if isinstance(answer, Interrupted):
            raise UsageError(str(answer))
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def _have_room(self) -> None:
        """Waits a while for the end of what was cancelled.

        Raises:
            UsageError: Something is being measured, or has not ended by then.
        """
        if self._is_ending:
            with anyio.move_on_after(ENDING_SECONDS):
                await self._idle.wait()
        if self.running is None:
            return
        if self._is_ending:
            raise UsageError(
                f"{self.running} is ending, since it was cancelled, and a measurement beside it would be disturbed; "
                "call again in some seconds"
            )
        raise UsageError(
            f"{self.running} is being measured, and a second measurement would disturb it; "
            "wait for its answer, or cancel it"
        )

    @property
    def _is_ending(self) -> bool:
        return self._stop is not None and self._stop.asked

    async def _tell(self, context: Context[Any, Any], told: Sentence, seconds: float, stop: Stop) -> None:
        """Reports progress; is cancelled when the request is, or the client has gone, and ends the work then."""
        began, last = time.monotonic(), 0.0
        try:
            while True:
                share = min(1.0, (time.monotonic() - began) / seconds)
                if share > last:  # it must grow
                    last = share
                    await context.report_progress(share, 1.0, masked_text(told.text()))
                await anyio.sleep(PROGRESS_SECONDS)
        finally:
            stop.ask()

    async def close(self) -> None:
        """Ends what is being measured, and waits for it."""
        while self.running is not None:
            if self._stop is not None:
                self._stop.ask()
            await self._idle.wait()


def serve(*, out_anywhere: bool) -> None:
    """Serves on standard input and output until the client closes it, or a signal comes.

    Args:
        out_anywhere: Whether tools may write outside the working directory.
    """
    from autotune.commands.mcp_tools import make_tools

    anyio.run(_serve, make_tools, out_anywhere)


async def _serve(make_tools: Callable[[Desk], list[Any]], out_anywhere: bool) -> None:
    desk = Desk(out_anywhere)
    server: MCPServer[Any] = MCPServer(
        "autotune", instructions=INSTRUCTIONS, version=__version__, tools=make_tools(desk), log_level="WARNING"
    )
    async with anyio.create_task_group() as group:
        group.start_soon(_heed_signals, desk)
        try:
            await server.run_stdio_async()
        except Exception as error:
            if not _client_is_gone(error):
                raise
        group.cancel_scope.cancel()


def _client_is_gone(error: BaseException) -> bool:
    """Whether an error, or each of a group, is that nobody reads the answers any more: no mistake of ours."""
    inner: Sequence[BaseException] = getattr(error, "exceptions", ())
    return (
        all(map(_client_is_gone, inner)) if inner else isinstance(error, (BrokenPipeError, anyio.BrokenResourceError))
    )


async def _heed_signals(desk: Desk) -> None:
    """Ends the server at the first signal, once what was measured is kept, and at the second at once."""
    if sys.platform == "win32":  # whose event loop cannot be told of signals
        return
    closing = False
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        async with anyio.create_task_group() as group:
            async for _ in signals:
                if closing:
                    os._exit(INTERRUPTED_STATUS)
                closing = True
                group.start_soon(_close, desk)


async def _close(desk: Desk) -> None:
    await desk.close()
    os._exit(INTERRUPTED_STATUS)  # not by returning: a thread waits for a line of standard input
