"""Opens what is to be trained: a target is imported, a script is looked at; signals end the burst that runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from autotune.bursts.isolation import Isolation
from autotune.hardware import pin_gpu
from autotune.scripts import Script, ScriptIsolation
from autotune.search.interrupts import Interrupts
from autotune.search.progress import Progress
from autotune.search.stopping import Budget


@contextlib.contextmanager
def opened(
    target: str | Script,
    budget: Budget,
    progress: Progress,
    interrupts: Interrupts | None,
    note: Callable[[str], None],
    *,
    on_gpu: bool = True,
) -> Iterator[Isolation]:
    """Where bursts of a target or a script come from.

    Args:
        target: What trains.
        budget: A share of it is for the start.
        progress: Who is told.
        interrupts: The signals that end the burst that runs.
        note: Told what a person should know.
        on_gpu: Whether a GPU may be trained on: then the freest one is chosen.

    Raises:
        TargetError, WorkloadError: It cannot be imported, or does not train.
        Interrupted: Asked to end.
    """
    if on_gpu and (chosen := pin_gpu()) is not None:
        note(chosen)
    script = target if isinstance(target, Script) else None
    with ScriptIsolation(script, note) if script is not None else Isolation(str(target), note) as isolation:
        if interrupts is not None:
            interrupts.pass_on_to(isolation.interrupt)
        progress.stage("importing" if script is None else "looking at the script")
        isolation.start(budget.preparing)
        yield isolation
