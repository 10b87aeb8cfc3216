"""In the Landlock row: what Python writes outside the scratch folder goes to a mirror of the file system in it.

Landlock refuses such writes. Checkpoints, logs and folders are common, so Python's own functions write them to the
mirror, and read there first. What is simple is done: a file that is changed in place is copied once, a folder that is
listed shows both; what exists outside cannot be removed or renamed, which the kernel refuses.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from typing import Any

_READING = ("stat", "lstat", "access", "readlink", "chdir", "getxattr", "listxattr", "statvfs", "pathconf")
_CHANGING = ("remove", "unlink", "rmdir", "chmod", "lchmod", "chown", "lchown", "utime", "setxattr", "removexattr")
"""Functions of `os` on something that exists: in the mirror if it is there, else the kernel refuses."""
_MAKING = ("mkdir", "mkfifo", "mknod")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_state: list[Mirror] = []


def begin(layer: str, allowed: list[str]) -> None:
    """From here on Python writes to a mirror.

    Args:
        layer: Its folder.
        allowed: Folders that can be written to as they are.
    """
    _state[:] = [Mirror(layer, allowed)]
    _wrap_os()
    io.open = builtins.open = _opened(io.open)


def move_to(layer: str) -> None:
    """This process, forked for a job, uses a mirror of its own from here on."""
    if _state:
        _state[0].layer = layer


def for_writing(path: Any) -> Any:
    """Where a library writes a new file that would write it here."""
    return _state[0].written(path) if _state else path


def for_reading(path: Any) -> Any:
    """Where a library finds a file that it looks for here."""
    return _state[0].found(path) if _state else path


class Mirror:
    """Where paths lead.

    Args:
        layer: The folder that mirrors ``/``.
        allowed: Folders that are written to as they are.
    """

    def __init__(self, layer: str, allowed: list[str]) -> None:
        self.layer = layer
        self._allowed = tuple(os.path.join(place, "") for place in allowed)
        self._asking = threading.local()  # what this class itself asks of `os` is not redirected

    def found(self, path: Any) -> Any:
        """The path in the mirror, where something is there."""
        with self._resolved(path) as inside:
            return path if inside is None or not os.path.lexists(inside) else inside

    def written(self, path: Any, *, keeps: bool = False) -> Any:
        """The path in the mirror, where something can be written.

        Args:
            path: As the script gave it.
            keeps: Whether what the file holds matters: it is copied.
        """
        with self._resolved(path) as inside:
            if inside is None:
                return path
            if os.path.lexists(inside):
                _unlink_others(inside)
                return inside
            folder = os.path.dirname(inside)
            if not os.path.isdir(folder):
                if not os.path.isdir(folder.removeprefix(self.layer)):
                    return path  # the kernel says that the folder is missing
                os.makedirs(folder)
            if keeps and os.path.isfile(path):
                shutil.copy2(path, inside)
            return inside

    def made(self, path: Any) -> Any:
        """The path in the mirror for something new; what exists outside is met there, so that making it fails."""
        with self._resolved(path) as inside:
            exists = inside is not None and os.path.lexists(path)
        return path if exists else self.written(path)

    @contextlib.contextmanager
    def _resolved(self, path: Any) -> Iterator[str | None]:
        """The path in the mirror; None where the path itself is used, and while this is open."""
        if getattr(self._asking, "now", False) or not isinstance(path, (str, bytes, os.PathLike)):
            yield None
            return
        self._asking.now = True
        try:
            full = os.path.abspath(os.fsdecode(path))
            full = os.path.join(os.path.realpath(os.path.dirname(full)), os.path.basename(full))
            yield None if os.path.join(full, "").startswith(self._allowed) else self.layer + full
        finally:
            self._asking.now = False


def _unlink_others(path: str) -> None:
    """Has a file be its layer's own, before it is written to: what start-up made is linked into each layer."""
    if os.path.isfile(path) and not os.path.islink(path) and os.stat(path).st_nlink > 1:
        shutil.copy2(path, f"{path}.own")
        os.replace(f"{path}.own", path)


