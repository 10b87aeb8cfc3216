"""In the Landlock row: redirects Python's writes outside the scratch folder to a mirror of the file system in it.

Landlock refuses such writes. Checkpoints, logs and folders are common, so Python's own functions write them to the
mirror, and read there first. Only simple cases work: a file that is changed in place is copied once, and listing a
folder shows both places. Existing outside files cannot be removed or renamed: the kernel refuses it.
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
"""Functions of `os` that change an existing file. They work on files in the mirror; the kernel refuses others."""
_MAKING = ("mkdir", "mkfifo", "mknod")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_state: list[Mirror] = []


def begin(layer: str, allowed: list[str]) -> None:
    """Makes Python write to a mirror from here on.

    Args:
        layer: The mirror's folder.
        allowed: Folders that can be written to directly.
    """
    _state[:] = [Mirror(layer, allowed)]
    _wrap_os()
    io.open = builtins.open = _opened(io.open)


def move_to(layer: str) -> None:
    """Switches this process, which was forked for a job, to its own mirror."""
    if _state:
        _state[0].layer = layer


def for_writing(path: Any) -> Any:
    """The path at which a library should write a new file."""
    return _state[0].for_writing(path) if _state else path


def for_reading(path: Any) -> Any:
    """The path at which a library should read a file."""
    return _state[0].for_reading(path) if _state else path


class Mirror:
    """Maps paths to the mirror."""

    def __init__(self, layer: str, allowed: list[str]) -> None:
        self.layer = layer
        self._allowed = tuple(os.path.join(place, "") for place in allowed)
        self._asking = threading.local()  # this class's own calls of `os` are not redirected

    def for_reading(self, path: Any) -> Any:
        """The path in the mirror if it exists there, else the path itself."""
        with self._resolved(path) as inside:
            return path if inside is None or not os.path.lexists(inside) else inside

    def for_writing(self, path: Any, *, keeps: bool = False) -> Any:
        """The path in the mirror for writing.

        Args:
            path: The script's path.
            keeps: Whether the file's contents matter, so that they are copied.
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
                    return path  # the kernel reports that the folder is missing
                os.makedirs(folder, exist_ok=True)
            if keeps and os.path.isfile(path):
                _copy(path, inside)
            return inside

    def for_making(self, path: Any) -> Any:
        """The path in the mirror for a new file; the path itself if it exists outside, so that making it fails."""
        with self._resolved(path) as inside:
            exists = inside is not None and os.path.lexists(path)
        return path if exists else self.for_writing(path)

    @contextlib.contextmanager
    def _resolved(self, path: Any) -> Iterator[str | None]:
        """Yields the path in the mirror; None to use the path itself, and within nested calls."""
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
    """Replaces a file by its own copy before a write: files that start-up made are linked into each layer."""
    if os.path.isfile(path) and not os.path.islink(path) and os.stat(path).st_nlink > 1:
        _copy(path, path)


def _copy(source: Any, target: str) -> None:
    """Copies a file whole or, where the disk is full, not at all: a part would be read as the whole one later."""
    own = f"{target}.{os.getpid()}-{threading.get_native_id()}"  # others may copy it at once, as workers do
    try:
        shutil.copy2(source, own)
        os.replace(own, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(own)
        raise


def _wrap_os() -> None:
    for name in (*_READING, *_CHANGING):
        _replace(name, for_reading)
    for name in _MAKING:
        _replace(name, _state[0].for_making)
    _replace("truncate", lambda path: _state[0].for_writing(path, keeps=True))
    _wrap_pair("rename", takes_away=True)
    _wrap_pair("replace", takes_away=True)
    _wrap_pair("link", takes_away=False)
    own_symlink, own_open, own_listdir, own_scandir = os.symlink, os.open, os.listdir, os.scandir

    @functools.wraps(own_symlink)
    def symlink(source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        if os.path.isabs(os.fsdecode(source)):
            source = _state[0].for_reading(source)
        own_symlink(source, target if "dir_fd" in kwargs else _state[0].for_making(target), *args, **kwargs)

    @functools.wraps(own_open)
    def opened(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if kwargs.get("dir_fd") is None:
            writes = flags & _WRITING
            keeps = not (flags & os.O_TRUNC and flags & os.O_CREAT)
            path = _state[0].for_writing(path, keeps=keeps) if writes else _state[0].for_reading(path)
        return own_open(path, flags, *args, **kwargs)

    @functools.wraps(own_listdir)
    def listdir(path: Any = ".") -> list[Any]:
        inside = _state[0].for_reading(path)
        names = own_listdir(inside)
        with contextlib.suppress(OSError):
            names += [name for name in own_listdir(path) if name not in names] if inside is not path else []
        return names

    @functools.wraps(own_scandir)
    def scandir(path: Any = ".") -> Any:
        inside = _state[0].for_reading(path)
        return own_scandir(inside) if inside is path else _Both(inside, path, own_scandir)

    os.symlink, os.open, os.listdir, os.scandir = symlink, opened, listdir, scandir  # type: ignore[assignment]


def _replace(name: str, leads: Callable[[Any], Any]) -> None:
    """Makes a function of `os` take another path as its first argument."""
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
        source = _state[0].for_reading(source) if takes_away else _state[0].for_writing(source, keeps=True)
        original(source, _state[0].for_writing(target), **kwargs)

    setattr(os, name, replaced)


def _opened(original: Any) -> Any:
    @functools.wraps(original)
    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("opener") is None and isinstance(mode, str):
            if "x" in mode:
                file = _state[0].for_making(file)
            elif writes(mode):
                file = _state[0].for_writing(file, keeps="w" not in mode)
            else:
                file = _state[0].for_reading(file)
        return original(file, mode, *args, **kwargs)

    return opened


def writes(mode: str) -> bool:
    """Whether a mode of ``open`` allows writing."""
    return any(letter in mode for letter in "wax+")


class _Both:
    """Iterates over a folder's entries in the mirror, then over those outside."""

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
        """Does the same as in `os.scandir`."""
        self._entries.close()  # type: ignore[attr-defined]
