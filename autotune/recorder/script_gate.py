"""The gate of a script's training loop, and its players: it follows the script between two passes, and obeys there."""

from __future__ import annotations

import functools
import gc
import json
import math
import weakref
from collections.abc import Callable
from time import time  # by name: the script may replace what `time` holds
from typing import TYPE_CHECKING, Any

import torch

from ..timing.clock import clock_of
from ..timing.failing import PlayerError
from ..timing.gate import Gate
from ..timing.player import Player
from ..timing.protocol import FIRST, Command
from ..timing.usage import Looks
from ..torch_settings.naming import models_of, steps_any, weights_of
from .changes import Changes
from .effects import Effects
from .ending import BEYOND_EPOCH, FIRST_STEPS, TRAINING, end_burst, has_ended
from .evaluation import Evaluation
from .gradients import Gradients
from .ranks import this_rank

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from ..timing.usage import UsageWatch
    from ..timing.wire import Wire
    from .feeding import Source
    from .stream import Stream


class UnsupportedError(PlayerError):
    """This script cannot train with a config."""

    outcome = "unsupported"

    def __init__(self, reason: str, without_effect: list[str] | None = None) -> None:
        super().__init__(reason)
        self.without_effect = without_effect or []


class ScriptPlayer(Player):
    """A config in a script's process.

    Args:
        number: Number that the parent uses for it.
        seat: What it trains: ``changes``, the ``part`` of training, and the ``seed`` of the order of samples.
        loop: What a look at the script found.

    Attributes:
        part: The part of training. ``loader`` only draws batches, ``compute`` trains on a few fixed batches, and any
            other value trains as usual.
        seed: Seed of the order of samples.
        changes: The config's changes.
        effects: Checks whether the changes took effect.
        stream: Stream of the loop's first loader; None before the first draw, or in a script without a loader.
        draws_ahead: Whether the script draws all batches of a step before it trains on one.
    """

    stream: Stream | None

    def __init__(self, number: int, seat: dict[str, Any], loop: dict[str, Any]) -> None:
        clock = clock_of(torch.device(loop["device"]))
        self.changes = Changes(seat["changes"])
        self.part, self.seed = seat["part"], seat["seed"]
        self.draws_ahead = loop["draws_ahead"] and not self.reads_only
        super().__init__(number, clock, max(1, loop["accumulation"]), compiled=self.changes.is_compiled)
        if not loop["loaders"] or self.draws_ahead:
            self.step_passes = 1
        self.is_patient = True  # a script may compile by itself
        if loop["ranks"] > 1:  # all restart or none: they cannot agree here on the slowest
            self.restart_limit_seconds = math.inf
        self.effects = Effects(self.changes, loop["device"], steps_later=loop["optimizers"] > 0)
        self._reads_batches = loop["reads_batches"]
        self._has_one_optimizer = loop["optimizers"] == 1

    @property
    def reads_only(self) -> bool:
        """Whether its batches are not trained on."""
        return bool(self.part == "loader")

    def ready(self) -> dict[str, Any]:
        """Returns facts from its first steps.

        Raises:
            UnsupportedError: Some changes did not take effect.
        """
        missing = self.effects.missing(self.stream, reads_only=self.reads_only)
        self.effects.close()
        if missing:
            reason = "; ".join(f"{name} did not come into effect: {why}" for name, why in missing.items())
            raise UnsupportedError(reason, list(missing))
        return {**super().ready(), "draws_ahead": self.draws_ahead, "reads_batches": self._reads_batches}

    def restart(self, position: int) -> None:
        """Continues at another position in the stream of samples."""
        self.release_workers()  # those of the loader that is dropped must end
        super().restart(position)

    def _missing_updates(self, micro_batches: int) -> float:
        missing = super()._missing_updates(micro_batches) if self._has_one_optimizer else 0.0
        # A loop that does not accumulate may step several times on a batch, all within the lap.
        return missing if self._accumulation > 1 else max(0.0, missing)

    def close(self) -> None:
        """Ends its loaders, and the checks of its effects."""
        self.effects.close()
        super().close()


NO_PARTS = "a script without a loader has no parts that could train alone"


