"""Every error that autotune raises on purpose, and the exit status that each one means.

    AutotuneError
    ├── UsageError            exit 2
    │   ├── ConfigError
    │   ├── TargetError
    │   └── ResultFileError
    ├── WorkloadError         exit 1
    ├── NothingFeasibleError  exit 3
    └── IsolationError        exit 1

Each message is one sentence: what was expected, what was found instead, and what to do.
Only the command line turns them into an exit status.
"""

from __future__ import annotations

from autotune.secrets import masked_text


class AutotuneError(Exception):
    """Base of all errors raised on purpose; `exit_status` is the exit status of the command.

    Args:
        message: One sentence with the remedy. It may quote a script, whose secrets are hidden.
    """

    exit_status = 1

    def __init__(self, message: str) -> None:
        super().__init__(masked_text(message))


class UsageError(AutotuneError):
    """The user typed or passed something wrong, and can correct it."""

    exit_status = 2


class ConfigError(UsageError):
    """A configuration holds an unknown knob or a value out of range."""


class TargetError(UsageError):
    """The `module:attr` or `path.py:attr` target cannot be resolved to a callable."""


class ResultFileError(UsageError):
    """A result file is missing, broken, or written by another schema version."""


class WorkloadError(AutotuneError):
    """The user's own code failed, or returned what cannot be trained.

    Args:
        message: One sentence with the remedy.
        trace: The user's own frames of the traceback, when their code raised.
    """

    def __init__(self, message: str, trace: str | None = None) -> None:
        super().__init__(message)
        self.trace = masked_text(trace) if trace is not None else None


class NothingFeasibleError(AutotuneError):
    """No configuration, the baseline included, could be trained on this machine."""

    exit_status = 3


INTERRUPTED_STATUS = 130
"""Exit status of an interrupted command: 128 plus the number of SIGINT, as in shells."""


class Interrupted(BaseException):
    """A user or the system asked the run to end. Not an `Exception`, so that no error handler catches it."""


class IsolationError(AutotuneError):
    """A child process could not be started, or does not answer."""
