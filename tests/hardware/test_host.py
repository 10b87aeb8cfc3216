"""The CPU, its budget and its precisions; memory and /dev/shm; on Linux trees, macOS and Windows."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from autotune.hardware import host
from tests.hardware.readings import (
    GIB,
    I5_9400F,
    MIB,
    RYZEN_5800X,
    SAPPHIRE_RAPIDS,
    HostSpec,
    mount,
    pretend,
    write_files,
    write_host,
)


def limited(spec: HostSpec, **files: str) -> HostSpec:
    """A host whose own control group holds these files."""
    return dataclasses.replace(
        spec, files={f"sys/fs/cgroup/{name.replace('_', '.', 1)}": text for name, text in files.items()}
    )


def test_cpu_of_a_desktop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Model and instruction sets come from /proc, the cores from psutil."""
    pretend(monkeypatch, I5_9400F)
    unread: dict[str, str] = {}
    cpu = host.read_cpu(unread, write_host(tmp_path, I5_9400F), usable=6)
    assert cpu.model == "Intel(R) Core(TM) i5-9400F CPU @ 2.90GHz"
    assert (cpu.physical_cores, cpu.logical_cores, cpu.budget) == (6, 6, 6)
    assert cpu.isa == ("avx", "avx2", "fma")
    assert unread == {}


def test_threads_that_share_a_core_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight cores with two threads each are sixteen logical CPUs."""
    pretend(monkeypatch, RYZEN_5800X)
    cpu = host.read_cpu({}, write_host(tmp_path, RYZEN_5800X), usable=16)
    assert (cpu.physical_cores, cpu.logical_cores) == (8, 16)


@pytest.mark.parametrize(("quota", "budget"), [("200000 100000", 2), ("350000 100000", 4), ("10000 100000", 1)])
def test_quota_bounds_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, budget: int) -> None:
    """A quota is rounded up, and leaves one CPU at least."""
    pretend(monkeypatch, I5_9400F)
    cpu = host.read_cpu({}, write_host(tmp_path, limited(I5_9400F, cpu_max=quota)), usable=6)
    assert cpu.budget == budget
    assert "quota" in cpu.budget_reason


def test_affinity_bounds_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the operating system leaves counts where it is less than the quota."""
    pretend(monkeypatch, I5_9400F)
    cpu = host.read_cpu({}, write_host(tmp_path, limited(I5_9400F, cpu_max="500000 100000")), usable=3)
    assert cpu.budget == 3
    assert "leaves 3 of 6" in cpu.budget_reason


def test_a_mask_of_more_cpus_than_there_are_is_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may be shown fewer than the host has."""
    pretend(monkeypatch, I5_9400F)
    cpu = host.read_cpu({}, write_host(tmp_path, I5_9400F), usable=64)
    assert (cpu.budget, cpu.budget_reason[:19]) == (6, "all 6 logical CPUs ")


def test_budget_without_any_limit_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where nothing limits, the reason is a sentence that can be printed."""
    pretend(monkeypatch, I5_9400F)
    cpu = host.read_cpu({}, write_host(tmp_path, I5_9400F), usable=6)
    assert cpu.budget_reason.startswith("all 6 logical CPUs are usable")


def test_budget_asks_the_operating_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a given count the affinity mask of this very process is respected."""
    pretend(monkeypatch, I5_9400F)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        cpu = host.read_cpu({}, write_host(tmp_path, I5_9400F))
    finally:
        os.sched_setaffinity(0, before)
    assert cpu.budget == 1
    assert "the affinity mask leaves 1 of 6" in cpu.budget_reason


def test_bf16_needs_instructions_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A desktop without them gets fp32 only."""
    pretend(monkeypatch, I5_9400F)
    cpu = host.read_cpu({}, write_host(tmp_path, I5_9400F), usable=6)
    assert cpu.precisions == ("fp32",)
    assert "emulated" in cpu.precision_reason


def test_bf16_is_offered_with_amx_and_fp16_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fp16 stays out although the CPU has instructions for it: torch has few kernels."""
    pretend(monkeypatch, SAPPHIRE_RAPIDS)
    cpu = host.read_cpu({}, write_host(tmp_path, SAPPHIRE_RAPIDS), usable=16)
    assert "avx512_fp16" in cpu.isa
    assert cpu.precisions == ("fp32", "bf16")
    assert "amx_bf16" in cpu.precision_reason


def test_arm_features_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arm calls the flags Features, and names the board elsewhere."""
    pretend(monkeypatch, I5_9400F)
    files = {
        "proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimd asimdhp sve bf16 i8mm\nCPU part\t: 0xd40\n",
        "proc/device-tree/model": "Graviton board\x00",
    }
    cpu = host.read_cpu({}, write_files(tmp_path, files), usable=1)
    assert cpu.isa == ("neon", "fp16", "sve", "bf16", "i8mm")
    assert cpu.model == "Graviton board"
    assert "bf16" in cpu.precisions


