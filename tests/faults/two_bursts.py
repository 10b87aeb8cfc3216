"""A faulty burst and a healthy one, for a process that a test has put into surroundings of its own.

``python -m tests.faults.two_bursts MODULE:FUNCTION WORKERS`` prints the outcomes as JSON.
"""

from __future__ import annotations

import json
import sys

from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.runner import ProcessRunner
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Point
from tests.faults.scenarios import PACKAGE

PLAN = BurstPlan(measure_seconds=0.3)
SECONDS = 60.0


def main() -> None:
    """Runs both."""
    where, workers = sys.argv[1:3]
    ended = []
    with Isolation(f"{PACKAGE}.{where}") as isolation:
        isolation.start(SECONDS)
        for target, count in ((where, int(workers)), (f"{where.partition(':')[0]}:healthy", 0)):
            isolation.target = f"{PACKAGE}.{target}"
            point = Point(config=TrainConfig(batch_size=32, num_workers=count))
            ended.append(ProcessRunner(isolation, "cpu").run(point, PLAN, SECONDS))
    print(json.dumps([{"outcome": burst.outcome.value, "reason": burst.reason} for burst in ended]))


if __name__ == "__main__":
    main()
