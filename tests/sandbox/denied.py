"""Runs a command that is denied parts of the kernel, as containers deny them: ``python denied.py PARTS COMMAND…``.

``namespaces``: `unshare` and `mount` fail as in Docker's default profile. ``pivot``: a view cannot replace the root.
``landlock``: it is missing, as on an old kernel. ``root``: the command has no rights of root's to mount, so that it
needs a user namespace. ``modes``: nor to write where a folder's mode denies it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

CALLS = {
    "x86_64": {"namespaces": (165, 272), "pivot": (155,), "landlock": (444,)},
    "aarch64": {"namespaces": (40, 97), "pivot": (41,), "landlock": (444,)},
}
ERRORS = {"namespaces": errno.EPERM, "pivot": errno.EPERM, "landlock": errno.ENOSYS}
CAPABILITIES = {"root": 21, "modes": 1}


def deny(parts: list[str]) -> None:
    """Takes them from this process and all that it starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    for part in set(parts) & {*CAPABILITIES}:
        libc.prctl(24, CAPABILITIES[part], 0, 0, 0)  # it is gone when the command is executed
    lines = [(0x20, 0, 0, 0)]
    for part in set(parts) & {*ERRORS}:
        for number in CALLS[os.uname().machine][part]:
            lines += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | ERRORS[part])]
    lines.append((0x06, 0, 0, 0x7FFF0000))
    code = b"".join(struct.pack("HBBI", *line) for line in lines)
    buffer = ctypes.create_string_buffer(code, len(code))
    libc.prctl(38, 1, 0, 0, 0)
    if libc.prctl(22, 2, struct.pack("HxxxxxxP", len(lines), ctypes.addressof(buffer))):
        raise OSError(ctypes.get_errno(), "seccomp")


if __name__ == "__main__":
    deny(sys.argv[1].split(","))
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606
