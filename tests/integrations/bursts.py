"""What frameworks' models are put through: as workloads, in steps as bursts take them, and in real bursts."""

from __future__ import annotations

from typing import Any

from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.jobs.feed import Feed
from autotune.bursts.jobs.trainer import Trainer
from autotune.bursts.runner import ProcessRunner
from autotune.knobs.config import TrainConfig
from autotune.knobs.facts import WorkloadFacts
from autotune.measuring.records import Burst, Point
from autotune.training.tuned import Tuned
from autotune.workload.target import adapt
from autotune.workload.workload import Workload

PLAN = BurstPlan(measure_seconds=0.3)
SECONDS = 90.0


def of(value: Any) -> Workload:
    """The workload of what a `build()` returned."""
    return adapt(value, "train:build")


def train(workload: Workload, steps: int, **knobs: Any) -> Trainer:
    """Some optimizer steps as a burst takes them, without workers unless they are asked for."""
    setting = Tuned(workload.baseline_config.replace(**{"num_workers": 0, **knobs}))
    trainer = Trainer(workload, setting, Feed(workload, setting))
    for _ in range(steps):
        trainer.step()
    return trainer


def check_and_run(target: str, batch_size: int) -> tuple[WorkloadFacts, list[Burst]]:
    """What the check found, and a burst of the baseline and one of another batch, in processes of their own."""
    with Isolation(target) as isolation:
        isolation.start(SECONDS)
        runner = ProcessRunner(isolation, "cpu")
        facts = runner.check(SECONDS)
        configs = (facts.baseline.replace(num_threads=1), TrainConfig(batch_size=batch_size, num_threads=1))
        return facts, [runner.run(Point(config=config), PLAN, SECONDS) for config in configs]
