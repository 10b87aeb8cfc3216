"""Reads the host without torch: the CPU and how much of it may be used, and the memory.

`root` is the folder that stands for ``/``, so that other machines can be built as file trees.
A value that cannot be read stays None, and each reader puts the reason into its `unread` mapping.
"""

from __future__ import annotations

import math
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import psutil

from autotune.hardware.model import Cpu, Memory
from autotune.sandbox.cgroups import ROOT, cpu_quota, memory_limit, read_text
from autotune.sandbox.system import LINUX, stat_of

_X86_FLAGS = (
    "avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "avx512_fp16",
    "amx_tile", "amx_int8", "amx_bf16", "amx_fp16",
)  # fmt: skip
_ARM_FLAGS = {
    "asimd": "neon", "asimdhp": "fp16", "sve": "sve", "sve2": "sve2", "sme": "sme", "bf16": "bf16", "i8mm": "i8mm"
}  # fmt: skip
_MACOS_KEYS = {
    "hw.optional.avx1_0": "avx", "hw.optional.avx2_0": "avx2", "hw.optional.fma": "fma",
    "hw.optional.avx512f": "avx512f", "hw.optional.neon": "neon", "hw.optional.AdvSIMD": "neon",
    "hw.optional.arm.FEAT_FP16": "fp16", "hw.optional.arm.FEAT_BF16": "bf16",
    "hw.optional.arm.FEAT_I8MM": "i8mm",
}  # fmt: skip
_BF16_INSTRUCTIONS = ("amx_bf16", "avx512_bf16", "bf16")


def read_cpu(unread: dict[str, str], root: Path = ROOT, *, usable: int | None = None) -> Cpu:
    """The processor and how much of it this process may use: `usable` CPUs; None asks the operating system."""
    system = platform.system()
    if system == "Linux":
        cpuinfo = _cpuinfo(root)
        board = read_text(root / "proc/device-tree/model").strip("\x00\n ")  # Arm often names only that
        model = cpuinfo.get("model name") or cpuinfo.get("Hardware") or board or _arm_core(cpuinfo)
        isa = _linux_isa(cpuinfo)
    else:
        model, isa = _macos_cpu() if system == "Darwin" else (_windows_model(), ())
    logical, physical = psutil.cpu_count() or 1, psutil.cpu_count(logical=False)
    if model is None:
        unread["cpu.model"] = f"{system} does not name the processor"
    if physical is None:
        unread["cpu.physical_cores"] = f"{system} does not report which logical CPUs share a core"
    if not isa:
        unread["cpu.isa"] = f"no instruction-set flags could be read on {system} ({platform.machine()})"
    budget, budget_reason = _budget(logical, usable if usable is not None else _usable_cpus(logical), root)
    precisions, precision_reason = _precisions(isa, system)
    return Cpu(
        model=model,
        physical_cores=physical,
        logical_cores=logical,
        budget=budget,
        budget_reason=budget_reason,
        isa=isa,
        precisions=precisions,
        precision_reason=precision_reason,
    )


def read_memory(unread: dict[str, str], root: Path = ROOT) -> Memory:
    """Host memory, and the shared memory through which loader workers send batches."""
    machine = psutil.virtual_memory()
    limit = memory_limit(root)
    if limit is None:
        unread["memory.cgroup_limit_bytes"] = (
            "no cgroup sets a limit" if platform.system() == "Linux" else f"{platform.system()} has no cgroups"
        )
    return Memory(
        total_bytes=machine.total,
        available_bytes=min(machine.available, limit.room_bytes) if limit else machine.available,
        cgroup_limit_bytes=limit.limit_bytes if limit else None,
        shm_bytes=_shm_bytes(unread, root),
    )


def _budget(logical: int, usable: int, root: Path) -> tuple[int, str]:
    """How many CPUs this process may keep busy, and the reason: the affinity mask leaves `usable` of `logical`.

    A quota of 3.5 CPUs counts as 4, as in the JVM and Go: the fourth is idle half of the time, which costs less than a
    CPU that is never used.
    """
    usable = min(usable, logical)  # a container may be shown fewer CPUs than its mask has
    quota = cpu_quota(root)
    if quota is not None and math.ceil(quota.cpus) < usable:
        reason = f"the cgroup {quota.group} has a quota of {quota.cpus:g} of the {logical} logical CPUs"
        return max(1, math.ceil(quota.cpus)), reason
    if usable < logical:
        return max(1, usable), f"the affinity mask leaves {usable} of {logical} logical CPUs"
    return max(1, usable), f"all {logical} logical CPUs are usable: no affinity mask and no quota limits them"


