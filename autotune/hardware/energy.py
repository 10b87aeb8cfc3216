"""Energy: counters of the processors (RAPL, also on AMD) and of NVIDIA GPUs, and why a device has none.

Linux offers them as files of microjoules that wrap around at a limit (Documentation/power/powercap in the kernel's
sources). Since 2020 only root may read them by default, because they leak enough information for attacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.hardware.model import Cpu, Gpu
from autotune.stored import DeviceKind

POWERCAP = Path("/sys/class/powercap")
_MEMORY = "dram"
"""The only part of a package that its counter does not include; `psys` includes the packages themselves."""


@dataclass
class _Zone:
    """A counter that wraps around at its limit."""

    counter: Path
    limit: int
    last: int
    spent: int = 0

    def read(self) -> int:
        """Microjoules since the counter was opened."""
        now = int(self.counter.read_text())
        self.spent += now - self.last if now >= self.last else now + self.limit - self.last
        self.last = now
        return self.spent


@dataclass
class CpuEnergy:
    """Energy of all processor packages, and of their memory where it is reported, from now on.

    Read it before a counter wraps around, which takes at least minutes at full power.
    """

    _zones: list[_Zone] = field(default_factory=list)

    @classmethod
    def open(cls, root: Path = POWERCAP) -> CpuEnergy | None:
        """Opens the counters; None if there are none, or they cannot be read."""
        try:
            zones = [_opened(folder) for folder in _folders(root)]
        except (OSError, ValueError):
            return None
        return cls(zones) if zones else None

    def joules(self) -> float | None:
        """Joules since it was opened; None if a counter can no longer be read."""
        try:
            return sum(zone.read() for zone in self._zones) / 1e6
        except (OSError, ValueError):
            return None


@dataclass(frozen=True)
class GpuEnergy:
    """Energy counter of an NVIDIA GPU, which NVML has from Volta on."""

    _nvml: Any
    _handle: Any

    @classmethod
    def open(cls, uuid: str | None) -> GpuEnergy | None:
        """Opens the counter; None if there is none."""
        import pynvml

        try:
            pynvml.nvmlInit()
            energy = cls(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid or ""))
        except pynvml.NVMLError:
            return None
        return energy if energy.joules() else None

    def joules(self) -> float | None:
        """Joules since the driver was loaded; None if the counter can no longer be read."""
        try:
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1000)
        except self._nvml.NVMLError:
            return None


def open_energy(device: DeviceKind | None, uuid: str | None) -> CpuEnergy | GpuEnergy | None:
    """The energy counter of a device, an NVIDIA GPU by its UUID; None if it has none."""
    if device == "cpu":
        return CpuEnergy.open()
    return GpuEnergy.open(uuid) if device == "cuda" else None


def why_no_energy(device: Gpu | Cpu, root: Path = POWERCAP) -> str | None:
    """Why a device's energy cannot be read; None if it can."""
    if isinstance(device, Gpu):
        return None if open_energy(device.kind, device.uuid) is not None else f"{device.name} reports none"
    if not _folders(root):
        return f"the kernel shows no counter of the processors' in {root}"
    denied = f"the counters in {root} may not be read; run as root, or let your user read their energy_uj"
    return None if CpuEnergy.open(root) is not None else denied


def _folders(root: Path) -> Sequence[Path]:
    """The folders of packages and of memory, whose counters are added up."""
    zones = sorted(root.glob("intel-rapl:*")) if root.is_dir() else []
    return [zone for zone in zones if (name := _name(zone)).startswith("package") or name == _MEMORY]


def _name(zone: Path) -> str:
    try:
        return (zone / "name").read_text().strip()
    except OSError:
        return ""


def _opened(folder: Path) -> _Zone:
    counter = folder / "energy_uj"
    return _Zone(counter, int((folder / "max_energy_range_uj").read_text()), int(counter.read_text()))
