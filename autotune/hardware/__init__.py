"""What this machine has: `probe_host()` reads it, `merge()` adds what torch found."""

from autotune.hardware.model import Hardware
from autotune.hardware.probe import merge, probe_host

__all__ = ["Hardware", "merge", "probe_host"]
