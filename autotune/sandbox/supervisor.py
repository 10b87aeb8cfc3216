"""Answers the system calls of a script's processes that `calls` holds: connections, and changes of a file's state.

Until a process has taken its first optimizer step, it may connect anywhere. From then on it may connect to this machine
and to addresses that reading data used during the look.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import ipaddress
import os
import re
import select
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.sandbox.calls import MACHINES, STEPPED
from autotune.sandbox.system import fcntl, stat_of
from autotune.sandbox.view import is_below

_RECEIVE, _SEND = 0xC0502100, 0xC0182101
"""Requests of a listener, from linux/seccomp.h."""
_CALL, _ANSWER = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
_CONTINUE = 1
_INET, _INET6 = 2, 10
_LONGEST_PATH = 4096
_WORKER = "pt_data_worker"
"""Torch's name for loader processes, since 2.6 (torch/utils/data/_utils/worker.py)."""
_DNS = 53
_BY_DESCRIPTOR = {"fchmod", "fchown", "fsetxattr", "fremovexattr"}
_BY_FOLDER = {
    "fchownat": 4, "futimesat": None, "fchmodat": None, "utimensat": 3, "fchmodat2": 3, "setxattrat": 2,
    "removexattrat": 2, "file_setattr": 4,
}  # fmt: skip
"""Calls that take a folder and a path, and the index of the flags argument."""
_OF_LINKS = {"lchown", "lsetxattr", "lremovexattr"}
_AT_CURRENT, _AT_SYMLINK_NOFOLLOW = -100, 0x100
_STREAMS = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}


@dataclass
class Rules:
    """Rules for a script's processes, in all of its starts."""

    any_network: bool  # they may connect anywhere at any time
    writable: Sequence[str] | None  # where the state of files may change; None: anywhere, as an overlay keeps changes
    note: Callable[[str], None]  # for the user, once for each address and path
    read_from: set[str] = field(default_factory=set)  # addresses that reading data connected to during the look
    read_ports: set[int] = field(default_factory=set)  # the same for loader workers: a store has many addresses
    _reported: set[str] = field(default_factory=set)

    def report(self, what: str, sentence: str) -> None:
        """Passes on the first sentence about a subject."""
        if what not in self._reported:
            self._reported.add(what)
            self.note(sentence)


class Supervisor:
    """Answers for one start of a script, in a thread, until it is closed.

    Args:
        listener: Descriptor from `calls.listen`; closed at the end.
        root: Process id of the start.
        looks: Whether this is the look, which shows what reading data needs.
        forks: Whether its forks are jobs, each with its own first step.
    """

    def __init__(self, listener: int, rules: Rules, root: int, *, looks: bool, forks: bool) -> None:
        self._root = root
        self._listener = listener
        self._rules = rules
        self._looks, self._forks = looks, forks
        self._stepped: dict[int, str] = {}  # when each began, by its id, which another process may get later
        self._all_stepped = False
        self._used: set[str] = set()
        self._names = {number: name for name, number in MACHINES[os.uname().machine].stating.items()}
        self._ends = os.pipe()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="autotune-supervisor")
        self._thread.start()

    def close(self) -> None:
        """Stops answering; later calls fail."""
        with contextlib.suppress(OSError):
            os.close(self._ends[1])
        self._thread.join()

    def forget_ended(self) -> None:
        """Forgets which processes of jobs had stepped that have ended: others may get their ids."""
        for pid in [*self._stepped]:
            if _beginning(pid) != self._stepped[pid]:
                del self._stepped[pid]

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._ends[0], select.POLLIN)
        try:
            while all(descriptor == self._listener and kind & select.POLLIN for descriptor, kind in poll.poll()):
                buffer = bytearray(_CALL.size)
                try:
                    fcntl.ioctl(self._listener, _RECEIVE, buffer)
                except OSError as error:  # the process has been killed meanwhile
                    if error.errno in {errno.ENOENT, errno.EINTR}:
                        continue
                    return
                self._answer(buffer)
        finally:
            os.close(self._listener)
            os.close(self._ends[0])

    def _answer(self, buffer: bytearray) -> None:
        number, thread, _, call, _, _, *arguments = _CALL.unpack(buffer)
        refusal = errno.EACCES if call in self._names else errno.ECONNREFUSED
        with contextlib.suppress(Exception):  # the process has ended, or its memory is unreadable
            refusal = self._judged(thread, call, arguments)
        answer = _ANSWER.pack(number, 0, -refusal, 0 if refusal else _CONTINUE)
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._listener, _SEND, bytearray(answer))

    def _judged(self, thread: int, call: int, arguments: list[int]) -> int:
        """The error with which a call fails; 0 to allow it."""
        if call in self._names:
            return self._judged_state(thread, self._names[call], arguments)
        machine = MACHINES[os.uname().machine]
        place, length = (arguments[1], arguments[2]) if call == machine.connect else (arguments[4], arguments[5])
        try:
            address = _address(_read(thread, place, min(length, 28)))
        except OSError:
            return self._judged_unread(thread)
        return self._judged_connection(thread, *address) if address is not None else 0

    def _judged_connection(self, thread: int, host: str, port: int) -> int:
        if (host, port) == STEPPED:
            self._note_step(thread)
            return errno.ECONNREFUSED
        own = ipaddress.ip_address(host)
        if own.is_loopback or own.is_unspecified or self._rules.any_network or port == _DNS:
            return 0
        if not self._has_stepped(thread):
            self._used.add(host)
        reads = self._is_worker(thread)
        if self._looks and reads:
            self._rules.read_from.add(host)
            self._rules.read_ports.add(port)
        if not self._has_stepped(thread) or host in self._rules.read_from:
            return 0
        if reads and port in self._rules.read_ports:
            return 0
        if host in self._used and host in _own_addresses():  # ranks meet at their machine's name
            return 0
        self._rules.report(
            host,
            f"network: refused a connection to {host} port {port} ('{_name_of(thread)}'), since training had begun and "
            "reading data did not use it; --network allows all",
        )
        return errno.ECONNREFUSED

    def _judged_unread(self, thread: int) -> int:
        """The same for a connection whose address cannot be read."""
        if self._rules.any_network or not self._has_stepped(thread):
            return 0
        if _status(thread, "Tgid"):
            self._rules.report(
                "unread",
                f"network: refused a connection of '{_name_of(thread)}' to an address that cannot be read, since "
                "training had begun; --network allows all",
            )
        return errno.ECONNREFUSED

    def _judged_state(self, thread: int, name: str, arguments: list[int]) -> int:
        path = _path_of(thread, name, arguments)
        allowed = self._rules.writable
        if path is None or allowed is None or is_below(path, allowed):
            return 0
        self._rules.report(path, denied(path, "its mode, owner, times or attributes would have changed"))
        return errno.EACCES

    def _note_step(self, thread: int) -> None:
        if self._forks:
            pid = _status(thread, "Tgid")
            if beginning := _beginning(pid):
                self._stepped[pid] = beginning
        else:
            self._all_stepped = True

    def _has_stepped(self, thread: int) -> bool:
        line = [*_line_of(thread)]
        has_lost_parents = self._root not in line  # a daemon, of any job
        return self._all_stepped or any(map(self._stepped.get, line)) or (has_lost_parents and bool(self._stepped))

    def _is_worker(self, thread: int) -> bool:
        return any(_name_of(pid) == _WORKER for pid in _line_of(thread))


