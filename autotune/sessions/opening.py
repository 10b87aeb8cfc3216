"""Opens a workload: imports a target, or looks at a script. Signals end the running burst."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

from autotune.bursts.hosts.isolation import Isolation
from autotune.hardware import pin_gpu
from autotune.measuring import Progress
from autotune.scripts import Script, ScriptIsolation
from autotune.search.interrupts import Stop
from autotune.search.stopping import Budget
from autotune.workload.by_value import Sent
from autotune.workload.target import require_target

_VISIBLE = "CUDA_VISIBLE_DEVICES"


@contextlib.contextmanager
def opened(
    target: str | Script | Sent,
    budget: Budget,
    progress: Progress,
    interrupts: Stop | None,
    note: Callable[[str], None],
    *,
    on_gpu: bool = True,
) -> Iterator[Isolation]:
    """The isolation that runs bursts of a target or a script.

    The start may take a share of the budget. `interrupts` end the running burst. A workload that may train on a GPU
    gets the freest one. `note` receives sentences for the user.

    Raises:
        TargetError, WorkloadError: It cannot be imported, or does not train.
        Interrupted: Asked to end.
    """
    with contextlib.ExitStack() as stack:
        if on_gpu:
            stack.enter_context(_one_gpu(note))
        isolation = stack.enter_context(
            ScriptIsolation(target, note) if isinstance(target, Script) else _isolation(target, note)
        )
        if interrupts is not None:
            interrupts.pass_on_to(isolation.interrupt)
        progress.stage("looking at the script" if isinstance(target, Script) else "importing")
        isolation.start(budget.preparing_seconds)
        yield isolation


def _isolation(target: str | Sent, note: Callable[[str], None]) -> Isolation:
    if isinstance(target, Sent):
        return Isolation(sent=target, note=note)
    require_target(target)
    return Isolation(target, note)


@contextlib.contextmanager
def _one_gpu(note: Callable[[str], None]) -> Iterator[None]:
    """Hides all GPUs but one from processes; on exit, a process that continues, such as a notebook, sees all again."""
    before = os.environ.get(_VISIBLE)
    if (chosen := pin_gpu()) is not None:
        note(chosen)
    try:
        yield
    finally:
        if chosen is not None:
            os.environ.pop(_VISIBLE)
            os.environ |= {_VISIBLE: before} if before is not None else {}
