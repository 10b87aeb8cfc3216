"""`autotune.tune`: the command's tuning, called from a notebook or a script."""

from __future__ import annotations

import difflib
import inspect
import os
import random
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autotune.bursts.hosts.cleanup import RUN_VARIABLE
from autotune.errors import AutotuneError, Interrupted, TargetError, UsageError
from autotune.secrets import remember_secrets
from autotune.sessions.options import FOR_SCRIPTS, OFFERED, Options, default_of

if TYPE_CHECKING:
    from autotune.report.saved import SavedResult

OPTIONS = {name: field for name, field in OFFERED.items() if name not in FOR_SCRIPTS}
"""The options of ``autotune --model``; the target replaces ``--model``."""


def tune(target: str | Callable[..., Any], *, quiet: bool | None = None, **options: Any) -> SavedResult:
    """Tunes a model, as ``autotune --model`` does, saves the result and returns it.

    Ctrl-C, or a notebook's "interrupt", ends it early: the measurements so far are saved and returned. A second
    interrupt, or one before anything was measured, raises KeyboardInterrupt at once.

    Args:
        target: ``"train:build"``, ``"folder/train.py:build"``, or the function itself, wherever it is defined: in a
            notebook's cell, in the running script, inside another function. A function is sent to the bursts with
            everything that it uses.
        quiet: Whether to hide progress. None shows it in a notebook and at a prompt, but not in a script.
        options: The command's options, with ``_`` for ``-``, as texts or as Python values: ``budget=600``,
            ``only=["num_workers", "precision"]``, ``pin={"batch_size": 64}``, ``explore={"max_len": [256, 384]}``,
            ``resume=True``.

    Returns:
        The result, with ``path``, its file, for `autotune.load`, and ``page``, its report. A notebook shows it as the
        report's first screen.

    Raises:
        AutotuneError: As the command reports it: UsageError, WorkloadError, NothingFeasibleError, IsolationError.
        TypeError: There is no such option.
        KeyboardInterrupt: Interrupted twice, or before anything was measured.
    """
    remember_secrets(sys.argv, os.environ)
    for name in options:
        if name not in OFFERED:
            near = difflib.get_close_matches(name, OPTIONS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(OPTIONS)}"
            raise TypeError(f"there is no option {name!r}; {hint}")
    if os.environ.get(RUN_VARIABLE):
        raise UsageError(
            "autotune.tune was called where autotune itself runs this code, which would never end; "
            'put the call under `if __name__ == "__main__":`'
        )
    if not (callable(target) or isinstance(target, str)):
        raise TargetError(f"expected a function or a text such as 'train:build', got {target!r:.60}; pass one of them")

    state = random.getstate()
    import rich.style  # noqa: F401 - it draws a random number

    random.setstate(state)  # a script that seeds, tunes and shuffles gets its own order
    from autotune.report.saved import SavedResult
    from autotune.search.interrupts import CallInterrupts
    from autotune.search.stopping import Budget
    from autotune.sessions.tuning import tune_and_save
    from autotune.terminal.console import make_console
    from autotune.terminal.progress import make_progress
    from autotune.workload.by_value import Sent

    sent = None if isinstance(target, str) else Sent.of(target)
    parsed = Options.parse(options, target=sent.target if sent else str(target), sent=sent)
    budget = Budget(parsed.budget_seconds)
    silent = not _at_prompt() if quiet is None else quiet
    progress = make_progress(make_console(), quiet=silent, objective=parsed.goal, seconds=budget.remaining)
    with CallInterrupts() as interrupts:
        try:
            saved = tune_and_save(parsed, progress, budget, interrupts)
        except Interrupted as interrupted:
            raise KeyboardInterrupt(str(interrupted)) from None
        except AutotuneError as error:
            if (trace := getattr(error, "trace", None)) is not None and hasattr(error, "add_note"):  # Python 3.11
                error.add_note(f"In the burst:\n{trace}")
            raise
        with interrupts.held():
            page, why_none = saved.write_page()
    for problem in (saved.failure, why_none):
        if problem is not None:  # the result is returned all the same
            warnings.warn(str(problem), stacklevel=2)
    return SavedResult.of(saved.result, saved.path, page)


def _at_prompt() -> bool:
    """Whether the session is interactive: a notebook, IPython, or Python's own prompt."""
    get_ipython: Callable[[], Any] = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    return get_ipython() is not None or hasattr(sys, "ps1")


def _signature() -> inspect.Signature:
    """The signature of `tune` with the command's options in place of ``**options``, for editors and help."""
    own = inspect.signature(tune)
    fixed = [parameter for parameter in own.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    keyword = inspect.Parameter.KEYWORD_ONLY
    named = [inspect.Parameter(name, keyword, default=default_of(field)) for name, field in OPTIONS.items()]
    return own.replace(parameters=[*fixed, *named])


tune.__signature__ = _signature()  # type: ignore[attr-defined]
