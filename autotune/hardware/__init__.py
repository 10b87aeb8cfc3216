"""The hardware of this machine: `probe_host()` reads it, `merge()` adds torch's report, `Hardware` holds both.

Each reader (CPU, memory and cgroups, NVIDIA's driver) gives a reason for each value that it could not read. May
import `recorder`, `timing` and shared basics, and no torch. Start with `probe`.
"""

from autotune.hardware.description import hardware_rows
from autotune.hardware.energy import CpuEnergy, GpuEnergy, open_energy, why_no_energy
from autotune.hardware.host import running, this_process
from autotune.hardware.model import Cpu, Gpu, Hardware, Memory, Software, slug
from autotune.hardware.probe import UNUSABLE, merge, pin_gpu, probe_host
from autotune.stored import DeviceKind

__all__ = [
    "UNUSABLE", "Cpu", "CpuEnergy", "DeviceKind", "Gpu", "GpuEnergy", "Hardware", "Memory", "Software",
    "hardware_rows", "merge", "open_energy", "pin_gpu", "probe_host", "running", "slug", "this_process",
    "why_no_energy",
]  # fmt: skip
