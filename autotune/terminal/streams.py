"""A console that survives its terminal: closing a window must not end a tuning of hours."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from rich.console import Console


def lasting(console: Console) -> Console:
    """The same console, made to drop what it can no longer write (a closed terminal or pipe)."""
    if not isinstance(console.file, _LastingStream):
        console.file = cast("IO[str]", _LastingStream(console.file))
    return console


def abandon(stream: IO[str]) -> None:
    """Redirects a stream to the null device: its buffered text would otherwise fail at exit, with status 120."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor buffers nothing
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class _LastingStream:
    """A text stream that drops what cannot be written.

    The stream itself is guarded, rather than each print, since rich also writes from its own thread, and turns a broken
    pipe into SystemExit.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, action: Callable[[], object]) -> None:
        try:
            action()
        except BlockingIOError:  # full for the moment
            pass
        except OSError:
            abandon(self._stream)
        except ValueError:  # Python raises it for a stream that was closed meanwhile
            if not self._stream.closed:
                raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
