"""The job of a live runner, in its own process: build, take the first steps, then train blocks as it is told.

Between two commands the process is stopped from outside, with its workers: what it measures must not go on while its
partner trains.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Sequence
from time import perf_counter  # by name: the user's module may replace what `time` holds
from typing import TYPE_CHECKING, Any

from autotune.bursts.burst_job import Prepared, prepared
from autotune.bursts.epochs import Lap, boundary_of
from autotune.bursts.loop import Timing, epoch_samples, stepper_of
from autotune.bursts.protocol import Command, Commands, Reporter, Request
from autotune.bursts.trainer import NonFiniteLossError, make_loader, told_of_killed_workers
from autotune.measuring import Measurement, TelemetrySummary, merged

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from autotune.training.tuned import Tuned
    from autotune.workload.workload import Workload


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
        stream = _Stream(request.seed)
        timing = Timing(stepper_of(ready.workload, ready.tuned, request.plan.part, stream), request.plan)
        feed = timing.trainer.feed
        run = _Run(ready, timing, request.largest_samples)
        with told_of_killed_workers(feed):
            began = perf_counter()
            timing.open()
            timing.trainer.check_loss()
            timing.trainer.check_weights()
            timing.warmup_seconds = perf_counter() - began
            reporter.send(
                "ready", pace=timing.opening_pace, epoch_samples=feed.stream_length, reads_batches=feed.reads_batches,
                loader_seconds=timing.loader_seconds,
            )  # fmt: skip
            while not (command := _next_command(commands, own)).ends:
                if command.report:
                    measured = run.report()
                    value = measured.model_dump(mode="json") if measured is not None else None
                    reporter.send("report", value=value, drained=timing.drained)
                elif command.until is not None:
                    reporter.phase("train")
                    if command.start is not None:
                        stream.start = command.start
                        timing.restart(command.start)
                    block = run.train(command.until, leads_in=command.leads_in)
                    reporter.send("block", drained=timing.drained, **block)
            reporter.phase("end")
            timing.trainer.check_weights()
            measured = run.report()
            feed.release_workers()
            return measured


class _Stream:
    """Makes loaders, each with its own seed: after as many restarts all runners of one seed draw the same samples.

    Attributes:
        start: Place in the stream of samples where the next one begins.
    """

    def __init__(self, seed: int) -> None:
        self.start = 0
        self._seeds = itertools.count(seed)

    def __call__(self, workload: Workload, tuned: Tuned) -> DataLoader[Any]:
        return make_loader(workload, tuned, next(self._seeds), self.start)


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
        self._reported, self._worst_seen = 0, False

    def train(self, until: int, *, leads_in: bool) -> dict[str, Any]:
        """One block, whether an epoch ended in it, what that costs as far as is known, and what others took.

        Args:
            until: Place in the stream of samples to train to.
            leads_in: Whether no report is to hold it.
        """
        timing, feed = self._timing, self._timing.trainer.feed
        self._ready.telemetry.begin()
        feed.release_workers()
        lap = timing.lap_until(until)
        feed.hold_workers()  # until the next block's clock runs: what they read meanwhile would flatter it
        self._watched.append(self._ready.telemetry.end())
        self._laps.append(dataclasses.replace(lap, joules=self._watched[-1].energy_joules))
        timing.trainer.check_loss()
        if leads_in:
            self._reported = len(self._laps)
        boundary = boundary_of(self._laps, feed.starts, self._ready.tuned.config)
        return {
            "block": boundary.block(self._laps[-1]).model_dump(),
            "crossed": lap.starts > 0,
            "compiled": lap.compiled,
            "boundary_seconds": boundary.seconds,
            "epoch_samples": epoch_samples(feed, self._ready.tuned.batch_size),
            "taken": self._watched[-1].taken_fraction,
        }

    def report(self) -> Measurement | None:
        """What was measured since the last report; None where nothing was trained since.

        Raises:
            NonFiniteLossError: The scaler skipped every step.
        """
        timing, feed = self._timing, self._timing.trainer.feed
        if self._largest_samples and not self._worst_seen:
            self._worst_seen = True
            feed.release_workers()  # one of them may hold a lock of the data set's
            timing.trainer.train_on_worst(self._largest_samples)
            feed.hold_workers()
            timing.queue_filled()
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
