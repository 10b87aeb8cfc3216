"""Training scripts that know nothing of autotune, as people write them, and what runs them."""

from __future__ import annotations

import sys
from pathlib import Path

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.runner import ProcessRunner
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Burst, Point
from autotune.scripts import Script, ScriptIsolation

EXAMPLES = Path(__file__).parent / "scripts" / "examples"
START_SECONDS = 120.0
STEPS = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
while True:
    optimizer.zero_grad()
    model(torch.ones(8, 4)).mean().backward()
    optimizer.step()
"""
"""A loop without a loader, and without an end: what stands before it in a script is the test's own."""
PLAN = BurstPlan(measure_seconds=0.5)


def script(name: str, *arguments: str) -> Script:
    """One of the examples, run by this interpreter."""
    return Script((sys.executable, str(EXAMPLES / f"{name}.py"), *arguments))


def played(isolation: ScriptIsolation, *changes: dict[str, object], seconds: float = 60.0) -> list[Burst]:
    """A round of duets of a script as it is and with some changes."""
    runner = ProcessRunner(isolation, "cpu")
    baseline = runner.check(START_SECONDS).baseline
    points = [Point(config=baseline), *(Point(config=baseline.replace(**one)) for one in changes)]
    return runner.play(points, PLAN, seconds)


def alone(isolation: ScriptIsolation, seconds: float = 60.0, **changes: object) -> Burst:
    """A burst of a script, with changes."""
    runner = ProcessRunner(isolation, "cpu")
    baseline: TrainConfig = runner.check(START_SECONDS).baseline
    return runner.run(Point(config=baseline.replace(**changes)), PLAN, seconds)
