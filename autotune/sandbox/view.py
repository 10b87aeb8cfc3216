"""A private view of the file system: overlays on every writable mount, whose upper layers are scratch.

A plan lists the folders that carry an overlay, those that are bound unchanged, and those that are read-only because
they cannot carry one. It is made once for each run, by trial. Each start of the script, and each process that is forked
for a burst, then enters its own view.

In a user namespace the kernel locks mounts to each other: a folder with another mount below it can neither be bound
alone nor be a lower layer. Such a folder (often ``/``) is taken apart: a skeleton holds its small files and links, and
each folder in it gets its own overlay.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
import stat
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

from .system import check_status, libc

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_CAP_DAC_OVERRIDE, _CAP_SYS_PTRACE, _CAP_SYS_ADMIN = 1, 19, 21
_CAPABILITIES = struct.pack("Ii", 0x20080522, 0)  # in six words, of this process
_PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _RAISE = 24, 47, 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
AS_THEY_ARE = ("/dev", "/proc", "/sys")
"""Devices and kernel files: no overlay can carry them, and processes share memory through ``/dev/shm``."""
COPIED_BYTES = 2**20
"""Largest file that is copied from a folder that is taken apart; larger ones are read-only. Not tuned: such folders
hold configuration, and each burst enters a view."""
_OPTIONS = ("redirect_dir=on", "userxattr", "index=off")
"""Options, in the order of trial. The first allows renaming folders, and needs root; the second is for user namespaces,
since Linux 5.11; the third changes nothing."""
MOST_OVERLAYS = 200
"""Most folders that are tried as overlays: a trial takes milliseconds, and more overlays take a second to enter. A
folder that is taken apart may contain many folders."""
_MOST_TRIED = 5
_ROOT, _SKELETON = "root", "skeleton"
_LOCKED_FLAGS = {2: 2, 4: 4, 8: 8, 1024: 1024, 2048: 2048, 4096: 1 << 21}
"""From each flag of `statvfs` to that of `mount`: nosuid, nodev, noexec, noatime, nodiratime, relatime."""


class Mount(NamedTuple):
    """A line of ``mountinfo``: the mounted part of a file system, the mount point, its options, and the file system."""

    top: str
    point: str
    options: frozenset[str]
    kind: str
    kind_options: frozenset[str]


class Plan:
    """The role of each folder in a view; `scratch`, the run's folder for layers, and `through` are bound unchanged."""

    def __init__(self, scratch: str, through: list[str]) -> None:
        self.scratch = scratch
        self.through = through
        self.overlays: list[str] = []  # folders that carry one, parents first
        self.read_only: dict[str, str] = {}  # folders and files with the reason; empty: read-only outside, too
        self.apart = False  # ``/`` is taken apart, so that its overlay covers a skeleton
        self.sockets: list[str] = []  # in the file system: they do not reach their listeners through an overlay
        self.stacks = True  # a view can be entered from within a view, as a forked job does

    @classmethod
    def of(cls, record: dict[str, Any]) -> Plan:
        """The plan of a record made by `vars`."""
        plan = cls(record["scratch"], record["through"])
        vars(plan).update(record)
        return plan


def explore(scratch: str, through: list[str]) -> Plan:
    """Makes a plan in new namespaces; the process must end afterwards.

    Args:
        scratch: An existing folder that can hold upper layers.
        through: Paths that are bound unchanged.

    Raises:
        OSError: This machine does not allow such a view.
    """
    if os.uname().machine not in _PIVOT_ROOT:
        raise OSError(f"the system calls of {os.uname().machine} are not known")
    plan = Plan(scratch, through)
    own = {_first_own(folder) for folder in (os.getcwd(), os.path.expanduser("~"))}
    in_user_namespace = _unshare()
    _Explorer(plan).explore(own_folders=sorted(filter(None, own)) if in_user_namespace else [])
    copies = in_user_namespace and os.access(os.getcwd(), os.W_OK)
    enter(plan, os.path.join(plan.scratch, "tried"))
    if copies:
        _try_copying(os.getcwd())
    return plan


