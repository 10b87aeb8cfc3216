"""Energy: the processors' own counters (RAPL, which AMD's have too), and whether a device has one at all.

Linux gives them as files of microjoules that start again at a limit (Documentation/power/powercap in the kernel's
sources). Since 2020 only root may read them, unless somebody has changed that: they tell enough to spy by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.hardware.model import Cpu, Gpu

POWERCAP = Path("/sys/class/powercap")
_MEMORY = "dram"
"""The one part of a package that its own counter leaves out; `psys` holds the packages themselves."""


@dataclass
class _Zone:
    """A counter that starts again at its limit."""

    counter: Path
    limit: int
    last: int
    spent: int = 0

    def read(self) -> int:
        """Microjoules since it was opened."""
        now = int(self.counter.read_text())
        self.spent += now - self.last if now >= self.last else now + self.limit - self.last
        self.last = now
        return self.spent


@dataclass
class CpuEnergy:
    """What the packages of all processors, and their memory where it is told, take from now on.

    It must be read more often than a counter starts again: they last for minutes at least, at full power.
    """

    _zones: list[_Zone] = field(default_factory=list)

    @classmethod
    def open(cls, root: Path = POWERCAP) -> CpuEnergy | None:
        """The counters; None where there are none, or they may not be read."""
        try:
            return cls([_opened(folder) for folder in _folders(root)]) if _folders(root) else None
        except (OSError, ValueError):
            return None

    def joules(self) -> float | None:
        """Since it was opened; None when a counter can no longer be read."""
        try:
            return sum(zone.read() for zone in self._zones) / 1e6
        except (OSError, ValueError):
            return None


def why_no_energy(device: Gpu | Cpu, root: Path = POWERCAP) -> str | None:
    """Why a device's energy cannot be read; None where it can."""
    if isinstance(device, Gpu):
        return None if device.kind == "cuda" and _nvml_tells(device.uuid) else f"{device.name} tells none"
    if not _folders(root):
        return f"the kernel shows no counter of the processors' in {root}"
    denied = f"the counters in {root} may not be read; run as root, or let your user read their energy_uj"
    return None if CpuEnergy.open(root) is not None else denied


def _folders(root: Path) -> Sequence[Path]:
    """Those of packages, and of memory, that are to be added up."""
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


def _nvml_tells(uuid: str | None) -> bool:
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
