"""System calls that the parent decides on: connections, and in the Landlock row changes of modes, owners and times.

A seccomp filter holds each such call until the parent has answered (`supervisor` is the parent's side). It works for
programs in any language, and for running threads and processes. If the parent has ended, such calls fail.
https://docs.kernel.org/userspace-api/seccomp_filter.html#userspace-notification
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from . import landlock
from .system import check_status, libc

_LOAD, _EQUAL, _GREATER, _RETURN = 0x20, 0x15, 0x25, 0x06
_IO_URING_SETUP = 425
"""With io_uring a program could connect and set attributes without separate system calls. Libraries work without it."""
_SET_FLAGS = (0x40086602, 0x40046602, 0x401C5820)
_MISSING = 0x00050000 | errno.ENOSYS
_ALLOW, _ASK, _REFUSE = 0x7FFF0000, 0x7FC00000, 0x00050000 | errno.EACCES
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
"""Offsets in the kernel's record of a call."""
_SET_FILTER, _NEW_LISTENER, _SPECULATE = 1, 1 << 3, 1 << 2
_ADDRESS_SIZES = (16, 24, 28)
"""Sizes of an IPv4 address (the first) and of IPv6 ones; more than 110 bytes is a buffer for any address. Unix sockets,
through which workers hand over tensors, have other sizes. The filter allows them, since an answer takes 50 µs."""
_MOST_OF_UNIX = 110
STEPPED = ("240.0.0.1", 1)
"""A process connects a datagram socket to this reserved address to report that training has begun; nothing is sent. The
filter holds the call, so the parent knows before the script continues."""


class Machine:
    """System call numbers of a processor architecture.

    Args:
        arch: The kernel's number of the architecture.
        stating: Numbers of calls that change a file's state, by name.
    """

    def __init__(self, arch: int, seccomp: int, connect: int, sendto: int, ioctl: int, stating: dict[str, int]) -> None:
        self.arch, self.seccomp, self.connect, self.sendto, self.ioctl = arch, seccomp, connect, sendto, ioctl
        self.stating = stating


MACHINES = {
    "x86_64": Machine(0xC000003E, 317, 42, 44, 16, {
        "truncate": 76, "chmod": 90, "fchmod": 91, "chown": 92, "fchown": 93, "lchown": 94, "utime": 132,
        "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "removexattr": 197, "lremovexattr": 198,
        "fremovexattr": 199, "utimes": 235, "fchownat": 260, "futimesat": 261, "fchmodat": 268, "utimensat": 280,
        "fchmodat2": 452, "setxattrat": 463, "removexattrat": 466, "file_setattr": 469,
    }),
    "aarch64": Machine(0xC00000B7, 277, 203, 206, 29, {
        "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16,
        "truncate": 45, "fchmod": 52, "fchmodat": 53, "fchownat": 54, "fchown": 55, "utimensat": 88, "fchmodat2": 452,
        "setxattrat": 463, "removexattrat": 466, "file_setattr": 469,
    }),
}  # fmt: skip
"""By `os.uname().machine`; numbers from the kernel's tables of system calls."""


def listen(*, with_files: bool) -> int:
    """Installs the filter for this process and its descendants.

    Args:
        with_files: Whether the parent also decides on changes of modes, owners, times and extended attributes.

    Returns:
        The descriptor on which the parent receives the calls.

    Raises:
        OSError: The kernel refuses, or the processor is not in `MACHINES`.
    """
    return _install(_program(_machine(), with_files=with_files, otherwise=_ASK), _NEW_LISTENER)


def refuse_file_states() -> None:
    """Refuses all changes of modes, owners, times and extended attributes, if no parent can decide.

    Raises:
        OSError: See `listen`.
    """
    _install(_program(_machine(), with_files=True, otherwise=_REFUSE, with_network=False), 0)


def _machine() -> Machine:
    machine = MACHINES.get(os.uname().machine)
    if machine is None:
        raise OSError(f"the system calls of {os.uname().machine} are not known")
    return machine


def _install(code: bytes, flags: int) -> int:
    landlock.no_new_privileges()
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    flags |= _SPECULATE  # without it, older kernels slow down all computing
    status = libc.syscall(_machine().seccomp, ctypes.c_uint(_SET_FILTER), ctypes.c_uint(flags), program)
    return check_status(status, "seccomp")


def _program(machine: Machine, *, with_files: bool, otherwise: int, with_network: bool = True) -> bytes:
    """The filter as kernel code, 8 bytes per instruction; `otherwise` is the action for changes of files' state."""
    numbers = [*machine.stating.values()] if with_files else []
    lines: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, machine.arch),
        (_RETURN, 0, 0, _REFUSE if with_files else _ALLOW),  # a program for another kind of processor
        (_LOAD, 0, 0, _NUMBER),
        (_EQUAL, 0, 1, _IO_URING_SETUP),
        (_RETURN, 0, 0, _MISSING),
    ]
    for number in numbers:
        lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, otherwise)]
    if with_files:  # flags of a file, e.g. to make it immutable
        lines += [(_EQUAL, 0, 6, machine.ioctl), (_LOAD, 0, 0, _ARGUMENTS + 8)]
        lines += [(_EQUAL, 3 - place, 0, request) for place, request in enumerate(_SET_FLAGS)]
        lines += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    if not with_network:
        return _assembled([*lines, (_RETURN, 0, 0, _ALLOW)])
    # sendto without an address is send.
    lines += [
        (_EQUAL, 0, 6, machine.sendto),
        (_LOAD, 0, 0, _ARGUMENTS + 8 * 4),
        (_EQUAL, 0, 3, 0),
        (_LOAD, 0, 0, _ARGUMENTS + 8 * 4 + 4),
        (_EQUAL, 0, 1, 0),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ASK),
        (_EQUAL, 1, 0, machine.connect),
        (_RETURN, 0, 0, _ALLOW),
        (_LOAD, 0, 0, _ARGUMENTS + 8 * 2),
        (_GREATER, len(_ADDRESS_SIZES) + 1, 0, _MOST_OF_UNIX),
    ]
    lines += [(_EQUAL, len(_ADDRESS_SIZES) - place, 0, size) for place, size in enumerate(_ADDRESS_SIZES)]
    lines += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ASK)]
    return _assembled(lines)


def _assembled(lines: list[tuple[int, int, int, int]]) -> bytes:
    return b"".join(struct.pack("HBBI", *line) for line in lines)
