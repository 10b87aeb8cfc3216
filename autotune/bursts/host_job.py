"""The job of a host, in its own process: one training that stays alive, and switches config between blocks.

Its players share the model and the optimizer; each has a loader of its own at its own place in the same stream of
samples. Whatever a player does wrong is its own outcome: its loader ends, and the others go on.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Iterator
from time import perf_counter  # by name: the user's module may replace what `time` holds
from typing import Any

from autotune.bursts.account import Account
from autotune.bursts.failures import classify, device_failed
from autotune.bursts.feed import Feed
from autotune.bursts.learner import Learner
from autotune.bursts.prepared import Prepared, peak_bytes, prepared
from autotune.bursts.protocol import Command, Commands, PipeLostError, Reporter, Request, Seat
from autotune.bursts.timing import Timing, stepper_of
from autotune.bursts.trainer import Drain, NonFiniteLossError, told_of_killed_workers
from autotune.measuring import Measurement, Outcome
from autotune.recorder.loop import reads_batches
from autotune.recorder.usage import Looks, forget_peaks, free_memory
from autotune.training.placement import placement_seconds
from autotune.training.ranks import this_rank
from autotune.training.tuned import Tuned

FIRST = 0
"""The player with which a host starts."""


def run_host(request: Request, reporter: Reporter, commands: Commands) -> None:
    """Trains what it is asked to, until it is asked to end.

    Args:
        request: The first player, and what holds for all.
        reporter: Hears of each step of a player's life.
        commands: What to do next.
    """
    own = os.getpid()
    with prepared(request, reporter) as ready:
        host = _Host(request, ready, reporter)
        host.join(FIRST, request.seat)
        while (command := _next_command(commands, own)).action != "end":
            host.obey(command)
        reporter.phase("end")
        host.close()


class _Host:
    """The players of a process.

    Args:
        request: What holds for all players.
        ready: The workload that is built, and its watch.
        reporter: Hears what comes of each command.
    """

    def __init__(self, request: Request, ready: Prepared, reporter: Reporter) -> None:
        self._request = request
        self._ready = ready
        self._reporter = reporter
        self._players: dict[int, _Player] = {}
        self._learner: Learner | None = None
        self._shared = False  # whether a second player has ever joined
        self._dead: dict[int, tuple[Outcome, str]] = {}  # players that failed while others played

    def obey(self, command: Command) -> None:
        """Does what it is asked to; a player that fails is out.

        A process of several ranks ends with its first failure: the other ranks wait in a collective operation. So does
        one whose device has failed.
        """
        if command.player in self._dead:
            self._say_out(command.player, *self._dead.pop(command.player))
            return
        try:
            if command.action == "join":
                self._shared = True
                self.join(command.player, command.seat or self._request.seat)
            else:
                self._go_on(self._players[command.player], command)
        except PipeLostError:
            raise
        except MemoryError:  # there may be none left for anything else
            self._reporter.out_of_memory()
            os._exit(0)
        except BaseException as error:
            if not this_rank().alone or not self._survives(error):
                raise
            self._out(command, error)

    def join(self, number: int, seat: Seat) -> None:
        """Lets a new player take its first steps."""
        if self._learner is None and seat.part != "loader":
            self._learner = Learner(self._ready.workload, self._ready.tuned)
        if self._shared:
            forget_peaks(self._ready.tuned.device)
        player = _Player(seat, self._request, self._ready, self._learner, shared=self._shared)
        self._players[number] = player
        self._reporter.phase("warm up")
        with player.attended():
            told = player.open()
        self._reporter.send("ready", player=number, **told)

    def _go_on(self, player: _Player, command: Command) -> None:
        number = command.player
        with player.attended():
            if command.action == "train":
                self._reporter.phase("train")
                block = player.train(command, leads=self._shared)
                self._reporter.send("block", player=number, **block)
                return
            measured = player.report(beside_others=self._shared)
        if command.action == "leave":
            self._drop(number)
        value = measured.model_dump(mode="json") if measured is not None else None
        self._reporter.send("report", player=number, value=value, drained=player.timing.drained)

    def _survives(self, error: BaseException) -> bool:
        """Whether the others can go on: weights that a loss spoilt are put back."""
        if isinstance(error, NonFiniteLossError):
            return self._learner is not None and self._learner.restore()
        return not device_failed(error)

    def _out(self, command: Command, error: BaseException) -> None:
        """The player that played fails; what it holds is freed before the others go on.

        Torch raises the death of a worker wherever training happens to be: then the player whose worker it was fails,
        and the one that played does what it was asked to once more, with a new loader.
        """
        number = command.player
        dead = next((one for one, player in self._players.items() if player.feed.has_dead_worker), number)
        config = self._players[dead].tuned.config if dead in self._players else self._ready.tuned.config
        compiled = config.compile_mode is not None
        outcome, reason = classify(error, compiled=compiled, device=self._request.device or "cpu")
        traceback.clear_frames(error.__traceback__)  # they hold the player's tensors
        del error
        self._drop(dead)
        if dead == number or command.action == "join":
            self._say_out(number, outcome, reason)
        else:
            self._dead[dead] = outcome, reason
            self._players[number].begin_anew()
            self.obey(command)

    def _say_out(self, number: int, outcome: Outcome, reason: str) -> None:
        self._reporter.send("out", player=number, outcome=outcome.value, reason=reason[:2000])

    def _drop(self, number: int) -> None:
        if number in self._players:
            self._players.pop(number).close()
        free_memory()

    def close(self) -> None:
        """Lets the workers of all players go on, so that they can end."""
        for player in self._players.values():
            player.timing.trainer.check_weights()
            player.feed.release_workers()


class _Player:
    """A config that takes part, with its own loader and its own blocks.

    Args:
        seat: What it trains.
        request: What holds for all players.
        ready: The workload, and its watch.
        learner: The model and the optimizer, which all players train; None: the loader alone works.
        shared: Whether others play in this process.
    """

    def __init__(self, seat: Seat, request: Request, ready: Prepared, learner: Learner | None, *, shared: bool) -> None:
        self.tuned = Tuned(seat.point.config, device=request.device or "cpu") if shared else ready.tuned
        self._ready = ready
        self._learner = learner
        self._shared = shared
        self._largest_samples = seat.largest_samples
        self._account = Account(self.tuned.config)
        rank = this_rank()
        self._looks = Looks(None if rank.alone else os.getppid())  # the launcher, above all ranks
        self._is_looked_at = rank.number == 0 and not shared  # of what players share, none says what is its own
        self._warmup_seconds = 0.0
        self._worst_seen = False
        self._peaks = 0, 0
        self._trains = seat.part != "evaluation"
        if learner is not None:
            learner.take(self.tuned, trains=self._trains)
        self._part = seat.part
        self.timing = Timing(self._stepper(seat.seed))

    def _stepper(self, seed: int, start: int = 0) -> Drain:
        return stepper_of(self._ready.workload, self.tuned, self._part, self._learner, seed, start)

    @property
    def feed(self) -> Feed:
        """Gives the batches."""
        return self.timing.stream

    def begin_anew(self) -> None:
        """Goes on with a new loader, from the place in the stream of samples where it is."""
        self.close()
        self.timing.take(self._stepper(self.feed.seed, self.feed.position))

    @contextlib.contextmanager
    def attended(self) -> Iterator[None]:
        """While open, it plays: its settings are in force, and its workers work."""
        if self._learner is not None:
            self._learner.take(self.tuned, trains=self._trains)
        self.feed.release_workers()
        with told_of_killed_workers(self.feed):
            yield
        self.feed.hold_workers()  # until its next block: what they read meanwhile would flatter it

    def open(self) -> dict[str, Any]:
        """Takes the first steps; returns what they say."""
        timing = self.timing
        if self._learner is not None and self._shared:
            self._learner.keep()
        began = perf_counter()
        timing.open(leads=self._shared)
        timing.trainer.check_loss()
        timing.trainer.check_weights()
        self._warmup_seconds = perf_counter() - began
        self._see_peaks()
        return {
            "pace": timing.opening_pace,
            "epoch_samples": self.feed.length,
            "reads_batches": reads_batches(self.feed.loader.dataset),
            "loader_seconds": timing.loader_seconds,
        }

    def train(self, command: Command, *, leads: bool) -> dict[str, Any]:
        """One block, whether an epoch ended in it, what that costs as far as is known, and what others took."""
        timing = self.timing
        if command.start is not None:
            timing.restart(command.start)
        assert command.until is not None  # noqa: S101 - a block has an end
        self._ready.telemetry.begin()
        lap = timing.lap_until(command.until, leads=leads)
        seen = self._ready.telemetry.end()
        if self._shared:  # of an allocator that players share, it says nothing about the config of one of them
            seen = seen.model_copy(update={"allocator_retries": None})
        timing.trainer.check_loss()
        self._account.starts = self.feed.starts
        if self._is_looked_at and not leads:
            self.feed.hold_workers()
            self._looks.after(lap.samples, lap.seconds, leads_in=command.leads_in, clock_mhz=seen.sm_clock_mhz)
        return {
            **self._account.block(lap, seen, leads_in=command.leads_in),
            "epoch_samples": self.feed.epoch_samples,
            "taken": seen.taken_fraction,
            "drained": timing.drained,
        }

    def report(self, *, beside_others: bool) -> Measurement | None:
        """What was measured since the last report; None where nothing was trained since.

        Args:
            beside_others: Whether others have played in this process: then the device's peak may be theirs, and what
                this one took is what its first steps did, and those on the largest samples.

        Raises:
            NonFiniteLossError: The scaler skipped every step.
        """
        timing = self.timing
        if self._largest_samples and not self._worst_seen:
            self._worst_seen = True
            if beside_others:
                forget_peaks(self.tuned.device)
            timing.trainer.train_on_worst(self._largest_samples)
            timing.queue_filled()
            self._see_peaks()
        elif not beside_others:
            self._see_peaks()
        timing.trainer.check_weights()
        if self._account.is_reported:
            return None
        if not any(lap.samples for lap in self._account.laps):
            raise NonFiniteLossError("the gradients overflow in fp16: the GradScaler skipped every timed step")
        measured = self._account.measurement(
            timing.opening_seconds,
            timing.opening_steps,
            start_seconds=0.0 if self._shared else self._ready.start_seconds,
            build_seconds=0.0 if self._shared else self._ready.build_seconds,
            warmup_seconds=self._warmup_seconds,
            placement_seconds=placement_seconds(self.feed.loader.dataset),
            epoch_samples=self.feed.epoch_samples,
            skipped_steps=timing.skipped_steps,
            final_loss=timing.trainer.check_loss(),
            looks=self._looks.taken(),
        )
        return self._ready.completed(measured, self.tuned.config, self._peaks, shared=beside_others)

    def _see_peaks(self) -> None:
        reserved, allocated = peak_bytes(self.tuned.device)
        self._peaks = max(self._peaks[0], reserved), max(self._peaks[1], allocated)

    def close(self) -> None:
        """Ends its loader."""
        self.feed.release_workers()
        self.timing.trainer.close()


def _next_command(commands: Commands, own: int) -> Command:
    """What to do next; to end, when there are no more. A copy that the user's code has forked must not take orders."""
    line = commands.readline() if os.getpid() == own else b""
    return Command.model_validate_json(line) if line else Command(action="end")