def test_an_arm_processor_without_a_name_is_named_by_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers have neither a model name nor a board: two of them are told apart all the same."""
    pretend(monkeypatch, I5_9400F)
    text = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\nprocessor\t: 1\nCPU part\t: 0xd05\n"
    cpu = host.read_cpu({}, write_files(tmp_path, {"proc/cpuinfo": text}), usable=1)
    assert cpu.model == "Arm 0x41 part 0xd0c"


def test_what_linux_does_not_tell_is_none_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty /proc, and nothing of the cores, gives no exception and no guess."""
    pretend(monkeypatch, I5_9400F)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 2 if logical else None)
    unread: dict[str, str] = {}
    cpu = host.read_cpu(unread, tmp_path, usable=2)
    assert (cpu.model, cpu.physical_cores, cpu.isa) == (None, None, ())
    assert set(unread) == {"cpu.model", "cpu.physical_cores", "cpu.isa"}


def test_macos_is_asked_through_sysctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An Apple chip has bf16 instructions, but torch has no kernels for them there."""
    told = "machdep.cpu.brand_string: Apple M2\nhw.optional.neon: 1\nhw.optional.arm.FEAT_BF16: 1\n"
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=told))
    cpu = host.read_cpu({}, tmp_path, usable=8)
    assert cpu.model == "Apple M2"
    assert cpu.isa == ("neon", "bf16")
    assert cpu.precisions == ("fp32",)


def test_macos_without_sysctl_is_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be asked is None with its reason."""

    def missing(*arguments: object, **options: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(subprocess, "run", missing)
    unread: dict[str, str] = {}
    assert host.read_cpu(unread, tmp_path, usable=8).model is None
    assert {"cpu.model", "cpu.isa"} <= set(unread)


def test_windows_has_no_instruction_sets_to_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is read all the same."""
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    monkeypatch.setattr(platform, "processor", lambda: "Intel64 Family 6")
    monkeypatch.setattr(psutil, "cpu_count", lambda **_: 6)
    unread: dict[str, str] = {}
    cpu = host.read_cpu(unread, tmp_path, usable=6)
    assert (cpu.model, cpu.physical_cores) == ("Intel64 Family 6", 6)
    assert set(unread) == {"cpu.isa"}
    assert "could not be read" in cpu.precision_reason


def test_memory_is_bounded_by_the_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container with 4 GiB on a host with 16 GiB has what its limit leaves."""
    pretend(monkeypatch, I5_9400F)
    spec = limited(I5_9400F, memory_max=str(4 * GIB), memory_current=str(GIB))
    memory = host.read_memory({}, write_host(tmp_path, spec))
    assert memory.cgroup_limit_bytes == 4 * GIB
    assert memory.available_bytes == 3 * GIB
    assert memory.total_bytes == 16 * GIB


def test_limit_above_what_is_available_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of a terabyte does not make memory appear."""
    pretend(monkeypatch, I5_9400F)
    memory = host.read_memory({}, write_host(tmp_path, limited(I5_9400F, memory_max=str(1024 * GIB))))
    assert memory.available_bytes == 16 * GIB * 9 // 10


def test_no_limit_is_none_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Null never stands alone."""
    pretend(monkeypatch, I5_9400F)
    unread: dict[str, str] = {}
    assert host.read_memory(unread, write_host(tmp_path, I5_9400F)).cgroup_limit_bytes is None
    assert unread == {"memory.cgroup_limit_bytes": "no cgroup sets a limit"}


def test_shared_memory_of_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker gives 64 MB unless it is asked for more."""
    spec = dataclasses.replace(I5_9400F, shm_bytes=64 * MIB)
    pretend(monkeypatch, spec)
    assert host.read_memory({}, write_host(tmp_path, spec)).shm_bytes == 64 * MIB


def test_system_without_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only Linux has /dev/shm; elsewhere that is None with its reason, not 0."""
    pretend(monkeypatch, I5_9400F)
    unread: dict[str, str] = {}
    assert host.read_memory(unread, tmp_path).shm_bytes is None
    assert "memory.shm_bytes" in unread


def test_control_group_above_the_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget sees an ancestor's quota that lies above the process's own group."""
    pretend(monkeypatch, I5_9400F)
    files = {
        "proc/self/cgroup": "0::/kubepods/pod1/main\n",
        "proc/self/mountinfo": mount("/sys/fs/cgroup", "cgroup2"),
        "sys/fs/cgroup/kubepods/pod1/cpu.max": "150000 100000\n",
    }
    cpu = host.read_cpu({}, write_host(tmp_path, dataclasses.replace(I5_9400F, files=files)), usable=6)
    assert cpu.budget == 2
    assert "/kubepods/pod1" in cpu.budget_reason


def test_a_clock_that_is_set_ends_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """By psutil, start times count from when the machine started, which moves with the clock."""
    described = json.loads(json.dumps(host.this_process()))
    assert host.running(described) == os.getpid()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: 1.0)
    assert host.running(described) == os.getpid()


@pytest.mark.parametrize("changed", [{0: "another container"}, {1: 2**30}, {1: []}, {2: "another boot 1"}, {2: None}])
def test_a_process_that_ended_or_runs_elsewhere_is_not_taken_for_another(changed: dict[int, object]) -> None:
    """By each part of what describes it."""
    described = host.this_process()
    for place, value in changed.items():
        described[place] = value
    assert host.running(described) is None