def enter(plan: Plan, layer: str, start: str | None = None, *, is_inside: bool = False) -> None:
    """Moves this process into its own view; it must have one thread.

    Args:
        plan: A plan from `explore`.
        layer: New folder in the plan's scratch folder for all writes.
        start: Folder of an earlier layer, which lies below.
        is_inside: Whether this process is in a view, which then lies below.

    Raises:
        OSError: The kernel refuses.
    """
    folder = "/"
    if is_inside:
        override_modes(allowed=True)
    with contextlib.suppress(FileNotFoundError):  # the script may have removed its folder
        folder = os.getcwd()
    _unshare()
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    root = os.path.join(layer, _ROOT)
    os.makedirs(root, exist_ok=True)
    for number, place in enumerate(plan.overlays):
        is_skeleton = place == "/" and plan.apart and not is_inside
        lower = os.path.join(plan.scratch, _SKELETON) if is_skeleton else place
        earlier = upper(start, number) if start is not None else ""
        _overlay(root + place.rstrip("/"), upper(layer, number), lower, earlier if os.path.isdir(earlier) else "")
    for place in sorted([*plan.read_only, *plan.through, *AS_THEY_ARE]):
        _bind(place, root + place, read_only=place in plan.read_only)
    for path in plan.sockets:
        with contextlib.suppress(OSError):  # its process may have ended meanwhile
            _bind(path, root + path, read_only=False)
    _mount(plan.scratch, root + plan.scratch, None, _MS_BIND)  # without submounts: this root lies below it
    os.chdir(root)
    check_status(libc.syscall(_PIVOT_ROOT[os.uname().machine], b".", b"."), "pivot_root")
    check_status(libc.umount2(b".", _MNT_DETACH), "umount of the former root")
    os.chdir(folder)
    if is_inside:
        override_modes(allowed=False)


def override_modes(*, allowed: bool) -> None:
    """Lets a normal user's process in a view ignore the modes of its own files, or stops that.

    Mounting an overlay needs that right, since the kernel gives the overlay's own folder no permissions. A script needs
    no such right, but each program that it starts has it again: without it, no Python that a launcher starts could give
    its jobs their layers. So a normal user's view binds no path of `--writable` where there is Landlock.
    """
    if os.geteuid() != 0:
        effective, permitted, *others = _held_capabilities()
        effective = effective & ~(1 << _CAP_DAC_OVERRIDE) | (permitted & (allowed << _CAP_DAC_OVERRIDE))
        _hold_capabilities(effective, permitted, *others)


def _held_capabilities() -> tuple[int, ...]:
    """Bits of the effective, permitted and inheritable capabilities, then of those above the first 32."""
    held = ctypes.create_string_buffer(24)
    check_status(libc.capget(_CAPABILITIES, held), "capget")
    return struct.unpack("6I", held.raw)


def _hold_capabilities(*words: int) -> None:
    check_status(libc.capset(_CAPABILITIES, struct.pack("6I", *words)), "capset")


