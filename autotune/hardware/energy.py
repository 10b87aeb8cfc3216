"""Energy: the processors' own counters (RAPL, also on AMD), and whether a device has a counter at all.

Linux offers them as files of microjoules that wrap around at a limit (Documentation/power/powercap in the kernel's
sources). Since 2020 only root may read them by default, because they leak enough information for attacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.hardware.model import Cpu, Gpu

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
            return cls([_opened(folder) for folder in _folders(root)]) if _folders(root) else None
        except (OSError, ValueError):
            return None

    def joules(self) -> float | None:
        """Joules since it was opened; None if a counter can no longer be read."""
        try:
            return sum(zone.read() for zone in self._zones) / 1e6
        except (OSError, ValueError):
            return None


def why_no_energy(device: Gpu | Cpu, root: Path = POWERCAP) -> str | None:
    """Why a device's energy cannot be read; None if it can."""
    if isinstance(device, Gpu):
        return None if device.kind == "cuda" and _nvml_counts_energy(device.uuid) else f"{device.name} reports none"
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


def _nvml_counts_energy(uuid: str | None) -> bool:
    """Whether NVML counts a GPU's energy: from Volta on."""
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            return bool(pynvml.nvmlDeviceGetTotalEnergyConsumption(pynvml.nvmlDeviceGetHandleByUUID(uuid or "")))
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return False
