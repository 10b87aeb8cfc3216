"""A workload trained through a framework, under a config that autotune's integration brings into effect: a file each.

Each is what the guide to it (docs/guides) shows, with the workload's own loss, optimizer, data and clipping.
Progress bars, loggers, checkpoints and summaries are off, as whoever wants speed has them: they are not what is
measured. What a framework does in each step all the same (hooks, the norm of the gradients) stays, and is in its rate.
"""

from __future__ import annotations

import importlib
import importlib.util

from autotune import Workload
from benchmarks.frameworks.common import FrameworkLoop

NEEDED: dict[str, tuple[str, ...]] = {
    "lightning": ("lightning",),
    "fabric": ("lightning",),
    "transformers": ("transformers", "accelerate"),
    "accelerate": ("accelerate",),
}
"""The frameworks, and the packages that must be installed for each."""


KEEP_GRADIENTS = frozenset({"lightning"})
"""Those that drop a step's gradients after the next forward pass, which `Workload.keeps_gradients` states."""


def that_train(workload: Workload) -> list[str]:
    """The frameworks whose gradients live as long as those of the workload did when it was measured."""
    return [name for name in NEEDED if (name in KEEP_GRADIENTS) == workload.keeps_gradients]


def loop_class(framework: str) -> type[FrameworkLoop]:
    """The loop of a framework of `NEEDED`; this is when the framework is imported."""
    found: type[FrameworkLoop] = importlib.import_module(f"benchmarks.frameworks.{framework}").Loop
    return found


def absent_packages(framework: str) -> list[str]:
    """What would have to be installed for a framework of `NEEDED`; nothing is imported."""
    return [package for package in NEEDED[framework] if importlib.util.find_spec(package) is None]
