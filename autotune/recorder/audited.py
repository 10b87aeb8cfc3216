"""Which functions of Python's change files, and how the journal hears of each before it does.

By Python's audit events; what raises none is wrapped, and raises one of ours.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .journal import Journal

_MAKING = "autotune.making"
"""The event of functions that make a name and raise none: its path, and the descriptor of the folder or -1."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def writes(mode: str) -> bool:
    """Whether a file that is opened so may be written to."""
    return any(letter in mode for letter in "wax+")


def _opened(journal: Journal, arguments: tuple[Any, ...]) -> None:
    path, mode, flags = (*arguments, None, None, None)[:3]
    if isinstance(mode, str):
        if writes(mode):
            journal.written(path, appends="a" in mode)
    elif (flags or 0) & _WRITING:
        journal.written(path, appends=bool(flags & os.O_APPEND))


def _connected(journal: Journal, arguments: tuple[Any, ...]) -> None:
    """SQLite writes below Python, and into two files beside the database."""
    path = os.fsdecode(arguments[0]) if isinstance(arguments[0], (str, bytes, os.PathLike)) else ":"
    if path and not path.startswith((":", "file:")):
        for ending in ("", "-journal", "-wal", "-shm"):
            journal.written(path + ending)


def _bound(journal: Journal, arguments: tuple[Any, ...]) -> None:
    """A Unix socket is a file, unless Linux keeps its name apart; addresses of other sockets are no paths.

    One that a start of this run has left, which was killed and could not remove it, is in nobody's way.
    """
    bound, address = arguments
    if isinstance(address, (str, bytes)) and address and not os.fsencode(address).startswith(b"\0"):
        if journal.is_of_another(address) and _is_dead(address, bound.type):
            os.remove(address)
        journal.made(address)


def _is_dead(address: str | bytes, kind: int) -> bool:
    """Whether there is a socket at which nobody listens any more."""
    import socket

    with socket.socket(socket.AF_UNIX, kind) as asking:
        asking.setblocking(False)
        try:
            asking.connect(address)
        except ConnectionRefusedError:
            return stat.S_ISSOCK(os.stat(address).st_mode)
        except OSError:  # somebody has no time, or it is of another kind
            return False
    return False


NOTED: dict[str, Callable[[Journal, tuple[Any, ...]], None]] = {
    "open": _opened,
    "os.remove": lambda journal, arguments: journal.unlinked(*arguments[:2]),
    "os.rename": lambda journal, arguments: journal.renamed(*arguments[:4]),
    "os.truncate": lambda journal, arguments: journal.written(arguments[0]),
    "os.mkdir": lambda journal, arguments: journal.made(arguments[0], *arguments[2:3]),
    "os.rmdir": lambda journal, arguments: journal.folder_removed(*arguments[:2]),
    "os.link": lambda journal, arguments: journal.linked(*arguments[:4]),
    "os.symlink": lambda journal, arguments: journal.pointed(arguments[1], *arguments[2:3]),
    "os.chmod": lambda journal, arguments: journal.restated(arguments[0], *arguments[2:3]),
    "os.chown": lambda journal, arguments: journal.restated(arguments[0], *arguments[3:4]),
    "os.utime": lambda journal, arguments: journal.restated(arguments[0], *arguments[3:4]),
    "socket.bind": _bound,
    "sqlite3.connect": _connected,
    _MAKING: lambda journal, arguments: journal.made(*arguments),
}
"""Python's audit events, by https://docs.python.org/3/library/audit_events.html."""


def wrap_makers(journal: Journal) -> None:
    """Has a pipe or a device that is made be heard of, and lets two bursts that live side by side make the same pipe.

    Or the same folder: each as if it were the first.
    """
    _wrap("mkdir", journal, stat.S_ISDIR, is_heard=True)  # also what os.makedirs and pathlib call
    _wrap("mkfifo", journal, stat.S_ISFIFO)
    _wrap("mknod", journal, stat.S_ISFIFO)


def _wrap(name: str, journal: Journal, is_alike: Callable[[int], bool], *, is_heard: bool = False) -> None:
    original = getattr(os, name, None)
    if original is None:  # on Windows
        return

    @functools.wraps(original)
    def make(path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> None:
        folder = -1 if dir_fd is None else dir_fd
        if not is_heard:
            sys.audit(_MAKING, path, folder)
        try:
            original(path, *args, dir_fd=dir_fd, **kwargs)
        except FileExistsError:
            if not (is_alike(_mode_of(path, dir_fd)) and journal.is_of_another(path, folder)):
                raise

    setattr(os, name, make)


def _mode_of(path: Any, folder: int | None) -> int:
    with contextlib.suppress(OSError):  # a link that leads nowhere
        return os.stat(path, dir_fd=folder).st_mode
    return 0
