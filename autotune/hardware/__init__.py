"""What this machine has: `probe_host()` reads it, `merge()` adds what torch found, `Hardware` holds both.

Each reader (CPU, memory and cgroups, NVIDIA's driver, disk and container) says why it could not read what it lacks.
"""

from autotune.hardware.model import Hardware
from autotune.hardware.probe import merge, probe_host

__all__ = ["Hardware", "merge", "probe_host"]
