"""Measures what exchanging gradients costs: micro-batches with and without the exchange, in turn."""

from __future__ import annotations

import statistics
from time import perf_counter  # by name: the user's module may replace what `time` holds

from autotune.bursts.hosts.protocol import PipeReporter, Request
from autotune.bursts.jobs.feed import DeviceFeed
from autotune.bursts.jobs.prepared import prepared
from autotune.bursts.jobs.ranks import Ranks
from autotune.bursts.jobs.trainer import Trainer
from autotune.timing.player import require_finite
from autotune.training.tuned import Tuned

PARTS = 3
"""Micro-batches of a step: the first finds no gradients, the second adds to them, the third adds and exchanges them."""
WARM_STEPS, LEAST_STEPS, MOST_STEPS = 2, 3, 20
SECONDS = 2.0
"""Time for all steps, after the first few: enough to distinguish 1 % from 10 %. Not tuned."""


def run_communication(request: Request, reporter: PipeReporter) -> float:
    """The share of a step of one micro-batch that exchanging gradients takes, in the config as it is.

    Batches stay on the device, so that the loader hides nothing.
    """
    with prepared(request, reporter) as setup:
        reporter.phase("warm up")
        ranks = Ranks()
        plain = Tuned(setup.tuned.config.replace(num_workers=0, accumulation_steps=PARTS), device=setup.tuned.device)
        feed = DeviceFeed(setup.workload, plain, request.seed)
        trainer = Trainer(setup.workload, plain, feed)
        for _ in range(WARM_STEPS):
            trainer.step()
        require_finite(trainer.loss, feed.drawn)
        trainer.check_weights()
        reporter.phase("train")

        def part_seconds() -> float:
            feed.clock.synchronize()
            ranks.meet()
            began = perf_counter()
            trainer.micro_step()
            feed.clock.synchronize()
            return ranks.slowest(perf_counter() - began)[0]

        shares: list[float] = []
        began = perf_counter()
        while len(shares) < LEAST_STEPS or (len(shares) < MOST_STEPS and ranks.any(perf_counter() - began < SECONDS)):
            trainer.updates.clear()
            _, without, with_it = (part_seconds() for _ in range(PARTS))
            updating = sum(feed.clock.seconds(*marks) for marks in trainer.updates)
            shares.append((with_it - updating - without) / with_it)
    return min(1.0, max(0.0, statistics.median(shares)))
