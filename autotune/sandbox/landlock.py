"""Landlock: this process and its descendants may change files only below a few folders.

The kernel's interface: https://docs.kernel.org/userspace-api/landlock.html. It covers the contents and names of files;
`calls` covers modes, owners, times and extended attributes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Sequence

from .system import check_status, libc

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_PR_SET_NO_NEW_PRIVS = 38
_WRITE_FILE, _REFER, _TRUNCATE = 1 << 1, 1 << 13, 1 << 14
_NAMES = sum(1 << bit for bit in range(4, 13))
"""Rights to remove and make files, folders, links, sockets, pipes and devices."""


def version() -> int:
    """The version of Landlock that the kernel offers; 0 for none."""
    return max(0, int(libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))))


def restrict(writable: Sequence[str]) -> None:
    """Restricts writing, making, removing, renaming and truncating to files below these paths.

    Raises:
        OSError: The kernel refuses.
    """
    handled = _WRITE_FILE | _NAMES
    offered = version()
    if offered >= 2:
        handled |= _REFER
    if offered >= 3:
        handled |= _TRUNCATE
    ruleset = _call(_CREATE_RULESET, struct.pack("Q", handled), ctypes.c_size_t(8), ctypes.c_uint32(0))
    try:
        for path in writable:
            _allow(ruleset, path, handled)
        no_new_privileges()
        _call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def no_new_privileges() -> None:
    """Disables setuid, as the kernel requires before a non-root process restricts itself."""
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _allow(ruleset: int, path: str, rights: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            own = rights if os.path.isdir(path) else rights & (_WRITE_FILE | _TRUNCATE)
            rule = struct.pack("=Qi", own, folder)
            _call(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), rule, ctypes.c_uint32(0))
        finally:
            os.close(folder)


def _call(number: int, *arguments: object) -> int:
    return check_status(libc.syscall(number, *arguments), "Landlock")
