"""Watches a script during a look: what its training is like, or why nothing of it was seen."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from autotune.bursts.hosts.child import Child
from autotune.bursts.hosts.cleanup import descendants
from autotune.errors import Interrupted, WorkloadError
from autotune.recorder.arrival import CAME
from autotune.sandbox.inside import KEPT
from autotune.sandbox.protection import Protection
from autotune.scripts.facts import why_not
from autotune.scripts.script import Script
from autotune.scripts.seen import SeenScript

OTHERS_SECONDS = 3.0
"""Time in which other processes that were started with the one that trains would train too. Not tuned."""
CLOSED = (
    "(it was started with -I, -E or -S, with PYTHONPATH set anew, or in a cleared environment); have it inherit "
    "PYTHONPATH, as in PYTHONPATH=/mine:$PYTHONPATH"
)
"""Why the recorder is not in a process, and what to do."""
GLANCE_SECONDS = 0.1
"""Time between two glances at the processes. Importing torch takes a second or more: none can have trained before."""


@dataclass
class Reports:
    """The recorder's reports so far.

    Attributes:
        ended: The last event of each interpreter that has ended.
        imported: Whether a process with the recorder imported torch.
        steps: Optimizer steps of each process that trains, by process id.
        gpus: UUIDs of the GPUs that each rank uses.
        result: All that was seen, once that is complete.
    """

    ended: list[dict[str, Any]] = field(default_factory=list)
    imported: bool = False
    steps: dict[int, int] = field(default_factory=dict)
    gpus: dict[int, list[str]] = field(default_factory=dict)
    result: dict[str, Any] | None = None


def watch(child: Child, seconds: float, script: Script, protection: Protection, name: str) -> SeenScript:
    """Waits for the outcome of a look at a script.

    Args:
        child: The script, with the recorder looking on.
        seconds: The longest time to wait.
        script: The command.
        protection: The sandbox of the script; when training begins, it keeps what the start of the script has written.
        name: The name of its layer there.

    Raises:
        WorkloadError: Nothing was seen, with the reason.
        Interrupted: The child was woken.
    """
    deadline, reports = time.monotonic() + seconds, Reports()
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
            reports.imported = True
        if event["event"] == "reads":
            protection.note_reading(event["host"])
        if event["event"] == "begins" and not (kept := protection.shared / KEPT).exists():
            with protection.storing():
                protection.keep_start(name)
                kept.touch()
        if event["event"] == "training":
            reports.steps[event["pid"]] = event["steps"]
            reports.gpus[event["rank"]] = event["gpus"]
        if event["event"] == "result" and reports.result is None:
            reports.result = dict(event["value"])
            are_awaited = reports.result["beside"] or len(reports.steps) < reports.result["ranks"]
            deadline = time.monotonic() + (OTHERS_SECONDS if are_awaited else 0.0)
        if event["event"] == "ended":
            reports.ended.append(event)
    result = reports.result or next((event["seen"] for event in reports.ended if event["seen"] is not None), None)
    if result is not None:
        gpus = [reports.gpus[rank] for rank in sorted(reports.gpus)] or result["gpus"]
        return SeenScript.of({**result, "gpus": gpus}, processes=max(1, len(reports.steps)))
    if event is None:
        raise WorkloadError(_why_waited_in_vain(reports, script, seconds))
    raise why_not(reports.ended, child.stderr_tail(), script, child.exit_status())


def _why_waited_in_vain(reports: Reports, script: Script, seconds: float) -> str:
    """Why a script that is still running was not seen to train."""
    if steps := max(reports.steps.values(), default=0):
        return (
            f"{script.name}: it took {steps} optimizer step{'s' if steps > 1 else ''} within {seconds:.0f} s, too few "
            "to measure; give a longer --budget, or have a step hold less (a smaller model or batch, fewer "
            "micro-batches)"
        )
    if not reports.imported:
        return (
            f"{script.name}: it did not import torch within {seconds:.0f} s; give a longer --budget if it takes that "
            "long, or name the command that trains"
        )
    return (
        f"{script.name}: no optimizer of torch stepped within {seconds:.0f} s; give a longer --budget if it takes "
        "that long to begin training, or write a build() for it, as the README shows"
    )


def _require_watched(child: Child, script: Script, shared: Path) -> None:
    """Refuses a script that loads torch in a process without the recorder: it would train, and write files, for real.

    Raises:
        WorkloadError: It does.
    """
    for root in child.roots:
        for process in [root, *descendants(root)]:
            with contextlib.suppress(psutil.Error, OSError):
                if trains_unseen(process, shared, root.pid):
                    raise WorkloadError(
                        f"{script.name}: '{words_of(process)}' loads torch where the recorder is not {CLOSED}"
                    )


def words_of(process: psutil.Process) -> str:
    """The command of a process, shortened."""
    return " ".join(process.cmdline())[:200]


def trains_unseen(process: psutil.Process, shared: Path, root: int) -> bool:
    """Whether a process has torch, and neither it nor one with torch above it has the recorder.

    Processes below one that is watched do not count: torch's compiler starts helpers with their own Python path. Nor
    does one that is no longer below the root: the process that started it has ended.
    """
    if came_into(process, shared) or "libtorch_python" not in _memory_of(process):
        return False
    above = process.parents()
    if any(came_into(other, shared) and _ends_or_has_torch(other) for other in above):
        return False
    return root in {process.pid, *(other.pid for other in above)}


def came_into(process: psutil.Process, shared: Path) -> bool:
    """Whether the recorder came into a process."""
    return (shared / CAME.format(process.pid)).exists()


def _ends_or_has_torch(process: psutil.Process) -> bool:
    memory = _memory_of(process)
    return not memory or "libtorch_python" in memory  # a process that ends gives up its memory first


def _memory_of(process: psutil.Process) -> str:
    """What a process has mapped, as the kernel lists it."""
    return Path(f"/proc/{process.pid}/maps").read_text(errors="replace")
