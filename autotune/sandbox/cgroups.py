"""Reads the limits of Linux control groups (versions 1 and 2) and their ancestors: CPU quota and memory.

A container's own group may be unlimited while a group above it is not (a Kubernetes pod, a systemd slice),
so each level up to the mount point counts, and the tightest one holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from .view import mounts

ROOT = Path("/")
_V1_UNLIMITED_BYTES = 2**60  # version 1 writes "no limit" as the largest multiple of the page size


class CpuQuota(NamedTuple):
    """A limit on CPU time: CPU seconds per second, and the group that sets it, as a path below its mount point."""

    cpus: float
    group: str


class MemoryLimit(NamedTuple):
    """A limit on memory.

    Attributes:
        limit_bytes: The tightest limit of the group and its ancestors.
        room_bytes: Memory that is left before a limit is reached. Clean file cache does not count as used:
            the kernel drops it first, and otherwise a data set that was read once would use it all up.
    """

    limit_bytes: int
    room_bytes: int


def read_text(path: Path) -> str:
    """The content of a small system file; empty if it does not exist or cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def cpu_quota(root: Path = ROOT) -> CpuQuota | None:
    """The tightest CPU quota on this process, or None if no level sets one; `root` stands for ``/``."""
    quotas = [CpuQuota(cpus, name) for name, folder in _groups(root, "cpu") if (cpus := _cpus(folder)) is not None]
    return min(quotas, key=lambda quota: quota.cpus, default=None)


def memory_limit(root: Path = ROOT) -> MemoryLimit | None:
    """The tightest memory limit on this process, or None if no level sets one; `root` stands for ``/``."""
    levels = [
        MemoryLimit(limit, max(0, limit - _working_set_bytes(folder)))
        for _, folder in _groups(root, "memory")
        if (limit := _limit_bytes(folder)) is not None
    ]
    return MemoryLimit(*map(min, zip(*levels, strict=True))) if levels else None


def process_limit(root: Path = ROOT) -> int | None:
    """The tightest limit on processes and threads, or None if no level sets one; `root` stands for ``/``."""
    limits = (_number(read_text(folder / "pids.max")) for _, folder in _groups(root, "pids"))
    return min((limit for limit in limits if limit is not None), default=None)


def _cpus(folder: Path) -> float | None:
    """The quota of one level in CPUs."""
    words = read_text(folder / "cpu.max").split()
    if len(words) != 2:  # version 1
        words = [read_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    quota, period = map(_number, words)
    # "max" is no number, and version 1 writes -1 for it.
    return quota / period if quota is not None and period is not None and quota > 0 and period > 0 else None


def _limit_bytes(folder: Path) -> int | None:
    """The limit of one level. memory.high counts too: above it a process becomes too slow to train."""
    files = ("memory.max", "memory.high", "memory.limit_in_bytes")
    limits = [_number(read_text(folder / name)) for name in files]
    return min((limit for limit in limits if limit is not None and limit < _V1_UNLIMITED_BYTES), default=None)


def _working_set_bytes(folder: Path) -> int:
    """Memory used by one level, without clean file cache; 0 if it cannot be read."""
    used = read_text(folder / "memory.current") or read_text(folder / "memory.usage_in_bytes")
    statistics = dict(re.findall(r"^(\w+) (\d+)$", read_text(folder / "memory.stat"), re.MULTILINE))
    # Version 1 has both words; only the longer one counts the groups below.
    cache = statistics.get("total_inactive_file") or statistics.get("inactive_file", "")
    return max(0, (_number(used) or 0) - (_number(cache) or 0))


def _number(text: str) -> int | None:
    """Parses an integer; None for other text (``max``, an empty or missing file)."""
    try:
        return int(text)
    except ValueError:
        return None


def _groups(root: Path, controller: str) -> Iterator[tuple[str, Path]]:
    """Yields this process's group and its ancestors up to the mount point, in each hierarchy with the controller."""
    paths = _memberships(root, controller)
    for mount in mounts(str(root)):
        if mount.kind in paths and (mount.kind == "cgroup2" or controller in mount.kind_options):
            parts = _below(paths[mount.kind], mount.top)
            folder = root / mount.point.lstrip("/")
            for depth in range(len(parts), -1, -1):
                yield "/" + "/".join(parts[:depth]), folder.joinpath(*parts[:depth])


def _memberships(root: Path, controller: str) -> dict[str, PurePosixPath]:
    """The path of this process's group in each version's hierarchy, by the name of its file system."""
    paths = {}
    for line in read_text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            paths["cgroup2"] = PurePosixPath(path)
        elif controller in controllers.split(","):
            paths["cgroup"] = PurePosixPath(path)
    return paths


def _below(path: PurePosixPath, mounted: str) -> tuple[str, ...]:
    """The parts of a group's path below the mounted folder.

    A container often sees only its own group, mounted as the top, while the path is the host's. And a path that starts
    with ``..`` lies outside the mounted folder. In both cases the mount point is the group.
    """
    return path.relative_to(mounted).parts if path.is_relative_to(mounted) and ".." not in path.parts else ()
