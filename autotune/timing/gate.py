"""The gate of a training loop: it opens for a block of one player at a time.

A loop reaches it after each micro-batch. There, configs are switched and the parent's commands are answered. A player's
error is its own outcome: its loaders end, and the other players continue.
"""

from __future__ import annotations

import traceback
from collections.abc import Generator, Iterable, Iterator
from time import perf_counter  # by name: the user's code may replace what `time` holds
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import nn

from ..torch_settings.naming import bytes_of, weights_of
from .player import COMPILED_BATCHES, NonFiniteLossError, Player
from .protocol import FIRST, Command, Lap
from .usage import Looks, UsageWatch, available_bytes, forget_peaks, free_cache, free_memory, peak_bytes

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from .wire import Reporter


OPENING_SECONDS = 2.0
"""The first steps stop after a whole one once they have taken longer, unless they compile. Not tuned."""

PlayerOf = TypeVar("PlayerOf", bound=Player)
Course = Generator[bool, None, None]


class Gate(Generic[PlayerOf]):
    """Lets a training loop train as far as the parent asks for.

    The loop calls `obey` with a command, then `passed` after each micro-batch, as long as they return true. Then it
    takes the next command. Subclasses make players, apply their settings, and judge errors.

    Args:
        watch: Watches this process; None if another rank does.
        alone: Whether no other rank trains with it. Several ranks must see a failure alike.
        looks: Looks at the resources that are held; None if another rank does.
    """

    playing: PlayerOf  # the current or last player; set once one has joined
    _course: Course

    def __init__(
        self, reporter: Reporter, watch: UsageWatch | None, device: torch.device, *, alone: bool, looks: Looks | None
    ) -> None:
        self.is_shared = False  # a second player has joined
        self._reporter = reporter
        self._watch = watch
        self._device = device
        self._is_alone = alone
        self._players: dict[int, PlayerOf] = {}
        self._outs: dict[int, dict[str, Any]] = {}  # by player, why it is out
        self._keeping = Keeping()
        self._looks = looks
        self._samples = 0

    def obey(self, command: Command) -> bool:
        """Begins a command; returns whether it needs a micro-batch."""
        self._course = self._obeyed(command)
        return next(self._course, False)

    def passed(self, samples: int) -> bool:
        """Notes a trained micro-batch of this many samples; returns whether to train another."""
        self._samples = samples
        return next(self._course, False)

    def failed(self, error: BaseException) -> bool:
        """Handles an error of training; returns whether to train another micro-batch all the same.

        Raises:
            BaseException: The error, if no player can continue.
        """
        try:
            return self._course.throw(error)
        except StopIteration:
            return False

    def end(self) -> None:
        """Resumes the workers of all players, so that they can end."""
        self._reporter.phase("end")
        for player in self._players.values():
            player.check_weights()
            player.release_workers()

    def _seated(self, command: Command) -> PlayerOf:
        """Makes the player that joins."""
        raise NotImplementedError

    def _enter(self, player: PlayerOf, former: PlayerOf | None) -> None:
        """Applies a player's settings in place of the former player's."""
        raise NotImplementedError

    def _trained(self) -> tuple[Iterable[nn.Module], Iterable[Optimizer]]:
        """The models and optimizers, which train under every config."""
        raise NotImplementedError

    def _named(self, error: BaseException, player: PlayerOf | None) -> BaseException:  # noqa: ARG002
        """The error, or a more precise one: torch raises a worker's death at any point of training."""
        return error

    def _judged(self, error: BaseException, player: PlayerOf | None) -> dict[str, Any] | None:
        """The outcome and reason of a player that an error ends; None if the process must end too."""
        raise NotImplementedError

    def _left_out(self) -> float:
        """Seconds outside training since the last call."""
        return 0.0

    def _more_of_block(self) -> dict[str, Any]:
        """Further fields of a block's report."""
        return {}

    def _obeyed(self, command: Command) -> Course:
        """Runs a command; yields whenever a micro-batch must be trained.

        A process ends with its only player. One of several ranks ends with its first failure, because the other ranks
        wait in a collective operation.
        """
        number = command.player
        if number in self._outs:  # since another one played, or its first steps were repeated
            self._reporter.send("out", player=number, **self._outs[number])
            return
        try:
            if command.action == "join":
                yield from self._join(command)
            elif command.action == "train":
                yield from self._train(self._players[number], command)
            else:
                self._report(self._players[number], leaves=command.action == "leave")
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
            named = self._named(error, self._players.get(number))
            out = self._judged(named, self._players.get(number))
            others = self.is_shared and self._is_alone
            spoilt = isinstance(error, NonFiniteLossError)
            if out is None or not others or (spoilt and not self._keeping.restore(*self._trained())):
                raise named from named.__cause__
            traceback.clear_frames(error.__traceback__)  # they hold the player's tensors
        else:
            return
        # The player of a dead worker fails; the one that played repeats its command with new loaders.
        guilty = next((one for one, player in self._players.items() if player.has_dead_worker), number)
        self._drop(guilty)
        self._outs[guilty] = out
        if guilty == number:
            self._reporter.send("out", player=number, **out)
            return
        if command.action == "join":
            self._drop(number)
        else:
            self._players[number].begin_anew()
        yield from self._obeyed(command)

    def _join(self, command: Command) -> Course:
        """Lets a new player take its first steps."""
        self.is_shared |= command.player != FIRST
        if self.is_shared:
            forget_peaks(self._device)
            self._looks = None  # players share the memory: no part of it belongs to one
        player = self._players[command.player] = self._seated(command)
        self._reporter.phase("warm up")
        self._play(player)
        if self.is_shared and self._is_alone:
            self._keeping.keep(*self._trained())
        yield from self._first_steps(player)
        self._see_peaks(player)
        player.check_loss()
        player.check_weights()
        player.is_open = True
        facts = player.ready()
        self._hold(player, command)
        self._reporter.send("ready", player=player.number, **facts)

    def _first_steps(self, player: PlayerOf) -> Course:
        """Takes a whole optimizer step, which compiles and allocates, and usually an ordinary micro-batch."""
        began, lead = perf_counter(), player.clock.lead
        taken, passes = 0, player.step_passes
        least = max(passes + player.extra_passes, COMPILED_BATCHES if player.is_compiled else 0)
        while taken < least:
            lap = yield from self._lap(player, lead, passes)
            taken, passes = taken + lead + passes, 1
            began += lap.left_out  # as if that had come earlier
            # Ranks must decide alike, or some would wait forever.
            (late,) = player.slowest(float(perf_counter() >= began + OPENING_SECONDS))
            if late and not player.is_patient:
                break
        player.opening |= {
            "pace": max(lap.seconds - lap.start_seconds, 1e-9) / lap.consumed,
            "opening_seconds": perf_counter() - began,
            "opening_steps": taken / player.step_passes,
        }

    def _train(self, player: PlayerOf, command: Command) -> Course:
        """Trains a block. Untimed micro-batches lead it in where others play."""
        self._play(player)
        if command.start is not None:
            player.restart(command.start)
        self._reporter.phase("train")  # a script's parent reads the energy counter now, and again at the block's end
        if self._watch is not None:
            self._watch.begin()
        # Another player has used the process since. No lead into an epoch: its start must be timed.
        leads = command.frees or (self.is_shared and not player.starts_loader)
        lead = max(player.clock.lead, min(command.lead, player.step_passes) if leads else 0)
        lap = yield from self._lap(player, lead, 1, command.until or 0)
        seen = self._watch.end() if self._watch is not None else {}
        if self.is_shared:  # players share the allocator, so this is not specific to one config
            seen.pop("allocator_retries", None)
        player.check_loss()
        self._hold(player, command)
        if self._looks is not None:
            whole = lap.with_lead()
            clock = seen.get("sm_clock_mhz")
            self._looks.after(whole.samples, whole.seconds, leads_in=command.leads_in, clock_mhz=clock)
        fields = {"lap": vars(lap), "seen": seen, "leads_in": command.leads_in, "drained": player.drained}
        fields |= {"starts": player.new_starts, "epoch_samples": player.epoch_samples, **self._more_of_block()}
        self._reporter.send("block", player=player.number, **fields)

    def _lap(self, player: PlayerOf, lead: int, passes: int, until: int = 0) -> Generator[bool, None, Lap]:
        """Trains a timed lap of at least some passes, until a position in the samples; `lead` untimed ones precede."""
        player.clock.synchronize()
        led = 0
        for _ in range(lead):
            yield True
            led += self._samples
        if not player.clock.lead:  # else waiting would empty the queue, which is never empty in training
            player.clock.synchronize()
        self._left_out()
        player.begin_lap(led)
        while passes > 0 or player.place < until:
            yield True
            passes -= 1
        return player.end_lap(self._left_out())

    def _report(self, player: PlayerOf, *, leaves: bool) -> None:
        """Reports a player's other results.

        Where others play, its share of host memory is unknown, and the device's peak may be theirs. So only peaks of
        its first steps, and of steps on the largest samples, count.
        """
        if player.wants_worst:
            self._play(player)
            if self.is_shared:
                forget_peaks(self._device)
            player.train_on_worst()
            player.hold_workers()
            self._see_peaks(player)
        elif not self.is_shared:
            self._see_peaks(player)
        player.check_weights()
        host = None if self.is_shared or self._watch is None else self._watch.peak_bytes()
        looks = self._looks.taken() if self._looks is not None else []
        value: dict[str, Any] = {
            "host_memory_bytes": host, "final_loss": player.loss, "looks": looks
        }  # fmt: skip
        if self._device.type != "cpu":
            reserved, allocated = player.slowest(*player.peaks)  # each rank has one device
            value |= {"device_memory_bytes": int(reserved), "device_allocated_bytes": int(allocated)}
        value |= player.figures()
        if leaves:
            self._drop(player.number)
        else:
            free_cache()  # the next player may have a process of its own
        self._reporter.send("report", player=player.number, value=value, drained=player.drained)

    def _play(self, player: PlayerOf) -> None:
        """Switches to a player."""
        former = getattr(self, "playing", None)
        self._enter(player, former)
        self.playing = player
        player.release_workers()

    def _hold(self, player: PlayerOf, command: Command) -> None:
        """Stops a player's workers until its next block, since batches read meanwhile flatter it; frees memory."""
        player.hold_workers()
        if command.frees:
            free_cache()

    def _see_peaks(self, player: PlayerOf) -> None:
        reserved, allocated = peak_bytes(self._device)
        player.peaks = max(player.peaks[0], reserved), max(player.peaks[1], allocated)

    def _drop(self, number: int) -> None:
        """Removes a player, and frees what it holds."""
        if number in self._players:
            self._players.pop(number).close()
        free_memory()


