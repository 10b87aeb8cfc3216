"""How many ranks pay: the answer with fewer of them, each beside the one before."""

from __future__ import annotations

import math
from collections.abc import Iterator

from autotune.bursts.protocol import BurstPlan
from autotune.bursts.runner import Runner
from autotune.knobs import TrainConfig, divisors
from autotune.measuring import Outcome, Point
from autotune.results.result import Scaling, ScalingStep
from autotune.search.stopping import Budget, Reserve

SCALING = Reserve(share=0.12, most_seconds=90.0, burst_seconds=40.0)
"""Where several ranks train: a duet for each power of two, whose ranks take some seconds to find each other. Chosen."""


def with_ranks(config: TrainConfig, ranks: int) -> TrainConfig | None:
    """A config on another number of ranks with the same effective batch; None where that cannot be shared out.

    Micro-batches are as large as they were, or smaller: memory that held them holds these. Threads and workers, which
    are those of one rank, share the same CPUs: all ranks together have as many as before.
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
        found = config if ranks == config.ranks else with_ranks(config, ranks)
        if found is not None:
            yield found


def scaling(answer: Point, runner: Runner, plan: BurstPlan, budget: Budget) -> Scaling | None:
    """The answer's speed on 1, 2, 4 … ranks, chained from pair to pair; None where not two could be compared.

    Args:
        answer: What is trained with, on all ranks.
        runner: Runs bursts.
        plan: Of a challenge.
        budget: The wall clock.
    """
    plan = plan.model_copy(update={"fastest_wins": False})
    runner.close()
    steps: list[ScalingStep] = []
    before: Point | None = None
    speed = 1.0
    for config in fewer(answer.config):
        if SCALING.is_spent(budget, plan):
            break
        point = Point(config=config, parameters=answer.parameters)
        ((burst, pair),) = runner.challenge(before, [point], plan, SCALING.deadline(budget), lambda _point, _pair: None)
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
            runner.close()  # each pair is of fresh processes: the next partner is the one that ran last
    runner.close()
    return Scaling(steps=tuple(steps)) if sum(step.speed is not None for step in steps) > 1 else None