def denied(path: str, why: str) -> str:
    """The sentence about a path that the Landlock row has protected from a change."""
    return f"{path} was left as it is: {why}; --writable {os.path.dirname(path) or '/'} allows it"


def _line_of(thread: int) -> Iterator[int]:
    """Yields a process and its ancestors."""
    pid = _status(thread, "Tgid")
    while pid > 1:
        yield pid
        pid = _status(pid, "PPid")


def _status(pid: int, name: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1])
    return 0


def _beginning(pid: int) -> str:
    """When a process has begun, in the kernel's clock ticks; empty if it has ended."""
    with contextlib.suppress(OSError):
        return stat_of(pid)[19]
    return ""


def _name_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    return "a process that has ended"


def _read(thread: int, place: int, length: int) -> bytes:
    descriptor = os.open(f"/proc/{thread}/mem", os.O_RDONLY)
    try:
        return os.pread(descriptor, length, place)
    finally:
        os.close(descriptor)


def _address(raw: bytes) -> tuple[str, int] | None:
    """Host and port; None if the family is neither IPv4 nor IPv6."""
    if len(raw) < 8:
        return None
    family, port = struct.unpack_from("=H", raw)[0], struct.unpack_from(">H", raw, 2)[0]
    if family == _INET:
        return str(ipaddress.IPv4Address(raw[4:8])), port
    if family == _INET6 and len(raw) >= 24:
        long = ipaddress.IPv6Address(raw[8:24])
        return str(long.ipv4_mapped or long), port
    return None


def _path_of(thread: int, name: str, arguments: list[int]) -> str | None:
    """The file that a call would change; None if it has no name."""
    place, folder, is_link = arguments[0], _AT_CURRENT, name in _OF_LINKS
    if name in _BY_FOLDER:
        place, folder, flags = arguments[1], ctypes.c_int(arguments[0]).value, _BY_FOLDER[name]
        is_link = flags is not None and bool(arguments[flags] & _AT_SYMLINK_NOFOLLOW)
    path = "" if name in _BY_DESCRIPTOR or not place else _text(thread, place)
    if name in _BY_DESCRIPTOR:
        folder = ctypes.c_int(arguments[0]).value
    if path in _STREAMS:
        path, folder = "", _STREAMS[path]
    path = re.sub(r"^/dev/fd/", "/proc/self/fd/", path)
    path = re.sub(r"^/proc/(self|thread-self)(?=/|$)", f"/proc/{thread}", path)
    if not path.startswith("/"):
        link = f"/proc/{thread}/cwd" if folder == _AT_CURRENT else f"/proc/{thread}/fd/{folder}"
        if not path and not os.stat(link).st_nlink:
            return None  # a file that has been removed
        path = os.path.join(os.readlink(link), path).rstrip("/") or "/"
    if not path.startswith("/"):
        return None  # a pipe or a socket
    if is_link:
        return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    return os.path.realpath(path)


def _text(thread: int, place: int) -> str:
    page = 4096 - place % 4096  # the next page may not exist
    raw = _read(thread, place, page)
    if b"\0" not in raw:
        raw += _read(thread, place + page, _LONGEST_PATH)
    return os.fsdecode(raw.partition(b"\0")[0])


def _own_addresses() -> set[str]:
    import psutil

    return {entry.address.partition("%")[0] for addresses in psutil.net_if_addrs().values() for entry in addresses}
