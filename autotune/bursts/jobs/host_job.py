"""The job of a host, in its own process: one training that stays alive, and switches config between blocks.

Its players share the model and the optimizer. Each has its own loader, at its own place in the same stream of samples.
The gate is the same as a script's; the loop that reaches it is the host's own.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from dataclasses import replace
from json import loads  # by name: the user's module may replace what `json` holds
from typing import TYPE_CHECKING, Any, BinaryIO

from autotune.bursts.hosts.endings import classify, device_failed
from autotune.bursts.hosts.protocol import Part, PipeLostError, PipeReporter, Request
from autotune.bursts.jobs.feed import DeviceFeed, Feed
from autotune.bursts.jobs.prepared import CompilerWatch, Prepared, prepared
from autotune.bursts.jobs.ranks import Ranks
from autotune.bursts.jobs.trainer import Drain, Evaluator, Learner, Trainer, WorkerKilledError, evaluated
from autotune.timing.clock import clock_of
from autotune.timing.gate import Gate
from autotune.timing.loop import reads_batches
from autotune.timing.player import NonFiniteLossError, Player, require_finite
from autotune.timing.protocol import FIRST, Command, Lap
from autotune.timing.usage import Looks
from autotune.training.placement import placement_seconds
from autotune.training.ranks import this_rank
from autotune.training.tuned import Tuned, beside
from autotune.workload.workload import Workload

if TYPE_CHECKING:
    import torch
    from torch import nn


def run_host(request: Request, reporter: PipeReporter, commands: BinaryIO) -> None:
    """Trains as commanded, until it is asked to end.

    Args:
        request: The first player, and settings for all players.
        reporter: Receives the events of all players.
        commands: Further commands, one per line.

    Raises:
        PipeLostError: No more commands come: the parent is gone.
    """
    own = os.getpid()
    with prepared(request, reporter) as setup:
        gate = HostGate(request, setup, reporter)
        command = Command("join", FIRST, request.model_dump(mode="json"), frees=request.plan.frees)
        while command.action != "end":
            gate.train(command)
            # A process that the user's code has forked must not read commands.
            line = commands.readline() if os.getpid() == own else b""
            if not line:
                raise PipeLostError
            command = Command(**loads(line))
        gate.end()


class HostPlayer(Player):
    """A config that takes part, with its own loader and its own blocks.

    Args:
        number: The parent's number for it.
        make: Makes its trainer from a seed of the order of samples and a place in their stream.
        shared: Whether other players share this process.
    """

    stream: Feed
    trainer: Drain

    def __init__(
        self, number: int, make: Callable[[int, int], Drain], request: Request, setup: Prepared, *, shared: bool
    ) -> None:
        trainer = make(request.seed, 0)
        config = trainer.tuned.config
        super().__init__(number, trainer.feed.clock, trainer.tuned.accumulation_steps, compiled=config.is_compiled)
        self.trains = request.plan.part != "evaluation"
        self.wants_worst = bool(request.largest_samples)
        if shared:
            self.extra_passes = 0  # a micro-batch leads each block in
        else:
            self.opening = {"start_seconds": setup.start_seconds, "build_seconds": setup.build_seconds}
        self._make = make
        self._largest_samples = request.largest_samples
        self._setup = setup
        self._ranks = Ranks()
        self._skipped_steps = 0
        self._skipped_share = 0.0  # of the last lap that took a step of the optimizer
        self._has_laps = self._has_learnt = False
        self._compiler = CompilerWatch() if config.is_compiled else None
        self._take(trainer)

    def _take(self, trainer: Drain) -> None:
        self.trainer, self.stream = trainer, trainer.feed
        self.streams = {None: trainer.feed}
        self.clock, self.updates = trainer.feed.clock, trainer.updates
        self._scale, self._steps = trainer.scaler.get_scale(), trainer.steps
        self._reported_starts = 0
        self.queue_filled()

    @property
    def has_dead_worker(self) -> bool:
        """Whether one of its workers was ended, by a signal or by its own failure."""
        return self.stream.has_dead_worker

    def begin_turn(self) -> None:
        """Begins to train, until its workers are held again."""
        if self._compiler is not None:
            self._compiler.begin()

    def hold_workers(self) -> None:
        """Ends its turn: stops the workers of its loaders until `release_workers`."""
        super().hold_workers()
        if self._compiler is not None:
            self._compiler.end()

    def begin_anew(self) -> None:
        """Continues with a new loader at its place in the stream of samples."""
        self.close()
        self._take(self._make(self.stream.seed, self.stream.position))

    def begin_lap(self, lead: int = 0) -> None:
        """Begins a lap on all ranks at once."""
        self._ranks.meet()
        super().begin_lap(lead)

    def end_lap(self, left_out: float = 0.0) -> Lap:
        """Ends the lap. Samples of a step that the scaler skipped do not count: it taught the model nothing.

        Skipped steps that led in are counted too: where all steps end there, the share would never be updated.
        """
        lap = super().end_lap(left_out)
        scale, steps = self.trainer.scaler.get_scale(), self.trainer.steps
        if steps > self._steps:
            skipped = _skipped_steps(self._scale, scale, steps - self._steps)
            self._skipped_steps += skipped
            self._skipped_share = skipped / (steps - self._steps)
        self._scale, self._steps = scale, steps
        samples = round(lap.samples * (1 - self._skipped_share))
        self._has_laps |= self.is_open
        self._has_learnt |= self.is_open and samples > 0
        return replace(lap, samples=samples, compiled=self._ranks.any(lap.compiled))

    def slowest(self, *seconds: float) -> tuple[float, ...]:
        """The largest of each value over all ranks."""
        return self._ranks.slowest(*seconds)

    def check_loss(self) -> None:
        """Checks the last loss, if weights are trained."""
        self.last_loss = self.trainer.loss
        super().check_loss()

    def check_weights(self) -> None:
        """Makes sure that all ranks train the same model."""
        self.trainer.check_weights()

    def train_on_worst(self) -> None:
        """Takes two steps on the largest samples.

        Raises:
            NonFiniteLossError: Their loss is NaN or infinite.
        """
        self.wants_worst = False
        self.trainer.train_on_worst(self._largest_samples)
        if (loss := self.trainer.loss) is not None:
            require_finite(loss, self.stream.drawn)
        self._scale = self.trainer.scaler.get_scale()
        self.queue_filled()

    def ready(self) -> dict[str, Any]:
        """Fields of the event after its first steps."""
        return {**super().ready(), "reads_batches": reads_batches(self.stream.loader.dataset)}

    def figures(self) -> dict[str, Any]:
        """Its figures besides its blocks.

        Raises:
            NonFiniteLossError: The scaler skipped every step.
        """
        if self._has_laps and not self._has_learnt:
            raise NonFiniteLossError("the gradients overflow in fp16: the GradScaler skipped every timed step")
        return {
            "placement_seconds": placement_seconds(self.stream.loader.dataset),
            "skipped_steps": self._skipped_steps,
            **(self._compiler.counts() if self._compiler is not None else {}),
            **self._setup.of_device(),
        }

    def close(self) -> None:
        """Ends its loader."""
        self.release_workers()
        self.trainer.close()


class HostGate(Gate[HostPlayer]):
    """The gate of a host."""

    _reporter: PipeReporter

    def __init__(self, request: Request, setup: Prepared, reporter: PipeReporter) -> None:
        rank = this_rank()
        looks = None if rank.number else Looks(None if rank.alone else os.getppid())  # the launcher, above all ranks
        super().__init__(reporter, setup.telemetry, setup.tuned.device, alone=rank.alone, looks=looks)
        self._request = request
        self._setup = setup
        self._learner: Learner | None = None

    def train(self, command: Command) -> None:
        """Obeys a command, and trains if it says so."""
        trains = self.obey(command)
        while trains:
            trains = self._micro_step()

    def _micro_step(self) -> bool:
        try:
            samples = self.playing.trainer.micro_step()
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything, SystemExit too
            return self.failed(error)
        return self.passed(samples)

    def _seated(self, command: Command) -> HostPlayer:
        request, setup = Request.model_validate(command.seat), self._setup
        part = request.plan.part
        tuned = beside(setup.tuned, request.point.config) if self.is_shared else setup.tuned
        if self._learner is None and part != "loader":
            self._learner = Learner(setup.workload, tuned)
        if self._learner is not None:
            self._learner.take(tuned, trains=part != "evaluation")
            tuned.exchanges(self._learner.model)  # each config decides when its gradients are exchanged
        make = functools.partial(stepper_of, setup.workload, tuned, part, self._learner)
        return HostPlayer(command.player, make, request, setup, shared=self.is_shared)

    def _enter(self, player: HostPlayer, _: HostPlayer | None) -> None:
        if self._learner is not None:
            self._learner.take(player.trainer.tuned, trains=player.trains)
        player.begin_turn()

    def _drop(self, number: int) -> None:
        self._setup.tuned.forget_placed(
            player.stream.loader.dataset for one, player in self._players.items() if one != number
        )
        if number in self._players and getattr(self, "playing", None) is self._players[number]:
            del self.playing  # it would hold the data set until another one plays
        super()._drop(number)

    def _trained(self) -> tuple[list[nn.Module], list[torch.optim.Optimizer]]:
        learner = self._learner
        return ([], []) if learner is None else ([self._setup.workload.model], [learner.optimizer])

    def _named(self, error: BaseException, player: HostPlayer | None) -> BaseException:
        # Read the exit status itself; torch's message only contains it.
        killed_by = player.stream.killing_signal() if isinstance(error, RuntimeError) and player is not None else None
        if killed_by is None:
            return error
        named = WorkerKilledError(killed_by)
        named.__cause__ = error
        return named

    def _judged(self, error: BaseException, player: HostPlayer | None) -> dict[str, Any] | None:
        """The outcome of a failed player; None if the device has failed. Ends the process if no memory is left."""
        is_opening = not self.is_shared and (player is None or not player.is_open)
        if isinstance(error, MemoryError) and not is_opening:  # there may be none left for anything else
            self._reporter.out_of_memory()
            os._exit(0)
        if isinstance(error, PipeLostError) or device_failed(error):
            return None
        tuned = player.trainer.tuned if player is not None else self._setup.tuned
        compiled = tuned.config.is_compiled
        outcome, reason = classify(error, compiled=compiled, device=self._request.device or "cpu")
        return {"outcome": outcome, "reason": reason[:2000]}


def stepper_of(
    workload: Workload, tuned: Tuned, part: Part, learner: Learner | None, seed: int, start: int = 0
) -> Drain:
    """Makes what a player trains with, for one part of training; without a learner only the loader works.

    The seed sets the order of samples, and `start` is the place in their stream where the first batch lies.
    """
    if part == "loader" or learner is None:
        return Drain(tuned, Feed(workload, tuned, seed, start))
    if part == "compute":
        return Trainer(workload, tuned, DeviceFeed(workload, tuned, seed, start), learner)
    data = evaluated(workload) if part == "evaluation" else workload
    feed = Feed(data, tuned, seed, start, clock_of(tuned.device))
    make = Evaluator if part == "evaluation" else Trainer
    return make(workload, tuned, feed, learner)


def _skipped_steps(scale_before: float, scale_after: float, steps: int) -> int:
    """How many optimizer steps the GradScaler skipped: each one halved the scale, in the end to 0."""
    if scale_after == 0:
        return steps
    return min(steps, round(math.log2(scale_before / scale_after))) if scale_after < scale_before else 0
