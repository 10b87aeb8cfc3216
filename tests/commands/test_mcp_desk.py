"""The desk of the MCP server: whoever comes while a cancelled measurement ends waits for that a while."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import anyio
import pytest

pytest.importorskip("mcp", reason="the SDK: pip install mcp")
from autotune.errors import UsageError
from autotune.mcp import server
from autotune.mcp.server import Desk
from autotune.search.interrupts import Stop
from autotune.terminal.progress import Latest

WAIT_SECONDS = 20.0


class Context:
    """A client that takes progress, and does nothing with it."""

    async def report_progress(self, *_: Any) -> None:
        """Told how far it is."""


CONTEXT = cast("Any", Context())


async def cancelled(desk: Desk, let_go: threading.Event, then: Any) -> Any:
    """What `then` gives, called while a cancelled measurement still ends."""
    begun = threading.Event()

    def slow(_: Latest, stop: Stop) -> str:
        begun.set()
        while not stop.asked:
            time.sleep(0.01)
        let_go.wait(WAIT_SECONDS)
        return "cancelled"

    async with anyio.create_task_group() as outer:
        scope = anyio.CancelScope()

        async def first() -> None:
            with scope:
                await desk.measure(CONTEXT, "train.py", 60.0, slow)

        outer.start_soon(first)
        while not begun.is_set():
            await anyio.sleep(0.01)
        scope.cancel()
        await anyio.sleep(0.05)
        try:
            return await then()
        finally:
            let_go.set()


def test_a_call_after_a_cancelled_one_waits_for_its_end() -> None:
    """It is answered, once nothing of the other one is left."""
    desk, let_go = Desk(), threading.Event()

    async def main() -> Any:
        threading.Timer(0.3, let_go.set).start()
        return await cancelled(
            desk, let_go, lambda: desk.measure(CONTEXT, "second", 60.0, lambda *_: let_go.is_set() and "answered")
        )

    assert anyio.run(main) == "answered"
    assert desk.running is None


def test_where_the_end_takes_long_a_call_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not to cancel what has been cancelled."""
    monkeypatch.setattr(server, "ENDING_SECONDS", 0.1)
    desk = Desk()

    async def refused() -> None:
        with pytest.raises(UsageError, match=r"train.py is ending, since it was cancelled.*call again in some seconds"):
            await desk.measure(CONTEXT, "second", 60.0, lambda *_: "answered")

    anyio.run(cancelled, desk, threading.Event(), refused)


def test_a_second_call_is_refused_while_one_is_measured() -> None:
    """At once: nobody has asked it to end."""
    desk, let_go = Desk(), threading.Event()

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(desk.measure, CONTEXT, "train.py", 60.0, lambda *_: let_go.wait(WAIT_SECONDS))
            await anyio.sleep(0.05)
            try:
                with pytest.raises(UsageError, match=r"train.py is being measured.*wait for its answer, or cancel it"):
                    await desk.measure(CONTEXT, "second", 60.0, lambda *_: "answered")
            finally:
                let_go.set()

    anyio.run(main)
