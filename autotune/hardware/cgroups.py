"""Reads the limits of Linux control groups: CPU quota and memory, of versions 1 and 2, of every ancestor.

A container's own group may be unlimited while a group above it is not (a Kubernetes pod, a systemd slice),
so each level up to the mount point counts, and the tightest one holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_V1_UNLIMITED_BYTES = 2**60  # version 1 writes "no limit" as the largest multiple of the page size


@dataclass(frozen=True)
class CpuQuota:
    """A ceiling on CPU time.

    Attributes:
        cpus: CPU seconds a second; may be a fraction.
        group: The group that sets it, as a path below its mount point.
    """

    cpus: float
    group: str


@dataclass(frozen=True)
class MemoryLimit:
    """A ceiling on memory.

    Attributes:
        limit_bytes: The tightest limit of the group and its ancestors.
        room_bytes: What may still be taken before some limit is met. Clean file cache does not count as
            taken: the kernel drops it first, and a data set that was read once would else fill the room.
        group: The group with the tightest limit, as a path below its mount point.
    """

    limit_bytes: int
    room_bytes: int
    group: str


@dataclass(frozen=True)
class _Group:
    """One level of a hierarchy: its folder, its name for people, and the version of its interface."""

    folder: Path
    name: str
    version: int


def read_text(path: Path) -> str | None:
    """The content of a small system file, or None when it is not there or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def cpu_quota(root: Path = Path("/")) -> CpuQuota | None:
    """The tightest CPU quota over this process, or None when no level sets one.

    Args:
        root: Where ``/proc`` and ``/sys`` are found.
    """
    quotas = []
    for group in _groups(root, "cpu"):
        cpus = _cpus(group)
        if cpus is not None:
            quotas.append(CpuQuota(cpus, group.name))
    return min(quotas, key=lambda quota: quota.cpus, default=None)


def memory_limit(root: Path = Path("/")) -> MemoryLimit | None:
    """The tightest memory limit over this process, or None when no level sets one.

    Args:
        root: Where ``/proc`` and ``/sys`` are found.
    """
    levels = []
    for group in _groups(root, "memory"):
        limit = _limit_bytes(group)
        if limit is not None:
            levels.append((limit, max(0, limit - _working_set_bytes(group)), group.name))
    if not levels:
        return None
    limit, _, name = min(levels)
    return MemoryLimit(limit, min(room for _, room, _ in levels), name)


def _cpus(group: _Group) -> float | None:
    """The quota of one level in CPUs."""
    if group.version == 2:
        words = (read_text(group.folder / "cpu.max") or "").split()
        quota, period = (_number(word) for word in words) if len(words) == 2 else (None, None)
    else:
        quota = _number(read_text(group.folder / "cpu.cfs_quota_us"))
        period = _number(read_text(group.folder / "cpu.cfs_period_us"))
    # "max" is no number, and version 1 writes -1 for it.
    return quota / period if quota is not None and period is not None and quota > 0 and period > 0 else None


def _limit_bytes(group: _Group) -> int | None:
    """The limit of one level in bytes."""
    if group.version == 2:
        # Above memory.high a process is slowed down to a crawl: for training that is a limit as well.
        readings = [_number(read_text(group.folder / name)) for name in ("memory.max", "memory.high")]
        return min((reading for reading in readings if reading is not None), default=None)
    limit = _number(read_text(group.folder / "memory.limit_in_bytes"))
    return limit if limit is not None and limit < _V1_UNLIMITED_BYTES else None


def _working_set_bytes(group: _Group) -> int:
    """What one level has taken, without clean file cache; 0 when it cannot be read."""
    file, cache = (
        ("memory.current", "inactive_file") if group.version == 2 else ("memory.usage_in_bytes", "total_inactive_file")
    )
    used = _number(read_text(group.folder / file)) or 0
    statistics = dict(
        line.split(maxsplit=1) for line in (read_text(group.folder / "memory.stat") or "").splitlines() if " " in line
    )
    return max(0, used - (_number(statistics.get(cache)) or 0))


def _number(text: str | None) -> int | None:
    """An integer, or None for what is not one (``max``, an empty or missing file)."""
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def _groups(root: Path, controller: str) -> Iterator[_Group]:
    """This process's group and its ancestors up to the mount point, in each hierarchy with the controller."""
    memberships = _memberships(root, controller)
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, (kind, _, options) = left.split(), [*right.split(), "", "", ""][:3]
        version = 2 if kind == "cgroup2" else 1 if kind == "cgroup" and controller in options.split(",") else None
        if version is None or len(fields) < 5 or version not in memberships:
            continue
        mounted, mount_point = fields[3], unescape(fields[4])
        parts = _below(memberships[version], mounted)
        folder = root / mount_point.lstrip("/")
        for depth in range(len(parts), -1, -1):
            yield _Group(folder.joinpath(*parts[:depth]), "/" + "/".join(parts[:depth]), version)


def _memberships(root: Path, controller: str) -> dict[int, str]:
    """The path of this process's group by interface version."""
    paths: dict[int, str] = {}
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            paths[2] = path
        elif controller in controllers.split(","):
            paths[1] = path
    return paths


def _below(path: str, mounted: str) -> tuple[str, ...]:
    """The parts of a group's path below the folder that is mounted.

    A container often sees only its own group, mounted as the top, while the path is told as the host has it;
    and a path that starts with ``..`` lies outside of what is mounted. Then the mount point is the group.
    """
    parts = [part for part in path.split("/") if part]
    top = [part for part in mounted.split("/") if part]
    if ".." in parts or parts[: len(top)] != top:
        return ()
    return tuple(parts[len(top) :])


def unescape(text: str) -> str:
    r"""A path of ``mountinfo``, where a space is written as ``\040``."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