def _precisions(isa: Collection[str], system: str) -> tuple[tuple[str, ...], str]:
    """The precisions worth trying on a CPU, fp32 first, and why, in one sentence."""
    if system == "Darwin":
        return ("fp32",), "fp32 only: torch has no fast bf16 or fp16 kernels for the CPU on macOS"
    if not isa:
        return ("fp32",), "fp32 only: the CPU's instruction sets could not be read"
    instruction = next((name for name in _BF16_INSTRUCTIONS if name in isa), None)
    if instruction is None:
        return ("fp32",), "fp32 only: without avx512_bf16, amx_bf16 or Arm's bf16 instructions bf16 would be emulated"
    # fp16 is left out even with amx_fp16 or avx512_fp16: few of torch's CPU kernels use them in training.
    reason = f"bf16 runs on the CPU's {instruction} instructions; fp16 is not offered, its CPU kernels are few"
    return ("fp32", "bf16"), reason


def _shm_bytes(unread: dict[str, str], root: Path) -> int | None:
    folder = root / "dev/shm"
    if not folder.is_dir():
        unread["memory.shm_bytes"] = f"{platform.system()} has no /dev/shm here: workers send batches another way"
        return None
    try:
        return shutil.disk_usage(folder).free
    except OSError as error:
        unread["memory.shm_bytes"] = f"it cannot be read: {error.strerror or error}"
        return None


def _usable_cpus(logical: int) -> int:
    """Number of CPUs that the affinity mask leaves; all if the system has none, like macOS."""
    return len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else logical


def _cpuinfo(root: Path) -> dict[str, str]:
    """The fields of the first processor in ``/proc/cpuinfo``."""
    lines = reversed(read_text(root / "proc/cpuinfo").splitlines())
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _arm_core(cpuinfo: dict[str, str]) -> str | None:
    """Two numbers that name an Arm processor, which has no name in ``/proc/cpuinfo``; None for any other."""
    maker, part = cpuinfo.get("CPU implementer"), cpuinfo.get("CPU part")
    return f"Arm {maker} part {part}" if maker and part else None


def _linux_isa(cpuinfo: dict[str, str]) -> tuple[str, ...]:
    """The instruction sets that matter for training; x86 calls them flags, Arm calls them Features."""
    x86, arm = (cpuinfo.get(field, "").split() for field in ("flags", "Features"))
    return *(flag for flag in _X86_FLAGS if flag in x86), *(name for flag, name in _ARM_FLAGS.items() if flag in arm)


def _macos_cpu() -> tuple[str | None, tuple[str, ...]]:
    """The processor's name and instruction sets from ``sysctl``."""
    command = ["/usr/sbin/sysctl", "machdep.cpu.brand_string", "hw.optional"]
    try:
        # A key that this Mac lacks causes a non-zero status, but the others are printed.
        lines = subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return None, ()
    values = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    isa = dict.fromkeys(name for key, name in _MACOS_KEYS.items() if values.get(key) == "1")
    return values.get("machdep.cpu.brand_string") or None, tuple(isa)


def _windows_model() -> str | None:
    """The processor's name from the Windows registry, else Python's name for it."""
    if sys.platform == "win32":
        import winreg

        try:
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"HARDWARE\DESCRIPTION\System\CentralProcessor\0") as key:
                return str(winreg.QueryValueEx(key, "ProcessorNameString")[0]).strip()
        except OSError:
            pass
    return platform.processor() or None


def this_process() -> list[Any]:
    """Identifies this process uniquely: by where its id counts, its id, and its start."""
    return [_place(), os.getpid(), _start_of(os.getpid())]


def running(described: Any) -> int | None:
    """The id of a process that `this_process` described, if it still runs on this machine."""
    try:
        place, pid, start = described
        alive = place == _place() and start == _start_of(pid)
    except (TypeError, ValueError, IndexError, OSError, psutil.Error):
        return None
    return int(pid) if alive else None


def _place() -> str:
    namespace = os.stat("/proc/self/ns/pid").st_ino if LINUX else 0  # containers may share a name, and /tmp
    return f"{platform.node()} {namespace}"


def _start_of(pid: int) -> Any:
    """The start of a process: on Linux in ticks of a boot, because psutil's time moves when the clock is set."""
    boot = ROOT / "proc/sys/kernel/random/boot_id"
    return f"{read_text(boot).strip()} {stat_of(pid)[19]}" if LINUX else psutil.Process(pid).create_time()