KEPT_SHARE = 0.125
"""Largest share of available memory for a copy of weights and optimizer state. If they are larger, a loss that is not
finite ends the host, which starts again without the player. Not tuned."""


class Keeping:
    """Copies of the tensors of some models and optimizers, on the host."""

    def __init__(self) -> None:
        self._kept: list[torch.Tensor] | None = None

    def keep(self, models: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> None:
        """Copies them for `restore`, unless memory is short.

        Weights that the last update of a player made NaN or infinite are restored instead.
        """
        models, optimizers = list(models), list(optimizers)
        trained = (weight.data for weight in _weights(models, optimizers) if weight.requires_grad)  # a mask may not be
        if not all(map(_is_finite, trained)):
            self.restore(models, optimizers)
            return
        tensors = list(_tensors(models, optimizers))
        available = available_bytes()
        if available is not None and sum(map(bytes_of, tensors)) > KEPT_SHARE * available:
            self._kept = None
        elif self._fits(tensors):
            for kept, tensor in zip(self._kept or (), tensors, strict=True):
                kept.copy_(tensor)
        else:
            self._kept = [tensor.detach().to("cpu", copy=True) for tensor in tensors]

    def restore(self, models: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> bool:
        """Restores the copies, and drops gradients; returns whether there was a copy."""
        optimizers = list(optimizers)
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        tensors = list(_tensors(models, optimizers))
        if not self._fits(tensors):
            return False
        with torch.no_grad():
            for tensor, kept in zip(tensors, self._kept or (), strict=True):
                tensor.copy_(kept)
        return True

    def _fits(self, tensors: list[torch.Tensor]) -> bool:
        """Whether there is a copy, of tensors like these: a buffer may have grown since."""
        return self._kept is not None and list(map(_kind, self._kept)) == list(map(_kind, tensors))


def _kind(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.layout


def _is_finite(weight: torch.Tensor) -> bool:
    """Whether a weight has no NaN and no infinity, found without a copy of it; True where torch cannot compare."""
    is_plain = type(weight) is torch.Tensor and weight.layout is torch.strided and weight.itemsize > 1  # FP8 has one
    if not (is_plain and weight.is_floating_point() and weight.numel()):
        return True
    return all(bool(extreme.isfinite()) for extreme in weight.aminmax())


def _weights(models: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> list[torch.Tensor]:
    """Weights, each once."""
    weights = [*(weight for model in models for weight in model.parameters()), *weights_of(*optimizers)]
    return list({id(weight): weight for weight in weights}.values())


def _tensors(models: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> Iterator[torch.Tensor]:
    """Yields weights, then buffers and the state of optimizers."""
    models, optimizers = list(models), list(optimizers)
    yield from (weight.data for weight in _weights(models, optimizers))
    for model in models:
        yield from model.buffers()
    for one in optimizers:
        for state in one.state.values():
            yield from (value for value in state.values() if isinstance(value, torch.Tensor))
