"""Machines that are not here: NVML readings and host file trees, built from the public specifications.

The fake NVML answers as the driver does for the card, with pynvml's own error classes. The four machines are
those of the five hand-written tuning guides that autotune is measured against.
"""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest

from autotune.hardware import Hardware, host, probe_host

MIB, GIB = 2**20, 2**30
NO_ENVIRONMENT: Mapping[str, str] = {}


def error(code: int) -> Exception:
    """The exception that pynvml raises for an NVML code."""
    return pynvml.NVMLError(code)


@dataclass(eq=False)
class SliceSpec:
    """A slice of a partitioned card."""

    name: str
    uuid: str
    memory_bytes: int


@dataclass(eq=False)
class CardSpec:
    """A card as its maker specifies it, and what runs on it."""

    name: str
    uuid: str
    memory_bytes: int
    capability: tuple[int, int]
    power_limit_watts: int
    max_clock_mhz: int
    memory_clock_mhz: int
    used_bytes: int = 300 * MIB
    slices: tuple[SliceSpec, ...] = ()
    computing: tuple[tuple[int, int | None], ...] = ()
    displaying: tuple[tuple[int, int | None], ...] = ()
    fails: Mapping[str, int] = field(default_factory=dict)


def rtx_3060() -> CardSpec:
    """GeForce RTX 3060 12 GB: GA106, 28 multiprocessors, 170 W."""
    return CardSpec("NVIDIA GeForce RTX 3060", "GPU-30600000-0000", 12288 * MIB, (8, 6), 170, 2100, 7501)


def rtx_4070() -> CardSpec:
    """GeForce RTX 4070 12 GB: AD104, 46 multiprocessors, 200 W."""
    return CardSpec("NVIDIA GeForce RTX 4070", "GPU-40700000-0000", 12282 * MIB, (8, 9), 200, 3105, 10501)


def rtx_2070() -> CardSpec:
    """GeForce RTX 2070 8 GB: TU106, 36 multiprocessors with tensor cores for fp16, 175 W."""
    return CardSpec("NVIDIA GeForce RTX 2070", "GPU-20700000-0000", 8192 * MIB, (7, 5), 175, 2100, 7001)


def gtx_1070() -> CardSpec:
    """GeForce GTX 1070 8 GB: GP104, 15 multiprocessors without tensor cores, 151 W."""
    return CardSpec("NVIDIA GeForce GTX 1070", "GPU-10700000-0000", 8192 * MIB, (6, 1), 151, 1911, 4004)


def gtx_1660_ti() -> CardSpec:
    """GeForce GTX 1660 Ti 6 GB: TU116, compute capability 7.5 like the RTX 20 series, but no tensor cores."""
    return CardSpec("NVIDIA GeForce GTX 1660 Ti", "GPU-16600000-0000", 6144 * MIB, (7, 5), 120, 2145, 6001)


def rtx_a6000() -> CardSpec:
    """RTX A6000 48 GB: GA102, 84 multiprocessors, 300 W."""
    return CardSpec("NVIDIA RTX A6000", "GPU-a6000000-0000", 49140 * MIB, (8, 6), 300, 2100, 8001)


