"""Limits of control groups: both versions, every ancestor, containers, and what is no limit at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.sandbox.cgroups import cpu_quota, memory_limit, process_limit
from autotune.sandbox.view import mounts
from autotune.timing.usage import available_bytes
from tests.hardware.readings import GIB, MIB, mount, write_files

V2 = mount("/sys/fs/cgroup", "cgroup2")
V1_CPU = mount("/sys/fs/cgroup/cpu,cpuacct", "cgroup", "rw,cpu,cpuacct")
V1_MEMORY = mount("/sys/fs/cgroup/memory", "cgroup", "rw,memory")


@pytest.mark.parametrize(
    ("group", "limits", "cpus", "of"),
    [
        ("/job", {"job": "350000 100000"}, 3.5, "/job"),
        ("/pod/container", {"pod": "200000 100000", "pod/container": "max 100000"}, 2.0, "/pod"),
        ("/a/b", {"a": "800000 100000", "a/b": "150000 50000"}, 3.0, "/a/b"),
    ],
    ids=["quota and period in one file", "of an ancestor", "the tightest"],
)
def test_version_2_quota_is_read(tmp_path: Path, group: str, limits: dict[str, str], cpus: float, of: str) -> None:
    """An unlimited group below a limited one is limited; a generous one lifts no other's quota."""
    files = {"proc/self/mountinfo": V2, "proc/self/cgroup": f"0::{group}\n"}
    files |= {f"sys/fs/cgroup/{name}/cpu.max": f"{limit}\n" for name, limit in limits.items()}
    quota = cpu_quota(write_files(tmp_path, files))
    assert quota is not None
    assert (quota.cpus, quota.group) == (cpus, of)


def test_version_1_quota_is_read(tmp_path: Path) -> None:
    """Version 1 has two files, in a hierarchy that may be shared with cpuacct."""
    files = {
        "proc/self/mountinfo": V1_CPU,
        "proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n",
        "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "400000\n",
        "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000\n",
    }
    quota = cpu_quota(write_files(tmp_path, files))
    assert quota is not None
    assert quota.cpus == 4.0


@pytest.mark.parametrize("text", ["-1", "0", "", "nonsense"])
def test_version_1_without_a_quota(tmp_path: Path, text: str) -> None:
    """A quota of -1 means none, and a file that makes no sense sets none."""
    files = {
        "proc/self/mountinfo": V1_CPU,
        "proc/self/cgroup": "4:cpu,cpuacct:/\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": text,
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    }
    assert cpu_quota(write_files(tmp_path, files)) is None


def test_container_that_sees_its_own_group_as_the_top(tmp_path: Path) -> None:
    """The path is told as the host has it, but the mount point is the group itself."""
    files = {
        "proc/self/mountinfo": mount("/sys/fs/cgroup/memory", "cgroup", "rw,memory", top="/docker/abc"),
        "proc/self/cgroup": "9:memory:/docker/abc\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{500 * MIB}\n",
    }
    limit = memory_limit(write_files(tmp_path, files))
    assert limit is not None
    assert limit.limit_bytes == 2 * GIB


def test_path_outside_of_what_is_mounted(tmp_path: Path) -> None:
    """A path that leads above the mount point falls back to the mount point."""
    files = {
        "proc/self/mountinfo": V2,
        "proc/self/cgroup": "0::/../../other\n",
        "sys/fs/cgroup/cpu.max": "100000 100000\n",
        "sys/other/cpu.max": "50000 100000\n",  # where the path would lead
    }
    quota = cpu_quota(write_files(tmp_path, files))
    assert quota is not None
    assert quota.cpus == 1.0


def test_mounted_group_and_mount_point_with_a_space(tmp_path: Path) -> None:
    """Both are escaped in mountinfo."""
    files = {
        "proc/self/mountinfo": "cut short\n" + mount(r"/mnt/c\040group", "cgroup2", top=r"/a\040pod"),
        "proc/self/cgroup": "0::/a pod/own\n",
        "mnt/c group/own/cpu.max": "100000 100000\n",
    }
    assert cpu_quota(write_files(tmp_path, files)) is not None
    assert [mount.point for mount in mounts(str(tmp_path))] == ["/mnt/c group"]


