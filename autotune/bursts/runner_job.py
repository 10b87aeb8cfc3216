"""The job of a live runner, in its own process: build, take the first steps, then train blocks as it is told.

Between two commands the process is stopped from outside, with its workers: what it measures must not go on while its
partner trains.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from time import perf_counter  # by name: the user's module may replace what `time` holds
from typing import TYPE_CHECKING, Any

from autotune.bursts.burst_job import Prepared, prepared
from autotune.bursts.clock import clock_of
from autotune.bursts.epochs import Lap, charge
from autotune.bursts.feed import Feed
from autotune.bursts.loop import Timing, told_of_killed_workers
from autotune.bursts.protocol import Command, Commands, Reporter, Request
from autotune.bursts.trainer import NonFiniteLossError, Trainer, make_loader
from autotune.measuring import Measurement, TelemetrySummary, merged
from autotune.workload.fingerprint import length_of

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


def run_runner(request: Request, reporter: Reporter, commands: Commands) -> Measurement | None:
    """Trains until it is told to end; returns what was not reported yet, if there is any.

    Args:
        request: What to run.
        reporter: Told when it is ready, of each block, and of what was measured so far when that is asked for.
        commands: Each the place in the stream of samples to train to, or asks for a report.
    """
    own = os.getpid()
    with prepared(request, reporter) as ready:
        reporter.phase("warm up")
        timing = Timing(Trainer(ready.workload, ready.tuned, _stream(ready, request)), request.plan)
        run = _Run(ready, timing, request.largest_samples)
        feed = timing.trainer.feed
        with told_of_killed_workers(feed):
            began = perf_counter()
            timing.open()
            timing.trainer.check_loss()
            timing.restart()
            timing.warmup_seconds = perf_counter() - began
            step_seconds = max(timing.opening_seconds / timing.opening_steps, 1e-9)
            reporter.send(
                "ready",
                step_seconds=step_seconds,
                epoch_samples=length_of(feed.loader.sampler),
                reads_batches=feed.reads_batches,
            )
            while not (command := _next_command(commands, own)).ends:
                if command.report:
                    measured = run.report()
                    reporter.send("report", value=measured.model_dump(mode="json") if measured is not None else None)
                elif command.until is not None:
                    reporter.phase("train")
                    reporter.send("block", drained=timing.drained, **run.train(command.until))
            reporter.phase("end")
            measured = run.report()
            feed.release_workers()
            return measured


def _stream(ready: Prepared, request: Request) -> Feed:
    """The samples to train on: after a restart of the loader those that all runners of the same seed draw."""
    seeds = itertools.count(request.seed)

    def make() -> DataLoader[Any]:
        return make_loader(ready.workload, ready.tuned, next(seeds), request.position)

    return Feed(make, request.position, clock_of(ready.tuned.device))


class _Run:
    """The blocks of a runner, and reports of them.

    Args:
        ready: The workload, its config, and its watch.
        timing: Times it.
        largest_samples: Indices of the samples for the worst batch, which is trained on once.
    """

    def __init__(self, ready: Prepared, timing: Timing, largest_samples: Sequence[int]) -> None:
        self._ready = ready
        self._timing = timing
        self._largest_samples = largest_samples
        self._laps: list[Lap] = []
        self._watched: list[TelemetrySummary] = []
        self._reported = 0

    def train(self, until: int) -> dict[str, Any]:
        """One block, what an epoch's end costs as far as is known, and what share of the CPUs others took meanwhile."""
        timing, feed = self._timing, self._timing.trainer.feed
        self._ready.telemetry.begin()
        feed.release_workers()
        self._laps.append(timing.lap_until(until))
        feed.hold_workers()  # until the next block's clock runs: what they read meanwhile would flatter it
        self._watched.append(self._ready.telemetry.end())
        timing.trainer.check_loss()
        blocks, boundary = charge(self._laps, feed, self._ready.tuned.config)
        taken = self._watched[-1].taken_fraction
        return {"block": blocks[-1].model_dump(), "boundary_seconds": boundary, "taken": taken}

    def report(self) -> Measurement | None:
        """What was measured since the last report; None where nothing was trained since.

        Raises:
            NonFiniteLossError: The scaler skipped every step.
        """
        timing, feed = self._timing, self._timing.trainer.feed
        if self._reported == 0:
            feed.release_workers()  # one of them may hold a lock of the data set's
            timing.trainer.train_on_worst(self._largest_samples)
            feed.hold_workers()
            timing.drawn_when_full = feed.drawn
        if self._reported == len(self._laps):
            return None
        if not any(lap.samples for lap in self._laps):
            raise NonFiniteLossError("the gradients overflow in fp16: the GradScaler skipped every timed step")
        first, self._reported = self._reported, len(self._laps)
        measured = timing.measurement(self._laps, first=first).model_copy(
            update={
                "start_seconds": self._ready.start_seconds,
                "build_seconds": self._ready.build_seconds,
                "telemetry": merged(self._watched[first:]),
            }
        )
        return self._ready.completed(measured)


def _next_command(commands: Commands, own: int) -> Command:
    """What to do next; to end, when there are no more. A copy that the user's code has forked must not take orders."""
    line = commands.readline() if os.getpid() == own else b""
    return Command.model_validate_json(line) if line else Command()
