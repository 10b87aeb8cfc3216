"""Words errors of the user's code in one sentence, with the user's own frames; and values in messages."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

from autotune.errors import WorkloadError

_OWN_FOLDER = str(Path(__file__).parents[1]) + os.sep
_PYTHON_FOLDER = str(Path(os.__file__).parent) + os.sep
_INSTALLED = {"site-packages", "dist-packages"}


def wrap_user_error(error: BaseException, what: str, remedy: str = "fix it and run again") -> WorkloadError:
    """A WorkloadError that says what failed, with the user's own frames where their code raised."""
    lines = traceback.format_exception_only(type(error), error)
    # A SyntaxError's lines end with its text; any other's begin with it, and notes follow.
    summary = " ".join((lines[-1] if isinstance(error, SyntaxError) else lines[0]).split())
    if len(summary) > 500:
        summary = f"{summary[:500]}…"
    return WorkloadError(f"{what}: {summary}; {remedy}", trace=user_trace(error))


def user_trace(error: BaseException) -> str | None:
    """The traceback cut to the user's own frames; None when none of their code was running.

    It leaves out frames of Python, torch and autotune, and those of other installed packages unless no others remain.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_OWN_FOLDER, "<frozen", "<string"))
    ]
    outside = [frame for frame in frames if not _is_python_or_torch(frame.filename)]
    own = [frame for frame in outside if not _INSTALLED & set(Path(frame.filename).parts)] or outside
    if not own and not isinstance(error, SyntaxError):
        return None
    lines = [*traceback.format_list(own), *traceback.format_exception_only(type(error), error)]
    return "".join(lines).rstrip()[-8000:]


def _is_python_or_torch(filename: str) -> bool:
    installed = bool(_INSTALLED & set(Path(filename).parts))
    return (installed and "torch" in Path(filename).parts) or (not installed and filename.startswith(_PYTHON_FOLDER))


def described(value: object) -> str:
    """A value in words: ``None``, ``the class Net``, ``a tuple of 2``, ``an int``."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