def _wrap_os() -> None:
    for name in (*_READING, *_CHANGING):
        _replace(name, for_reading)
    for name in _MAKING:
        _replace(name, _state[0].made)
    _replace("truncate", lambda path: _state[0].written(path, keeps=True))
    _wrap_pair("rename", takes_away=True)
    _wrap_pair("replace", takes_away=True)
    _wrap_pair("link", takes_away=False)
    own_symlink, own_open, own_listdir, own_scandir = os.symlink, os.open, os.listdir, os.scandir

    @functools.wraps(own_symlink)
    def symlink(source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        if os.path.isabs(os.fsdecode(source)):
            source = _state[0].found(source)
        own_symlink(source, target if "dir_fd" in kwargs else _state[0].made(target), *args, **kwargs)

    @functools.wraps(own_open)
    def opened(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if kwargs.get("dir_fd") is None:
            writes = flags & _WRITING
            keeps = not (flags & os.O_TRUNC and flags & os.O_CREAT)
            path = _state[0].written(path, keeps=keeps) if writes else _state[0].found(path)
        return own_open(path, flags, *args, **kwargs)

    @functools.wraps(own_listdir)
    def listdir(path: Any = ".") -> list[Any]:
        inside = _state[0].found(path)
        names = own_listdir(inside)
        with contextlib.suppress(OSError):
            names += [name for name in own_listdir(path) if name not in names] if inside is not path else []
        return names

    @functools.wraps(own_scandir)
    def scandir(path: Any = ".") -> Any:
        inside = _state[0].found(path)
        return own_scandir(inside) if inside is path else _Both(inside, path, own_scandir)

    os.symlink, os.open, os.listdir, os.scandir = symlink, opened, listdir, scandir  # type: ignore[assignment]


def _replace(name: str, leads: Callable[[Any], Any]) -> None:
    """Has a function of `os` take another path as its first argument."""
    original = getattr(os, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def replaced(path: Any, *args: Any, **kwargs: Any) -> Any:
        return original(path if kwargs.get("dir_fd") is not None else leads(path), *args, **kwargs)

    setattr(os, name, replaced)


def _wrap_pair(name: str, *, takes_away: bool) -> None:
    original = getattr(os, name)

    @functools.wraps(original)
    def replaced(source: Any, target: Any, **kwargs: Any) -> None:
        if kwargs.get("src_dir_fd") is not None or kwargs.get("dst_dir_fd") is not None:
            original(source, target, **kwargs)
            return
        source = _state[0].found(source) if takes_away else _state[0].written(source, keeps=True)
        original(source, _state[0].written(target), **kwargs)

    setattr(os, name, replaced)


def _opened(original: Any) -> Any:
    @functools.wraps(original)
    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("opener") is None and isinstance(mode, str):
            if "x" in mode:
                file = _state[0].made(file)
            elif writes(mode):
                file = _state[0].written(file, keeps="w" not in mode)
            else:
                file = _state[0].found(file)
        return original(file, mode, *args, **kwargs)

    return opened


def writes(mode: str) -> bool:
    """Whether a file that is opened so may be written to."""
    return any(letter in mode for letter in "wax+")


class _Both:
    """What a folder holds in the mirror, and then outside."""

    def __init__(self, inside: Any, outside: Any, scan: Callable[..., Any]) -> None:
        self._entries = self._all(inside, outside, scan)

    def _all(self, inside: Any, outside: Any, scan: Callable[..., Any]) -> Iterator[Any]:
        names = set()
        with scan(inside) as entries:
            for entry in entries:
                names.add(entry.name)
                yield entry
        with contextlib.suppress(OSError), scan(outside) as entries:
            yield from (entry for entry in entries if entry.name not in names)

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Both:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """As of `os.scandir`."""
        self._entries.close()  # type: ignore[attr-defined]
