"""Watches over a script that is looked at: what it tells of its training, or why nothing is seen of it."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from autotune.bursts.child import Child
from autotune.bursts.cleanup import descendants
from autotune.errors import Interrupted, WorkloadError
from autotune.recorder.arrival import CAME
from autotune.sandbox.inside import KEPT
from autotune.sandbox.protection import Protection
from autotune.scripts.facts import why_not
from autotune.scripts.script import Script
from autotune.scripts.seen import SeenScript

OTHERS_SECONDS = 3.0
"""Within which other processes of a script that were started with the one that trains would train too. Chosen."""
CLOSED = (
    "(it was started with -I, -E or -S, with PYTHONPATH set anew, or in a cleared environment); have it inherit "
    "PYTHONPATH, as in PYTHONPATH=/mine:$PYTHONPATH"
)
"""Why the recorder is not in a process, and what to do."""
GLANCE_SECONDS = 0.1
"""Between two glances at its processes. Importing torch takes a second or more; nothing can have trained before."""


@dataclass
class Told:
    """What was told so far.

    Attributes:
        ended: By each interpreter of the script that ended.
        imported: Whether torch was imported where the recorder was.
        steps: Of an optimizer, by each process that trains.
        result: What was seen, whole.
    """

    ended: list[dict[str, Any]] = field(default_factory=list)
    imported: bool = False
    steps: dict[int, int] = field(default_factory=dict)
    result: dict[str, Any] | None = None


def watch(child: Child, seconds: float, script: Script, protection: Protection, name: str) -> SeenScript:
    """What a look at a script tells.

    Args:
        child: The script, with the recorder looking on.
        seconds: To wait for.
        script: The command.
        protection: The sandbox that it is in; it keeps what start-up has made when training begins.
        name: Of its layer there.

    Raises:
        WorkloadError: Nothing was seen, with the reason.
        Interrupted: The child was woken.
    """
    deadline, told = time.monotonic() + seconds, Told()
    while True:
        event = child.next_event(min(deadline, time.monotonic() + GLANCE_SECONDS))
        if event is None and time.monotonic() < deadline:
            _require_watched(child, script, protection.shared)
            continue
        if event is None or event["event"] == "end":
            break
        if event["event"] == "woken":
            raise Interrupted
        if event["event"] == "imported":
            told.imported = True
        if event["event"] == "reads":
            protection.note_reading(event["host"])
        if event["event"] == "begins" and not (kept := protection.shared / KEPT).exists():
            protection.keep_start(name)
            kept.touch()
        if event["event"] == "training":
            told.steps[event["pid"]] = event["steps"]
        if event["event"] == "result" and told.result is None:
            told.result = dict(event["value"])
            are_awaited = told.result["beside"] or len(told.steps) < told.result["ranks"]
            deadline = time.monotonic() + (OTHERS_SECONDS if are_awaited else 0.0)
        if event["event"] == "ended":
            told.ended.append(event)
    result = told.result or next((one["seen"] for one in told.ended if one["seen"] is not None), None)
    if result is not None:
        return SeenScript.of(result, processes=max(1, len(told.steps)))
    if event is None:
        raise WorkloadError(_why_waited_in_vain(told, script, seconds))
    raise why_not(told.ended, child.stderr_tail(), script, child.exit_status())


def _why_waited_in_vain(told: Told, script: Script, seconds: float) -> str:
    """Of a script that goes on."""
    if steps := max(told.steps.values(), default=0):
        return (
            f"{script.name}: it took {steps} optimizer step{'s' if steps > 1 else ''} within {seconds:.0f} s, too few "
            "to measure; give a longer --budget, or have a step hold less (a smaller model or batch, fewer "
            "micro-batches)"
        )
    if not told.imported:
        return (
            f"{script.name}: it did not import torch within {seconds:.0f} s; give a longer --budget if it takes that "
            "long, or name the command that trains"
        )
    return (
        f"{script.name}: no optimizer of torch stepped within {seconds:.0f} s; give a longer --budget if it takes "
        "that long to begin training, or write a build() for it, as the README shows"
    )


def _require_watched(child: Child, script: Script, shared: Path) -> None:
    """Refuses a script that loads torch where the recorder is not: it would train for real, and write for real.

    Raises:
        WorkloadError: It does.
    """
    for root in child.roots:
        for process in [root, *descendants(root)]:
            with contextlib.suppress(psutil.Error, OSError):
                if trains_unseen(process, shared):
                    raise WorkloadError(
                        f"{script.name}: '{words_of(process)}' loads torch where the recorder is not {CLOSED}"
                    )


def words_of(process: psutil.Process) -> str:
    """The command of a process, shortened."""
    return " ".join(process.cmdline())[:200]


def trains_unseen(process: psutil.Process, shared: Path) -> bool:
    """Whether a process has torch, and neither it nor one with torch above it has the recorder.

    What a script starts that is watched is its own affair: torch's compiler starts helpers with a path of their own.
    """
    if came_into(process, shared) or not _has_torch(process):
        return False
    return not any(came_into(above, shared) and _has_torch(above) for above in process.parents())


def came_into(process: psutil.Process, shared: Path) -> bool:
    """Whether the recorder came into a process."""
    return (shared / CAME.format(process.pid)).exists()


def _has_torch(process: psutil.Process) -> bool:
    return "libtorch_python" in Path(f"/proc/{process.pid}/maps").read_text(errors="replace")
