"""A notebook with a real kernel: cells are executed one after the other, by nbclient, as Jupyter would."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import nbformat
import psutil
from nbclient import NotebookClient

from tests.processes import ROOT, slowness, temporary_of

MOST_SECONDS = 240


class Notebook:
    """A notebook in a folder, whose kernel runs while it is open.

    Attributes:
        folder: The kernel's working directory.
        temporary: The kernel's folder for temporary files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.temporary = folder, temporary_of(folder)
        self._client = NotebookClient(
            nbformat.v4.new_notebook(), timeout=MOST_SECONDS, kernel_name="python3", allow_errors=True,
            resources={"metadata": {"path": str(folder)}},
        )  # fmt: skip
        self._loop = asyncio.new_event_loop()
        self._seen: set[psutil.Process] = set()

    def __enter__(self) -> Notebook:
        client = self._client
        client.create_kernel_manager()
        environment = {**os.environ, "TMPDIR": str(self.temporary), "PYTHONPATH": str(ROOT)}
        self._loop.run_until_complete(client.async_start_new_kernel(env=environment, cwd=str(self.folder)))
        self._loop.run_until_complete(client.async_start_new_kernel_client())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._loop.run_until_complete(self._client._async_cleanup_kernel())
        self._loop.close()

    def run(self, source: str) -> list[dict[str, Any]]:
        """What a cell shows; what it raises is an output of the type ``error``."""
        return self._loop.run_until_complete(self._run(source))

    def interrupted(self, source: str, when: Callable[[], bool]) -> list[dict[str, Any]]:
        """The same of a cell that is interrupted by the kernel manager, once something has happened."""

        async def both() -> list[dict[str, Any]]:
            running = asyncio.ensure_future(self._run(source))
            deadline = time.monotonic() + 60 * slowness()
            while not when() and not running.done():
                assert time.monotonic() < deadline, "it has not happened"
                await asyncio.sleep(0.1)
            self.look()
            await self._client.km.interrupt_kernel()
            return await running

        return self._loop.run_until_complete(both())

    def restart(self) -> None:
        """Starts the kernel anew: all that its cells have defined is gone."""
        self.look()

        async def again() -> None:
            await self._client.km.restart_kernel(now=True)
            await self._client.kc.wait_for_ready(timeout=60)

        self._loop.run_until_complete(again())

    def look(self) -> None:
        """Remembers the processes below the kernel."""
        self._seen |= {*psutil.Process(self._client.km.provisioner.pid).children(recursive=True)}

    def left(self) -> list[str]:
        """What tuning has left: processes that were seen and still run, and temporary folders."""
        deadline = time.monotonic() + 10 * slowness()
        _, alive = psutil.wait_procs([*self._seen], timeout=10 * slowness())
        while (folders := [path.name for path in self.temporary.glob("autotune-*")]) and time.monotonic() < deadline:
            time.sleep(0.1)
        return [*map(str, alive), *folders]

    async def _run(self, source: str) -> list[dict[str, Any]]:
        notebook = self._client.nb
        notebook.cells.append(nbformat.v4.new_code_cell(source))
        place = len(notebook.cells) - 1
        return list((await self._client.async_execute_cell(notebook.cells[place], place)).outputs)


def texts(outputs: list[dict[str, Any]]) -> str:
    """All text that cells have shown."""
    parts = [str(output.get("text", "")) + "".join(output.get("traceback", ())) for output in outputs]
    parts += [str(output["data"].get("text/plain", "")) for output in outputs if "data" in output]
    return "\n".join(parts)
