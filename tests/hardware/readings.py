"""Machines that are not here: NVML readings and host file trees, built from the public specifications.

The fake NVML answers as the driver does for the card, with pynvml's own error classes. The four machines are
those of the five hand-written tuning guides that autotune is measured against.
"""

from __future__ import annotations

import platform
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
    sm_count: int


@dataclass(eq=False)
class CardSpec:
    """A card as its maker specifies it, and what runs on it."""

    name: str
    uuid: str
    memory_bytes: int
    capability: tuple[int, int]
    cores: int
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
    return CardSpec("NVIDIA GeForce RTX 3060", "GPU-30600000-0000", 12288 * MIB, (8, 6), 3584, 170, 2100, 7501)


def rtx_4070() -> CardSpec:
    """GeForce RTX 4070 12 GB: AD104, 46 multiprocessors, 200 W."""
    return CardSpec("NVIDIA GeForce RTX 4070", "GPU-40700000-0000", 12282 * MIB, (8, 9), 5888, 200, 3105, 10501)


def rtx_2070() -> CardSpec:
    """GeForce RTX 2070 8 GB: TU106, 36 multiprocessors with tensor cores for fp16, 175 W."""
    return CardSpec("NVIDIA GeForce RTX 2070", "GPU-20700000-0000", 8192 * MIB, (7, 5), 2304, 175, 2100, 7001)


def gtx_1070() -> CardSpec:
    """GeForce GTX 1070 8 GB: GP104, 15 multiprocessors without tensor cores, 151 W."""
    return CardSpec("NVIDIA GeForce GTX 1070", "GPU-10700000-0000", 8192 * MIB, (6, 1), 1920, 151, 1911, 4004)


def gtx_1660_ti() -> CardSpec:
    """GeForce GTX 1660 Ti 6 GB: TU116, compute capability 7.5 like the RTX 20 series, but no tensor cores."""
    return CardSpec("NVIDIA GeForce GTX 1660 Ti", "GPU-16600000-0000", 6144 * MIB, (7, 5), 1536, 120, 2145, 6001)


def rtx_a6000() -> CardSpec:
    """RTX A6000 48 GB: GA102, 84 multiprocessors, 300 W."""
    return CardSpec("NVIDIA RTX A6000", "GPU-a6000000-0000", 49140 * MIB, (8, 6), 10752, 300, 2100, 8001)


def partitioned_a100() -> CardSpec:
    """A100 40 GB in MIG mode with a 3g.20gb and a 1g.5gb slice; it tells no utilisation then."""
    return CardSpec(
        "NVIDIA A100-SXM4-40GB", "GPU-a1000000-0000", 40960 * MIB, (8, 0), 6912, 400, 1410, 1215,
        slices=(
            SliceSpec("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "MIG-30000000-0000", 20096 * MIB, 42),
            SliceSpec("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "MIG-10000000-0000", 4864 * MIB, 14),
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

    def nvmlInit(self) -> None:  # noqa: N802
        if self.init_error is not None:
            raise error(self.init_error)
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def __getattribute__(self, name: str) -> Any:
        """Every call about a device fails as its card says it should."""
        found = object.__getattribute__(self, name)
        if not name.startswith("nvmlDevice"):
            return found

        def call(target: Any, *arguments: Any) -> Any:
            fails = target.fails if isinstance(target, CardSpec) else {}
            if isinstance(target, SliceSpec):
                fails = next(card.fails for card in self.cards if target in card.slices)
            if name in fails:
                raise error(fails[name])
            return found(target, *arguments)

        return call

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "550.54.15"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        return 12040

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        raise NotImplementedError  # replaced below: it takes no device

    def nvmlDeviceGetHandleByIndex(self, index: int) -> CardSpec:  # noqa: N802
        card = self.cards[index]
        if "nvmlDeviceGetHandleByIndex" in card.fails:
            raise error(card.fails["nvmlDeviceGetHandleByIndex"])
        return card

    def nvmlDeviceGetName(self, device: CardSpec | SliceSpec) -> str:  # noqa: N802
        return device.name

    def nvmlDeviceGetUUID(self, device: CardSpec | SliceSpec) -> str:  # noqa: N802
        return device.uuid

    def nvmlDeviceGetMemoryInfo(self, device: CardSpec | SliceSpec) -> Any:  # noqa: N802
        used = device.used_bytes if isinstance(device, CardSpec) else 12 * MIB
        return SimpleNamespace(total=device.memory_bytes, free=device.memory_bytes - used, used=used)

    def nvmlDeviceGetCudaComputeCapability(self, card: CardSpec) -> tuple[int, int]:  # noqa: N802
        return card.capability

    def nvmlDeviceGetNumGpuCores(self, card: CardSpec) -> int:  # noqa: N802
        return card.cores

    def nvmlDeviceGetAttributes(self, device: CardSpec | SliceSpec) -> Any:  # noqa: N802
        if isinstance(device, CardSpec):
            raise error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(multiprocessorCount=device.sm_count)

    def nvmlDeviceGetEnforcedPowerLimit(self, card: CardSpec) -> int:  # noqa: N802
        return self._whole(card).power_limit_watts * 1000

    def nvmlDeviceGetPowerUsage(self, card: CardSpec) -> int:  # noqa: N802
        return self._whole(card).power_limit_watts * 100

    def nvmlDeviceGetClockInfo(self, card: CardSpec, clock: int) -> int:  # noqa: N802
        return 210 if clock == pynvml.NVML_CLOCK_SM else self._whole(card).memory_clock_mhz

    def nvmlDeviceGetMaxClockInfo(self, card: CardSpec, clock: int) -> int:  # noqa: N802
        return self._whole(card).max_clock_mhz if clock == pynvml.NVML_CLOCK_SM else card.memory_clock_mhz

    def nvmlDeviceGetTemperatureV(self, card: CardSpec, sensor: int) -> int:  # noqa: N802
        # Drivers up to 570 do not have the newer call.
        raise error(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    def nvmlDeviceGetTemperature(self, card: CardSpec, sensor: int) -> int:  # noqa: N802
        return 41

    def nvmlDeviceGetUtilizationRates(self, card: CardSpec) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=7, memory=3)

    def nvmlDeviceGetMigMode(self, card: CardSpec) -> list[int]:  # noqa: N802
        if not card.name.startswith("NVIDIA A100"):
            raise error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [int(bool(card.slices)), int(bool(card.slices))]

    def nvmlDeviceGetMaxMigDeviceCount(self, card: CardSpec) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: CardSpec, place: int) -> SliceSpec:  # noqa: N802
        # The places between two slices are empty, as they are on a real card.
        if place % 2 or place // 2 >= len(card.slices):
            raise error(pynvml.NVML_ERROR_NOT_FOUND)
        return card.slices[place // 2]

    def nvmlDeviceGetComputeRunningProcesses(self, device: CardSpec | SliceSpec) -> list[Any]:  # noqa: N802
        return _processes(device.computing) if isinstance(device, CardSpec) else []

    def nvmlDeviceGetGraphicsRunningProcesses(self, device: CardSpec | SliceSpec) -> list[Any]:  # noqa: N802
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
