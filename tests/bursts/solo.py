"""Bursts in this process: of workloads that hold closures, or whose weights a test looks at.

All parts are the real ones, but for the process: commands go straight to the host's job.
"""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any, cast

from autotune.bursts.hosts.endings import classify
from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan, PipeReporter, Request
from autotune.bursts.hosts.running_job import Ended, Live
from autotune.bursts.jobs.host_job import HostGate, HostPlayer
from autotune.bursts.jobs.prepared import Prepared
from autotune.bursts.jobs.trainer import Drain
from autotune.bursts.runner import ProcessRunner
from autotune.measuring.records import Burst, Measurement, Point
from autotune.timing.protocol import FIRST, Command, Lap
from autotune.training.tuned import Tuned
from autotune.workload.workload import Workload

SECONDS = 120.0


class SoloIsolation:
    """Runs hosts of one workload in this process, as `Isolation` runs them in others.

    Args:
        workload: What they train.
    """

    target = "this process"

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._jobs: dict[int, tuple[HostGate, PipeReporter]] = {}

    def open(self, request: Request, _: float) -> Live:
        """A host that has taken its first steps, or has failed."""
        live = Live(len(self._jobs) + 1, cast("Any", None), forked=False, began=time.monotonic(), kills_before=0)
        tuned = Tuned(request.point.config)
        reporter = PipeReporter(cast("Any", _Lines(live)), live.number)
        host = HostGate(request, ready(self._workload, tuned), reporter)
        self._jobs[live.number] = host, reporter
        self._do(live, Command("join", FIRST, request, frees=request.plan.frees))
        return live

    def command(self, live: Live, command: Command) -> None:
        """Does at once what a host is asked to."""
        host, _ = self._jobs[live.number]
        if command.action == "end":
            host.end()
            live.over = True
        elif not live.over:
            self._do(live, command)

    def wait(self, live: Live, *_: float) -> dict[str, Any] | None:
        """What came of it."""
        return live.inbox.popleft() if live.inbox else None

    def rest(self, _: Live) -> None:
        """Nothing is stopped."""

    def end(self, live: Live, _: float) -> Ended:
        """How it ended."""
        self.discard(live)
        return live.finished("")

    def discard(self, live: Live) -> None:
        """Lets go of its players, and so of their workers."""
        live.over = True
        host, _ = self._jobs[live.number]
        for number in list(host._players):
            host._drop(number)

    def _do(self, live: Live, command: Command) -> None:
        """Has a host do what it is asked to, and reports what ends it, as its process would."""
        host, reporter = self._jobs[live.number]
        try:
            host.train(dataclasses.replace(command, seat=command.seat and command.seat.model_dump(mode="json")))
        except Exception as error:
            compiled = any(one.trainer.tuned.config.compile_mode is not None for one in host._players.values())
            reporter.failure(*classify(error, compiled=compiled))
            live.over = True


class _Lines:
    """A pipe whose other end is here."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def write(self, line: bytes) -> None:
        """An event."""
        self._live.note(json.loads(line))

    def flush(self) -> None:
        """There is nothing to wait for."""


WATCH: Any = None
"""What watches a workload."""


def ready(workload: Workload, tuned: Tuned) -> Prepared:
    """A workload."""
    return Prepared(workload, tuned, WATCH, 0.0, 0.0, cast("Any", None), None)


class Alone(HostGate):
    """The gate of one player, whose first steps are taken.

    Args:
        workload: What it trains.
        trainer: With which.
    """

    def __init__(self, workload: Workload, trainer: Drain) -> None:
        self.told: dict[str, Any] = {}
        prepared = ready(workload, trainer.tuned)
        request = Request(job="host", point=Point(config=trainer.tuned.config))
        super().__init__(request, prepared, cast("Any", self))
        self._one = HostPlayer(FIRST, lambda *_: trainer, request, prepared, shared=False)
        self.train(Command("join"))
        self._one.release_workers()

    def send(self, event: str, **content: Any) -> None:
        """What it tells."""
        self.told[event] = content

    def phase(self, _: str) -> None:
        """How far it has come is of no interest."""

    def _seated(self, _: Command) -> HostPlayer:
        return self._one

    def lap_until(self, position: int) -> Lap:
        """A block, with what led in."""
        self.train(Command("train", until=position))
        self._one.release_workers()  # a test does not end while they are held
        return Lap(**self.told["block"]["lap"]).with_lead()


def runner_of(workload: Workload) -> ProcessRunner:
    """Runs bursts of a workload in this process."""
    return ProcessRunner(cast("Isolation", SoloIsolation(workload)), "cpu")


def burst_of(workload: Workload, plan: BurstPlan) -> Burst:
    """A burst of the workload's baseline."""
    return runner_of(workload).run(Point(config=workload.baseline_config), plan, SECONDS)


def measured(workload: Workload, plan: BurstPlan) -> Measurement:
    """What a burst of the workload's baseline measures.

    Raises:
        AssertionError: It did not end well.
    """
    burst = burst_of(workload, plan)
    assert burst.measurement is not None, burst.reason
    return burst.measurement


class ReadyHost:
    """A host whose only player has taken its first steps; what it says of them is made up."""

    stands = True

    def __init__(self, **event: Any) -> None:
        self._event = {"event": "ready", "starts": [], "epoch_samples": 512, "reads_batches": True, **event}

    def seat(self) -> int:
        """The first."""
        return 0

    def ask(self, *_: Any) -> dict[str, Any]:
        """What it says."""
        return self._event
