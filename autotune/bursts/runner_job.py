"""The job of a live runner, in its own process: build, take the first steps, then train blocks as it is told.

Between two commands the process is stopped from outside, with its workers: what it measures must not go on while its
partner trains.
"""

from __future__ import annotations

import itertools
import os
from time import perf_counter  # by name: the user's module may replace what `time` holds

from autotune.bursts.burst_job import prepared
from autotune.bursts.epochs import Lap, charge
from autotune.bursts.feed import Feed
from autotune.bursts.loop import Timing, told_of_killed_workers
from autotune.bursts.protocol import Command, Commands, Reporter, Request
from autotune.bursts.trainer import NonFiniteLossError, Trainer, make_loader
from autotune.measuring import Measurement, TelemetrySummary, merged
from autotune.workload.fingerprint import length_of


def run_runner(request: Request, reporter: Reporter, commands: Commands) -> Measurement:
    """Trains until it is told to end; returns all its blocks, in their order.

    Args:
        request: What to run.
        reporter: Told when it is ready, and of each block.
        commands: Each the place in the stream of samples to train to.
    """
    own = os.getpid()
    with prepared(request, reporter) as ready:
        reporter.phase("warm up")
        seeds = itertools.count(request.seed)
        feed = Feed(lambda: make_loader(ready.workload, ready.tuned, next(seeds)))
        timing = Timing(Trainer(ready.workload, ready.tuned, feed), request.plan)
        laps: list[Lap] = []
        watched: list[TelemetrySummary] = []
        with told_of_killed_workers(feed):
            began = perf_counter()
            timing.open()
            timing.trainer.check_loss()
            timing.restart()
            timing.warmup_seconds = perf_counter() - began
            step_seconds = max(timing.opening_seconds / timing.opening_steps, 1e-9)
            reporter.send("ready", step_seconds=step_seconds, epoch_samples=length_of(feed.loader.sampler))
            while (until := _next_place(commands, own)) is not None:
                reporter.phase("train")
                ready.telemetry.begin()
                laps.append(timing.lap_until(until))
                watched.append(ready.telemetry.end())
                timing.trainer.check_loss()
                blocks, boundary = charge(laps, feed, ready.tuned.config)
                reporter.send("block", block=blocks[-1].model_dump(), boundary_seconds=boundary, drained=timing.drained)
            reporter.phase("end")
            timing.trainer.train_on_worst(request.largest_samples)
        if not any(lap.samples for lap in laps):
            raise NonFiniteLossError("the gradients overflow in fp16: the GradScaler skipped every timed step")
        measured = timing.measurement(laps).model_copy(
            update={
                "start_seconds": ready.start_seconds,
                "build_seconds": ready.build_seconds,
                "telemetry": merged(watched),
            }
        )
        return ready.with_memory(measured)


def _next_place(commands: Commands, own: int) -> int | None:
    """Where to train to next; None to end. A copy that the user's code has forked must not take its parent's orders."""
    line = commands.readline() if os.getpid() == own else b""
    return Command.model_validate_json(line).until if line else None