def partitioned_a100() -> CardSpec:
    """A100 40 GB in MIG mode with a 3g.20gb and a 1g.5gb slice; it tells no utilisation then."""
    return CardSpec(
        "NVIDIA A100-SXM4-40GB", "GPU-a1000000-0000", 40960 * MIB, (8, 0), 400, 1410, 1215,
        slices=(
            SliceSpec("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "MIG-30000000-0000", 20096 * MIB),
            SliceSpec("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "MIG-10000000-0000", 4864 * MIB),
        ),
        fails={"nvmlDeviceGetUtilizationRates": pynvml.NVML_ERROR_NOT_SUPPORTED},
    )  # fmt: skip


class FakeNvml:
    """Stands in for the `pynvml` module: the calls that autotune makes, over specified cards."""

    NVMLError = pynvml.NVMLError
    NVML_CLOCK_SM = pynvml.NVML_CLOCK_SM
    NVML_CLOCK_MEM = pynvml.NVML_CLOCK_MEM
    NVML_TEMPERATURE_GPU = pynvml.NVML_TEMPERATURE_GPU

    def __init__(self, *cards: CardSpec, init_error: int | None = None) -> None:
        self.cards = cards
        self.init_error = init_error
        self.open = 0

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise error(self.init_error)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def __getattribute__(self, name: str) -> Any:
        """A call about a device fails where its card says so."""
        found = object.__getattribute__(self, name)
        if not name.startswith("nvmlDevice"):
            return found

        def call(*arguments: Any) -> Any:
            device = arguments[0] if arguments else None
            card = next((card for card in self.cards if device in (card, *card.slices)), None)
            if card is not None and name in card.fails:
                raise error(card.fails[name])
            return found(*arguments)

        return call

    def nvmlSystemGetDriverVersion(self) -> str:
        return "550.54.15"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 12040

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> CardSpec:
        return next(card for card in self.cards if card.uuid == uuid)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> CardSpec:
        card = self.cards[index]
        if "nvmlDeviceGetHandleByIndex" in card.fails:
            raise error(card.fails["nvmlDeviceGetHandleByIndex"])
        return card

    def nvmlDeviceGetName(self, device: CardSpec | SliceSpec) -> str:
        return device.name

    def nvmlDeviceGetUUID(self, device: CardSpec | SliceSpec) -> str:
        return device.uuid

    def nvmlDeviceGetMemoryInfo(self, device: CardSpec | SliceSpec) -> Any:
        used = device.used_bytes if isinstance(device, CardSpec) else 12 * MIB
        return SimpleNamespace(total=device.memory_bytes, free=device.memory_bytes - used, used=used)

    def nvmlDeviceGetCudaComputeCapability(self, card: CardSpec) -> tuple[int, int]:
        return card.capability

    def nvmlDeviceGetEnforcedPowerLimit(self, card: CardSpec) -> int:
        return self._whole(card).power_limit_watts * 1000

    def nvmlDeviceGetPowerUsage(self, card: CardSpec) -> int:
        return self._whole(card).power_limit_watts * 100

    def nvmlDeviceGetClockInfo(self, card: CardSpec, clock: int) -> int:
        return 210 if clock == pynvml.NVML_CLOCK_SM else self._whole(card).memory_clock_mhz

    def nvmlDeviceGetMaxClockInfo(self, card: CardSpec, clock: int) -> int:
        return self._whole(card).max_clock_mhz if clock == pynvml.NVML_CLOCK_SM else card.memory_clock_mhz

    def nvmlDeviceGetTemperatureV(self, card: CardSpec, sensor: int) -> int:
        # Drivers up to 570 do not have the newer call.
        raise error(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    def nvmlDeviceGetTemperature(self, card: CardSpec, sensor: int) -> int:
        return 41

    def nvmlDeviceGetUtilizationRates(self, card: CardSpec) -> Any:
        return SimpleNamespace(gpu=7, memory=3)

    def nvmlDeviceGetMigMode(self, card: CardSpec) -> list[int]:
        if not card.name.startswith("NVIDIA A100"):
            raise error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [int(bool(card.slices)), int(bool(card.slices))]

    def nvmlDeviceGetMaxMigDeviceCount(self, card: CardSpec) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: CardSpec, place: int) -> SliceSpec:
        # The places between two slices are empty, as they are on a real card.
        if place % 2 or place // 2 >= len(card.slices):
            raise error(pynvml.NVML_ERROR_NOT_FOUND)
        return card.slices[place // 2]

    def nvmlDeviceGetComputeRunningProcesses(self, device: CardSpec | SliceSpec) -> list[Any]:
        return _processes(device.computing) if isinstance(device, CardSpec) else []

    def nvmlDeviceGetGraphicsRunningProcesses(self, device: CardSpec | SliceSpec) -> list[Any]:
        if isinstance(device, SliceSpec):
            raise error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return _processes(device.displaying)

    def _whole(self, card: Any) -> CardSpec:
        """Power and clocks belong to the whole card: a slice has none of its own."""
        if not isinstance(card, CardSpec):
            raise error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return card


def _processes(listed: tuple[tuple[int, int | None], ...]) -> list[Any]:
    return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in listed]


@dataclass(frozen=True)
class HostSpec:
    """A host: its processor, its memory, and the limits that a container sets."""

    model: str = "Intel(R) Core(TM) i5-9400F CPU @ 2.90GHz"
    cores: int = 6
    threads_per_core: int = 1
    flags: str = "fpu sse2 avx fma avx2"
    memory_bytes: int = 16 * GIB
    shm_bytes: int = 8 * GIB
    files: Mapping[str, str] = field(default_factory=dict)


I5_9400F = HostSpec()
RYZEN_5800X = HostSpec("AMD Ryzen 7 5800X 8-Core Processor", 8, 2, "avx fma avx2", 32 * GIB, 16 * GIB)
I5_13400F = HostSpec("13th Gen Intel(R) Core(TM) i5-13400F", 10, 1, "avx fma avx2 avx_vnni", 32 * GIB, 16 * GIB)
SIXTEEN_CORES = HostSpec("AMD EPYC 7313P 16-Core Processor", 16, 1, "avx fma avx2", 60 * GIB, 30 * GIB)
SAPPHIRE_RAPIDS = HostSpec(
    "Intel(R) Xeon(R) Gold 6430", 8, 2,
    "avx fma avx2 avx512f avx512_vnni avx_vnni avx512_bf16 avx512_fp16 amx_tile amx_int8 amx_bf16",
    64 * GIB, 32 * GIB,
)  # fmt: skip

GUIDES: dict[str, tuple[HostSpec, Callable[[], CardSpec]]] = {
    "rtx-3060": (RYZEN_5800X, rtx_3060),
    "rtx-4070": (I5_13400F, rtx_4070),
    "gtx-1070": (I5_9400F, gtx_1070),
    "rtx-2070": (I5_9400F, rtx_2070),
    "rtx-a6000": (SIXTEEN_CORES, rtx_a6000),
}
"""The machines of the guides; of the 8 GB card both a model with tensor cores and one without."""


def write_files(root: Path, files: Mapping[str, str]) -> Path:
    """Writes files below a folder that stands for ``/``."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def write_host(root: Path, spec: HostSpec) -> Path:
    """Builds the file tree of a Linux host."""
    files = {"etc/os-release": 'PRETTY_NAME="Ubuntu 24.04 LTS"\n', "proc/self/cgroup": "0::/\n"}
    numbers = range(spec.cores * spec.threads_per_core)
    blocks = [f"processor\t: {number}\nmodel name\t: {spec.model}\nflags\t\t: {spec.flags}\n" for number in numbers]
    files["proc/cpuinfo"] = "\n".join(blocks)
    files["proc/self/mountinfo"] = "22 1 259:2 / / rw - ext4 /dev/nvme0n1p2 rw\n" + mount("/sys/fs/cgroup", "cgroup2")
    (root / "dev/shm").mkdir(parents=True)
    return write_files(root, {**files, **spec.files})


def mount(point: str, kind: str, options: str = "rw", top: str = "/", source: str = "cgroup") -> str:
    """A line of ``/proc/self/mountinfo``."""
    return f"31 22 0:28 {top} {point} rw,nosuid - {kind} {source} {options}\n"


def pretend(monkeypatch: pytest.MonkeyPatch, spec: HostSpec) -> None:
    """Makes this process believe in the memory and the cores of another host, and that it runs on Linux."""
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    memory = SimpleNamespace(total=spec.memory_bytes, available=spec.memory_bytes * 9 // 10)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    counts = {True: spec.cores * spec.threads_per_core, False: spec.cores}
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: counts[logical])
    monkeypatch.setattr(host.shutil, "disk_usage", lambda _: SimpleNamespace(free=spec.shm_bytes))


def machine(
    monkeypatch: pytest.MonkeyPatch,
    root: Path,
    spec: HostSpec,
    *cards: CardSpec,
    environ: Mapping[str, str] = NO_ENVIRONMENT,
) -> Hardware:
    """What probing finds on a host with these cards."""
    pretend(monkeypatch, spec)
    return probe_host(
        root=write_host(root, spec),
        nvml=FakeNvml(*cards),
        environ=environ,
        usable_cpus=spec.cores * spec.threads_per_core,
    )


def hardware_of(spec: HostSpec, *cards: CardSpec) -> Hardware:
    """The same, for tests that need nothing else of that machine."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        return machine(patch, Path(folder), spec, *cards)
