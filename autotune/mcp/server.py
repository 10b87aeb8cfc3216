"""The MCP server: one measurement at a time, with progress. A request that ends leaves no process behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from mcp.server.mcpserver import Context, MCPServer

from autotune import __version__
from autotune.errors import INTERRUPTED_STATUS, Interrupted, UsageError
from autotune.sandbox.system import ENDING_SIGNALS, WINDOWS
from autotune.search.interrupts import Stop
from autotune.secrets import masked_text
from autotune.terminal.progress import Latest

PROGRESS_SECONDS = 1.0
"""Interval between two progress reports. Not tuned."""
ENDING_SECONDS = 10.0
"""Limit for waiting until a cancelled measurement has ended; its bursts end within three seconds each. Not tuned."""
INSTRUCTIONS = """\
autotune finds the fastest correct way to train a PyTorch model on this machine. Begin with dry_run, which says what
would be tried. run tunes within a budget of wall-clock time and reports progress meanwhile; cancelling it keeps what
was measured by then. A result is a file, which show reads, check measures again, and compare puts beside others.
Only one measurement runs at a time, since two would disturb each other; leave the machine alone while one does.
Believe a speed-up only where it is confirmed, and report its interval."""
Answer = TypeVar("Answer")
Work = Callable[[Latest, Stop], Answer]


@dataclass
class Desk:
    """Runs measurements for requests: one at a time, each in its own thread."""

    out_anywhere: bool = False  # tools may write outside the working directory
    running: str | None = None  # name of the running measurement
    _stop: Stop | None = None
    _idle: anyio.Event = field(default_factory=anyio.Event)

    async def measure(self, context: Context[Any, Any], what: str, seconds: float, work: Work[Answer]) -> Answer:
        """Runs `work` until it ends, the request is cancelled, or the client disconnects.

        Args:
            context: The request's context; receives progress.
            what: Name of the measurement, for the message that refuses a second one.
            seconds: Its budget. Progress is the share that has passed.
            work: The measurement; runs in a thread.

        Raises:
            UsageError: Another measurement is running.
            AutotuneError: Raised by `work`.
        """
        await self._wait_for_room()
        sentence, stop = Latest(), Stop()
        self.running, self._stop = what, stop
        ended: list[Answer | BaseException] = []

        def run() -> None:
            try:
                ended.append(work(sentence, stop))
            except (Exception, Interrupted) as error:  # noqa: BLE001 - raised below, outside of the task group
                ended.append(error)

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._report_progress, context, sentence, seconds, stop)
                await anyio.to_thread.run_sync(run)  # a cancelled request waits until all processes have ended
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

    async def _wait_for_room(self) -> None:
        """Waits for a cancelled measurement to end, for a limited time.

        Raises:
            UsageError: A measurement is running, or has not ended in time.
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

    async def _report_progress(self, context: Context[Any, Any], sentence: Latest, seconds: float, stop: Stop) -> None:
        """Reports progress until the request is cancelled or the client disconnects, then ends the work."""
        began, last = time.monotonic(), 0.0
        try:
            while True:
                share = min(1.0, (time.monotonic() - began) / seconds)
                if share > last:  # the protocol requires progress to grow
                    last = share
                    await context.report_progress(share, 1.0, masked_text(sentence.text()))
                await anyio.sleep(PROGRESS_SECONDS)
        finally:
            stop.ask()

    async def close(self) -> None:
        """Ends the running measurement, and waits for it."""
        while self.running is not None:
            if self._stop is not None:
                self._stop.ask()
            await self._idle.wait()


def serve(*, out_anywhere: bool) -> None:
    """Serves on standard input and output until the client closes the connection or a signal arrives."""
    from autotune.mcp.tools import make_tools

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
    """Whether an error, or each error of a group, says that the client no longer reads answers."""
    inner: Sequence[BaseException] = getattr(error, "exceptions", ())
    return (
        all(map(_client_is_gone, inner)) if inner else isinstance(error, (BrokenPipeError, anyio.BrokenResourceError))
    )


async def _heed_signals(desk: Desk) -> None:
    """Ends the server: at the first signal after saving the measurement, at the second immediately."""
    if WINDOWS:  # its event loop cannot handle signals
        return
    closing = False
    with anyio.open_signal_receiver(*ENDING_SIGNALS) as signals:
        async with anyio.create_task_group() as group:
            async for _ in signals:
                if closing:
                    os._exit(INTERRUPTED_STATUS)
                closing = True
                group.start_soon(_close, desk)


async def _close(desk: Desk) -> None:
    await desk.close()
    os._exit(INTERRUPTED_STATUS)  # returning would hang: a thread waits for a line of standard input