def test_mount_without_a_source(tmp_path: Path) -> None:
    """The word is missing then; the controllers follow it."""
    files = {
        "proc/self/mountinfo": mount("/sys/fs/cgroup/cpu", "cgroup", "rw,cpu", source=""),
        "proc/self/cgroup": "4:cpu:/\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    assert cpu_quota(write_files(tmp_path, files)) is not None


def test_room_is_what_the_tightest_level_leaves(tmp_path: Path) -> None:
    """Limit and room may come from different levels: a large pod that is nearly full binds first."""
    files = {
        "proc/self/mountinfo": V2,
        "proc/self/cgroup": "0::/pod/container\n",
        "sys/fs/cgroup/pod/memory.max": f"{8 * GIB}\n",
        "sys/fs/cgroup/pod/memory.current": f"{7 * GIB}\n",
        "sys/fs/cgroup/pod/container/memory.max": f"{4 * GIB}\n",
        "sys/fs/cgroup/pod/container/memory.current": f"{1 * GIB}\n",
    }
    limit = memory_limit(write_files(tmp_path, files))
    assert limit is not None
    assert (limit.limit_bytes, limit.room_bytes) == (4 * GIB, 1 * GIB)


def test_clean_file_cache_is_room(tmp_path: Path) -> None:
    """A data set that was read once does not count as taken: the kernel drops it first."""
    files = {
        "proc/self/mountinfo": V2,
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": f"{4 * GIB}\n",
        "sys/fs/cgroup/memory.current": f"{4 * GIB}\n",
        "sys/fs/cgroup/memory.stat": f"anon {1 * GIB}\ninactive_file {3 * GIB}\n",
    }
    limit = memory_limit(write_files(tmp_path, files))
    assert limit is not None
    assert limit.room_bytes == 3 * GIB


def test_memory_high_is_a_limit(tmp_path: Path) -> None:
    """Above memory.high the kernel slows a process to a crawl."""
    files = {
        "proc/self/mountinfo": V2,
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": "max\n",
        "sys/fs/cgroup/memory.high": f"{3 * GIB}\n",
    }
    limit = memory_limit(write_files(tmp_path, files))
    assert limit is not None
    assert limit.limit_bytes == 3 * GIB


def test_version_1_writes_no_limit_as_a_huge_number(tmp_path: Path) -> None:
    """The largest multiple of the page size is no limit of nine exabytes."""
    files = {
        "proc/self/mountinfo": V1_MEMORY,
        "proc/self/cgroup": "9:memory:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    assert memory_limit(write_files(tmp_path, files)) is None


def test_both_versions_side_by_side(tmp_path: Path) -> None:
    """A hybrid host limits memory by version 1, while version 2 exists without controllers."""
    files = {
        "proc/self/mountinfo": V1_MEMORY + mount("/sys/fs/cgroup/unified", "cgroup2"),
        "proc/self/cgroup": "9:memory:/job\n0::/job\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{GIB}\n",
        "sys/fs/cgroup/unified/job/cgroup.procs": "1\n",
    }
    limit = memory_limit(write_files(tmp_path, files))
    assert limit is not None
    assert limit.limit_bytes == GIB


def test_system_without_control_groups(tmp_path: Path) -> None:
    """Where /proc has nothing to say there is no limit, and no error."""
    assert cpu_quota(tmp_path) is None
    assert memory_limit(tmp_path) is None


def test_tightest_limit_on_processes_holds(tmp_path: Path) -> None:
    """Docker sets one on its own group."""
    files = {
        "proc/self/mountinfo": V2,
        "proc/self/cgroup": "0::/docker/abc\n",
        "sys/fs/cgroup/docker/pids.max": "max\n",
        "sys/fs/cgroup/docker/abc/pids.max": "100\n",
    }
    assert process_limit(write_files(tmp_path, files)) == 100
    assert process_limit(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("free", "limit", "used", "available"),
    [
        (8 * GIB, None, None, 8 * GIB),
        (8 * GIB, 4 * GIB, GIB, 3 * GIB),
        (GIB, 4 * GIB, GIB, GIB),
        (None, None, None, None),
    ],
)
def test_what_is_available_is_within_the_limit(
    tmp_path: Path, free: int | None, limit: int | None, used: int | None, available: int | None
) -> None:
    """A container on a large host: what the host has free is not the container's."""
    files = {"proc/self/mountinfo": V2, "proc/self/cgroup": "0::/job\n"}
    if free is not None:
        files["proc/meminfo"] = f"MemTotal:       67108864 kB\nMemAvailable:   {free // 1024} kB\n"
    if limit is not None:
        files |= {"sys/fs/cgroup/job/memory.max": f"{limit}\n", "sys/fs/cgroup/job/memory.current": f"{used}\n"}
    assert available_bytes(write_files(tmp_path, files)) == available
