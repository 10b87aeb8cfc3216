"""One tool chooses a config for a workload, in a process of its own that may be killed at any time.

    python -m benchmarks.peers.choose TOOL TARGET SECONDS BASELINE

Prints a line ``CHOICE {…}`` whenever the tool's choice changes: the last one counts. Whatever else is printed comes
from the tools themselves.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial

from autotune.knobs.config import TrainConfig
from benchmarks.peers import finders, samplers, tuners

MARK = "CHOICE "

Tell = Callable[[TrainConfig], None]
Tool = Callable[[str, float, TrainConfig, Tell], None]

TOOLS: dict[str, Tool] = {
    "Lightning scale_batch_size": finders.lightning,
    "Accelerate find_executable_batch_size": finders.accelerate,
    "pytorch-autotune": tuners.pytorch_autotune,
    "autotrainer": tuners.autotrainer,
    "loadtune": partial(tuners.loadtune, auto_batch=False),
    "loadtune --auto-batch": partial(tuners.loadtune, auto_batch=True),
    "Optuna TPE": partial(samplers.optuna, "tpe"),
    "Optuna random": partial(samplers.optuna, "random"),
    "Ray Tune": samplers.ray,
}


def choices_in(text: str) -> list[TrainConfig]:
    """The choices that a run of this module printed, in order."""
    lines = (line for line in text.splitlines() if line.startswith(MARK))
    return [TrainConfig(**json.loads(line.removeprefix(MARK))) for line in lines]


def tell(config: TrainConfig) -> None:
    """Prints a choice, at once."""
    print(f"\n{MARK}{config.model_dump_json()}", flush=True)


def main(tool: str, target: str, seconds: str, baseline: str) -> None:
    """Entry."""
    TOOLS[tool](target, float(seconds), TrainConfig(**json.loads(baseline)), tell)


if __name__ == "__main__":
    main(*sys.argv[1:])