class ScriptGate(Gate[ScriptPlayer]):
    """Lets a script train as far as the parent asks for.

    Args:
        wire: Wire to the parent.
        request: The job.
        loop: What a look at the script found.
        models: The script's models; empty if they are made later.
        wrapped: Models made with the job's arguments of ``DistributedDataParallel``; the list grows.
        device: The device that it trains on.
        watch: Watches this process and its descendants.
        doing: Its last item says what the script is doing.

    Attributes:
        source: The source that the script draws from; None in a script without a loader.
        evaluation: Detects and times evaluation, which is no part of a block.
        scale: The scale of the GradScaler that has scaled the next loss; None if none has.
    """

    def __init__(
        self,
        wire: Wire,
        request: dict[str, Any],
        loop: dict[str, Any],
        models: list[nn.Module],
        wrapped: list[Any],
        device: torch.device,
        watch: UsageWatch,
        doing: list[str],
    ) -> None:
        super().__init__(wire, watch, device, alone=loop["ranks"] == 1, looks=None if this_rank() else Looks(watch.top))
        self.source: Source | None = None
        self._wire = wire
        self._request = request
        self._loop = loop
        self._models = [*map(weakref.ref, models)]
        self._wrapped = wrapped
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._doing = doing
        self._cycles = self._steps = 0
        self._step_began: Any = None
        step_batches = max(1, loop["accumulation"]) if loop["loaders"] else 0
        self.evaluation = Evaluation(wire.phase, self._synchronise, step_batches)
        self._gradients = Gradients(request["trace"]) if request["job"] == "numerics" else None
        self._trained_on, self._passed_at = True, 0
        self.scale: torch.Tensor | None = None

    def begin(self) -> None:
        """Lets the first player join."""
        request = self._request
        seat = {"changes": request["changes"], "part": request["plan"]["part"], "seed": request["seed"]}
        self._follow(functools.partial(self.obey, Command("join", FIRST, seat, frees=request["plan"]["frees"])))

    def on_models(self, models: list[nn.Module]) -> None:
        """Notes the script's models once they are found."""
        self._models = [*map(weakref.ref, models)]
        self.playing.changes.on_models(models)

    def _change_more(self, changes: Changes, optimizer: Optimizer) -> None:
        """Changes further models that an optimizer steps: a script may make one for each task, as in cross validation.

        Where no models are to be changed, none are searched: that takes long, and touches memory shared by a fork.
        """
        models = self._known_models
        if changes.on_model and self._models and not steps_any(optimizer, models):
            gc.unfreeze()  # models made before the fork are not listed otherwise
            models += models_of(optimizer, self._loop["models"])
            self._models = [*map(weakref.ref, models)]
            changes.on_models(models)

    def before_draw(self) -> None:
        """Handles a draw: earlier batches have been trained on, unless the script draws all batches of a step first."""
        self.evaluation.end()  # if training continues, it shows after the draw
        if self.source is None:
            return
        self._before_draw(self.source)
        while self.playing.reads_only:  # measures the loader alone: these batches are not trained on
            next(self.source.stream)
            self._before_draw(self.source)
        if self._doing[-1] == TRAINING and self.source.has_passed_epoch:
            self._doing.append(BEYOND_EPOCH)

    def _before_draw(self, source: Source) -> None:
        stream, ahead = source.stream, self.playing.draws_ahead
        if self._trained_on or not ahead:
            self._pass(stream.position - self._passed_at if ahead else stream.last_samples)
            self._trained_on, self._passed_at = False, source.stream.position  # perhaps another stream or position

    def before_step(self, optimizer: Optimizer) -> None:
        """Handles the moment before an optimizer steps."""
        if not any(reference() is optimizer for reference in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))
            self._change_more(self.playing.changes, optimizer)
        self.playing.changes.on_optimizer(optimizer)
        self.playing.effects.before_step()
        self.evaluation.trains()
        self._step_began = self.playing.clock.mark()
        if self._gradients is not None:
            self._gradients.before_step(weights_of(optimizer))

    def after_step(self, _: Optimizer) -> None:
        """Handles the moment after an optimizer has stepped."""
        self.playing.updates.append((self._step_began, self.playing.clock.mark()))
        self._trace_step()
        self._steps += 1
        by_steps = not (self._loop["loaders"] or self._loop["updates_itself"])  # else it passes at draws or backward
        if by_steps and self._steps % self._loop["optimizers"] == 0:
            self._pass_step()

    def on_evaluation(self, by: str) -> None:
        """Notes an action that belongs to evaluation, unless each step does it."""
        self.evaluation.shows(by, self._drawn)

    def on_mode(self, model: nn.Module, *, training: bool) -> None:
        """Notes that a model that trains is switched to evaluation, or back."""
        self.evaluation.on_mode(model, self._drawn, training=training)

    @property
    def _drawn(self) -> int:
        return self.source.drawn if self.source is not None else 0

    def before_backward(self, loss: torch.Tensor) -> None:
        """Handles the start of a backward pass. A script that updates weights itself has done so since the last one."""
        own = loss.detach()
        if self.scale is not None:  # configs may differ in it
            own, self.scale = own / self.scale.to(own.device), None
        self.playing.last_loss = own if own.numel() == 1 else None
        self.playing.effects.before_backward(loss)
        self.evaluation.trains(steps=self._loop["updates_itself"])
        self._trained_on = True
        if self._gradients is not None:
            self._gradients.losses.append(own)
        if self._loop["updates_itself"] and not self._loop["loaders"]:
            if self._cycles:
                self._pass_step()
            self._cycles += 1

    def after_backward(self, weights: list[torch.Tensor]) -> None:
        """Handles the end of a backward pass."""
        if self._gradients is not None and self._loop["updates_itself"]:
            self._gradients.before_step(weights)
            self._trace_step()

    def _trace_step(self) -> None:
        """Traces a step for a comparison of numerics."""
        if self._gradients is not None and self._gradients.after_step():
            self._wire.send("result", value=self._gradients.trace())
            end_burst()

    def _pass_step(self) -> None:
        """Passes the gate in a loop without a loader."""
        samples = self._loop["step_samples"] * max(1, self._loop["accumulation"]) * self._loop["ranks"]
        self.playing.position += samples
        self._pass(samples)

    def _pass(self, samples: int) -> None:
        """Passes the gate: continues at once while there is something to train, else reports, and waits."""
        if has_ended():
            end_burst()
        if samples and self._gradients is None:
            self._follow(functools.partial(self.passed, samples))

    def _follow(self, trains: Callable[[], bool]) -> None:
        """Obeys commands until there is something to train.

        Args:
            trains: Runs the first command; returns whether there is something to train.
        """
        try:
            while not trains():
                if (command := self._asked()).action == "end":
                    self.end()
                    self._wire.send("done")
                    end_burst()
                trains = functools.partial(self.obey, command)
        except Exception as error:
            if (out := self._judged(error, None)) is None:
                raise
            self._wire.failure(**out)
            end_burst()
        if self._doing[-1] == FIRST_STEPS and self.playing.is_open:
            self._doing.append(TRAINING)

    def _asked(self) -> Command:
        line = self._wire.receive()
        # This process may have been started for the job, without a server in between.
        return Command(**(json.loads(line["command"]) if "command" in line else line))

    def _seated(self, command: Command) -> ScriptPlayer:
        player = ScriptPlayer(command.player, command.seat, self._loop)
        player.changes.wrapped = self._wrapped
        if command.player == FIRST:
            player.opening["start_seconds"] = max(0.0, time() - self._request["asked_at"])
        if player.part != "all" and not self._loop["loaders"]:
            raise UnsupportedError(NO_PARTS)
        return player

    def _enter(self, player: ScriptPlayer, former: ScriptPlayer | None) -> None:
        """Undoes the former player's changes first, and drops its gradients."""
        if player is former:
            return
        if former is not None:
            former.changes.undo()
            for optimizer in self._known_optimizers:
                for weight in weights_of(optimizer):
                    weight.grad = None
        changes = player.changes
        changes.on_process(self._device)
        changes.on_copies()
        changes.on_models(self._known_models)
        for optimizer in self._known_optimizers:
            self._change_more(changes, optimizer)
            changes.on_optimizer(optimizer)

    def _trained(self) -> tuple[list[nn.Module], list[Optimizer]]:
        return self._known_models, self._known_optimizers

    @property
    def _known_models(self) -> list[nn.Module]:
        return [model for reference in self._models if (model := reference()) is not None]

    @property
    def _known_optimizers(self) -> list[Optimizer]:
        return [optimizer for reference in self._optimizers if (optimizer := reference()) is not None]

    def _judged(self, error: BaseException, _: ScriptPlayer | None) -> dict[str, Any] | None:
        if not isinstance(error, PlayerError):
            return None
        out = {"outcome": error.outcome, "reason": str(error)}
        return {**out, "without_effect": error.without_effect} if isinstance(error, UnsupportedError) else out

    def _synchronise(self) -> None:
        """Waits for the device."""
        self.playing.clock.synchronize()

    def _left_out(self) -> float:
        left_out, self.evaluation.left_out = self.evaluation.left_out, 0.0
        return left_out

    def _more_of_block(self) -> dict[str, Any]:
        return {"own_pass": self.source.own_pass if self.source is not None else None}