def remove_folder(folder: str) -> None:
    """Removes a folder with its contents, including unreadable folders that overlays leave; leaves a link alone."""
    if os.path.islink(folder):
        return
    _make_accessible(folder)
    for place, names, _ in os.walk(folder):
        for name in names:
            _make_accessible(os.path.join(place, name))
    for name in _listed(folder):  # files last: one of them shows the next run what a killed run has left
        inner = os.path.join(folder, name)
        if os.path.isdir(inner) and not os.path.islink(inner):
            shutil.rmtree(inner, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def _make_accessible(folder: str) -> None:
    if not os.path.islink(folder) and not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        with contextlib.suppress(OSError):
            os.chmod(folder, stat.S_IRWXU)


def upper(layer: str, number: int) -> str:
    """The folder in a layer that holds the writes into an overlay, by its index in `Plan.overlays`."""
    return os.path.join(layer, str(number), "upper")


class _Explorer:
    """Finds out by trial which role each folder can have."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._mounts = {mount.point: mount for mount in mounts()}  # the last of several at one point is visible
        self._skeleton = os.path.join(plan.scratch, _SKELETON)
        self._trials = 0

    def explore(self, own_folders: list[str]) -> None:
        """Fills in the plan.

        Args:
            own_folders: The first folders of this user on paths that are likely to be written to. In a user namespace
                an overlay cannot copy a folder of another owner, so each gets its own overlay unless it lies directly
                in one.
        """
        if "/" not in self._mounts:
            raise OSError("/ is not in mountinfo, as in a chroot")
        _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
        for place in sorted(self._mounts):
            if not is_below(place, (*AS_THEY_ARE, *self._plan.through)):
                self._place(place)
        for place in own_folders:
            has_overlay = not {place, os.path.dirname(place)}.isdisjoint(self._plan.overlays)
            if not has_overlay and not is_below(place, (*AS_THEY_ARE, *self._plan.through)):
                self._place(place)
        self._plan.overlays.sort()
        if "/" not in self._plan.overlays:
            raise OSError(f"/ can carry no overlay: {self._plan.read_only.get('/', '--writable names it')}")
        self._plan.sockets = [path for path in _sockets() if not is_below(path, (*AS_THEY_ARE, *self._plan.through))]

    def _place(self, place: str) -> None:
        """Plans an overlay for a folder if possible; else takes it apart; else makes it read-only."""
        if self._trials > MOST_OVERLAYS:
            raise OSError(f"a view would need more than {MOST_OVERLAYS} overlays; the search ended at {place}")
        mount = self._mounts.get(place)
        is_split = any(point != place and is_below(point, (place,)) for point in self._mounts)
        if not os.path.isdir(place):
            self._place_file(place)
        elif mount is not None and "ro" in mount.options and not is_split:
            self._plan.read_only[place] = ""
        elif (refusal := self._try(place)) is None:
            self._plan.overlays.append(place)
        elif is_split and (place == "/" or self._plan.apart):
            self._take_apart(place)
        else:
            why = f"{mount.kind if mount is not None else 'it'} carries no overlay ({refusal.strerror})"
            self._plan.read_only[place] = why if os.access(place, os.W_OK) else ""

    def _try(self, place: str) -> OSError | None:
        """Mounts an overlay and unmounts it again; returns the kernel's error if it refuses."""
        self._trials += 1
        layer = os.path.join(self._plan.scratch, f"trial{len(self._plan.overlays)}")
        first, second = os.path.join(layer, "first"), os.path.join(layer, "second")
        os.makedirs(first, exist_ok=True)
        os.makedirs(second, exist_ok=True)
        try:
            _overlay(first, upper(layer, 0), place)
            os.listdir(first)
            try:
                _overlay(second, upper(layer, 1), first)
            except OSError:  # the folder lies on an overlay itself, and the kernel stacks only two
                self._plan.stacks = False
        except OSError as error:
            return error
        finally:
            libc.umount2(os.fsencode(second), _MNT_DETACH)
            libc.umount2(os.fsencode(first), _MNT_DETACH)
        return None

    def _take_apart(self, place: str) -> None:
        """Puts the direct contents of a folder into the skeleton; mounts in it are placed separately."""
        inside = os.path.join(self._skeleton, place.lstrip("/"))
        os.makedirs(inside, exist_ok=True)
        if place == "/":
            self._plan.overlays.append("/")
            self._plan.apart = True
        for name in _listed(place):
            path = os.path.join(place, name)
            if path in self._mounts or is_below(path, (*AS_THEY_ARE, *self._plan.through)):
                _make_like(path, os.path.join(inside, name))
            elif os.path.islink(path):
                os.symlink(os.readlink(path), os.path.join(inside, name))
            elif os.path.isdir(path) and _is_closed(path):
                os.mkdir(os.path.join(inside, name), 0)  # here, too, nothing in it can be reached
            elif os.path.isdir(path):
                os.makedirs(os.path.join(inside, name), exist_ok=True)
                self._place(path)
            else:
                self._place_file(path)
        with contextlib.suppress(OSError):
            shutil.copystat(place, inside)

    def _place_file(self, path: str) -> None:
        """Plans a writable copy of a small file; makes a large one read-only."""
        inside = os.path.join(self._skeleton, path.lstrip("/"))
        try:
            if not os.path.isdir(os.path.dirname(inside)):
                self._plan.read_only[path] = "a file that is a mount of its own"
            elif os.path.isfile(path) and os.path.getsize(path) <= COPIED_BYTES and os.access(path, os.R_OK):
                shutil.copy2(path, inside)
            elif stat.S_ISFIFO(os.stat(path).st_mode):
                os.mkfifo(inside)
            elif os.path.isfile(path):
                _make_like(path, inside)
                self._plan.read_only[path] = f"a file of more than {COPIED_BYTES >> 20} MiB beside another mount"
        except FileNotFoundError:
            pass  # it has been removed
        except OSError as error:  # a mount that answers to another user only
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise
            self._plan.read_only[path] = f"it cannot be copied ({error.strerror})"


def _is_closed(folder: str) -> bool:
    """Whether a folder of another user is closed to this one."""
    is_open = os.access(folder, os.R_OK) or os.access(folder, os.X_OK)
    return not is_open and os.stat(folder).st_uid != os.geteuid()


def _first_own(folder: str) -> str | None:
    """The first folder on a path that this user owns. Within a user namespace, all others look alike."""
    path = "/"
    for name in os.path.realpath(folder).split("/")[1:]:
        path = os.path.join(path, name)
        if os.path.isdir(path) and os.stat(path).st_uid == os.geteuid():
            return path
    return None


def _overlay(target: str, above: str, lower: str, start: str = "") -> None:
    """Mounts an overlay of a folder: `above` is its upper layer, and `start` a layer between them."""
    os.makedirs(above, exist_ok=True)
    shutil.copymode(lower, above)
    own = os.path.dirname(above)
    work = os.path.join(own, "work")
    if not start:
        _mount_overlay(target, _escaped(lower), above, work)
        return
    try:
        _mount_overlay(target, f"{_escaped(start)}:{_escaped(lower)}", above, work)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        # Only an upper layer may lie below the folder, and this one does: put another overlay in between.
        between = os.path.join(own, "between")
        os.makedirs(between, exist_ok=True)
        _mount_overlay(between, _escaped(lower), start, os.path.join(own, "work-between"))
        _mount_overlay(target, _escaped(between), above, work)


def _mount_overlay(target: str, below: str, above: str, work: str) -> None:
    os.makedirs(work, exist_ok=True)
    layers = f"lowerdir={below},upperdir={_escaped(above)},workdir={_escaped(work)}"
    for options in _OPTIONS[:-1]:
        with contextlib.suppress(OSError):
            _mount("overlay", target, "overlay", 0, f"{layers},{options}")
            return
    _mount("overlay", target, "overlay", 0, f"{layers},{_OPTIONS[-1]}")


def _bind(place: str, target: str, *, read_only: bool) -> None:
    if not os.path.lexists(place):
        return
    _make_like(place, target)
    if read_only:
        _mount(place, target, None, _MS_BIND)
        _make_read_only(target)
    else:
        _mount(place, target, None, _MS_BIND | _MS_REC)


def _make_read_only(target: str) -> None:
    """Remounts as read-only. Keeps the flags that a mount has outside, which a user namespace may not clear."""
    flags = os.statvfs(target).f_flag
    kept = sum(flag for shown, flag in _LOCKED_FLAGS.items() if flags & shown)
    _mount(None, target, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | kept)


def _make_like(path: str, target: str) -> None:
    """Makes a mount point for a path: a folder for a folder, a file for anything else."""
    if os.path.lexists(target):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.isdir(path):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))


