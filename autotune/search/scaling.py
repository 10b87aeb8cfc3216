"""Measures how many ranks pay off: the answer on 1, 2, 4 … ranks, each against the one before."""

from __future__ import annotations

import math
from collections.abc import Iterator

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.runner import Runner
from autotune.knobs import TrainConfig, divisors
from autotune.measuring import Outcome, Point
from autotune.results.result import Scaling, ScalingStep
from autotune.search.costs import Costs
from autotune.search.stopping import Budget, Reserve

SCALING = Reserve(share=0.12, most_seconds=90.0, burst_seconds=40.0)
"""Time for a duet at each power of two, if several ranks train; ranks take seconds to connect. Not tuned."""


def with_ranks(config: TrainConfig, ranks: int) -> TrainConfig | None:
    """A config on another number of ranks with the same effective batch; None if that does not divide.

    Micro-batches are no larger than before, so they fit into memory. Threads and workers are counted per rank and share
    the same CPUs: all ranks together keep their number.
    """
    if config.effective_batch % ranks:
        return None
    own = config.effective_batch // ranks
    size = max(divisor for divisor in divisors(own) if divisor <= config.batch_size)
    shares = {
        knob: max(1, count * config.ranks // ranks)
        for knob in ("num_threads", "num_workers")
        if (count := getattr(config, knob))
    }
    return config.replace(ranks=ranks, batch_size=size, accumulation_steps=own // size, **shares)


def fewer(config: TrainConfig) -> Iterator[TrainConfig]:
    """The config on 1, 2, 4 … ranks, up to its own number."""
    for ranks in sorted({*(2**power for power in range(int(math.log2(config.ranks)) + 1)), config.ranks}):
        shared = config if ranks == config.ranks else with_ranks(config, ranks)
        if shared is not None:
            yield shared


def scaling(answer: Point, runner: Runner, plan: BurstPlan, budget: Budget, costs: Costs) -> Scaling | None:
    """The answer's speed on 1, 2, 4 … ranks, chained from pair to pair; None if no two could be compared."""
    plan = plan.model_copy(update={"fastest_wins": False})
    usual = costs.deadline(answer, plan, budget.confirming_seconds)
    runner.close()
    steps: list[ScalingStep] = []
    before: Point | None = None
    speed = 1.0
    for config in fewer(answer.config):
        if SCALING.is_spent(budget, plan):
            break
        point = Point(config=config, parameters=answer.parameters)
        deadline = SCALING.deadline(budget, usual)
        ((burst, pair),) = runner.challenge(before, [point], plan, deadline, lambda _point, _pair: None)
        ratio = 1.0 if before is None else pair.ratio if pair is not None else None
        ran = burst.outcome is Outcome.OK and ratio is not None
        speed = speed * ratio if ran and ratio is not None else speed
        steps.append(
            ScalingStep(
                ranks=config.ranks,
                outcome=burst.outcome,
                ratio=ratio if before is not None else None,
                ci95=pair.ci95 if pair is not None else None,
                speed=speed if ran else None,
            )
        )
        if ran:
            before = point
            runner.close()  # each pair plays in fresh processes; this point is the next partner
    runner.close()
    return Scaling(steps=tuple(steps)) if sum(step.speed is not None for step in steps) > 1 else None