def _unshare() -> bool:
    """Gives this process its own mount namespace; returns whether that needed a user namespace.

    In a user namespace the script keeps the rights to mount, but only within its own view, so that its forks can enter
    their own views; see `override_modes`. A root script loses the right to trace, which would give access to
    ``/proc/1/root``, outside the view.
    """
    if libc.unshare(CLONE_NEWNS) == 0:
        libc.prctl(_PR_CAPBSET_DROP, _CAP_SYS_PTRACE, 0, 0, 0)
        return False
    user, group = os.geteuid(), os.getegid()
    check_status(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    effective, permitted, _, *high = _held_capabilities()
    kept = (_CAP_SYS_ADMIN, _CAP_DAC_OVERRIDE)
    _hold_capabilities(effective, permitted, sum(1 << number for number in kept), *high)
    for number in kept:
        check_status(libc.prctl(_PR_CAP_AMBIENT, _RAISE, number, 0, 0), "prctl")
    return True


def _try_copying(folder: str) -> None:
    """Changes files in a folder of this process's view, as a script does.

    Raises:
        OSError: The kernel cannot copy files of this owner or group, such as those of a shared project.
    """
    files = [path for name in _listed(folder) if os.path.isfile(path := os.path.join(folder, name))]
    files = [path for path in files if os.access(path, os.W_OK) and os.path.getsize(path) <= COPIED_BYTES]
    trial = os.path.join(folder, f".autotune-{os.getpid()}")
    try:
        os.close(os.open(trial, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.unlink(trial)
        for path in files[:_MOST_TRIED]:
            os.close(os.open(path, os.O_WRONLY))
    except OSError as error:
        raise OSError(error.errno, f"files in {folder} cannot be copied into it ({error.strerror})") from error


def mounts(root: str = "/") -> list[Mount]:
    """The mounts in their order, without malformed lines; `root` stands for ``/``. Empty if they cannot be read."""
    listed = []
    file = os.path.join(root, "proc/self/mountinfo")
    with contextlib.suppress(OSError), open(file, encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            head, _, tail = line.partition(" - ")
            fields, details = head.split(), tail.split()  # the source between them may be empty
            if len(fields) >= 6 and details:
                top, point = (re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), path) for path in fields[3:5])
                options, kind_options = (frozenset(words.split(",")) for words in (fields[5], details[-1]))
                listed.append(Mount(top, point, options, details[0], kind_options))
    return listed


def _sockets() -> list[str]:
    paths = set()
    with contextlib.suppress(OSError), open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            fields = line.split(maxsplit=7)
            if len(fields) == 8 and fields[7].startswith("/"):
                path = fields[7].rstrip("\n")
                with contextlib.suppress(OSError):
                    if stat.S_ISSOCK(os.stat(path).st_mode):
                        paths.add(os.path.realpath(path))
    return sorted(paths)


def _listed(folder: str) -> list[str]:
    with contextlib.suppress(OSError):
        return sorted(os.listdir(folder))
    return []


def is_below(path: str, places: Iterable[str]) -> bool:
    """Whether a path equals one of some folders, or lies below one."""
    return any(path == place or path.startswith(place.rstrip("/") + "/") for place in places)


def _escaped(path: str) -> str:
    """Escapes a path for an overlay's options, where commas and colons separate."""
    return re.sub(r"([\\,:])", r"\\\1", path)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    names = [None if name is None else os.fsencode(name) for name in (source, target, kind, options)]
    check_status(libc.mount(*names[:3], ctypes.c_ulong(flags), names[3]), f"mount of {source or target}")
