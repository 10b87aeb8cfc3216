"""The gate of a script's training loop: it opens for a block of one player at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from time import perf_counter  # by name: the script may replace what `time` holds
from typing import TYPE_CHECKING, Any

from .ending import BEYOND_EPOCH, TRAINING, end_burst, has_ended
from .evaluation import Evaluation
from .gradients import Gradients
from .player import Player
from .usage import MemoryWatch

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

    from .players import Players
    from .source import Source
    from .wire import Wire

NO_PARTS = "a script without a loader has no parts that could train alone"


class Gate:
    """Lets a script train as far as the parent asks for.

    Args:
        wire: To the parent.
        request: The job.
        loop: What a look at the script found.
        players: Of this process.
        memory: Watches memory.
        doing: What the script is doing, in its last item.
        top: The process that all ranks hang below; None: there is one.

    Attributes:
        source: What the script draws from; None in a script without a loader.
        evaluation: What is no part of a block.
        last_loss: Of the last backward pass.
    """

    def __init__(
        self,
        wire: Wire,
        request: dict[str, Any],
        loop: dict[str, Any],
        players: Players,
        memory: MemoryWatch,
        doing: list[str],
        top: int | None = None,
    ) -> None:
        self.source: Source | None = None
        self.last_loss: torch.Tensor | None = None
        self._wire = wire
        self._loop = loop
        self._players = players
        self._memory = memory
        self._doing = doing
        self._top = top
        self._until = 0
        self._leads = self._leads_in = False
        self._outs: dict[int, dict[str, Any]] = {}  # by player, why it is out
        self._opening_peaks: dict[int, dict[str, int]] = {}  # by player, of its first steps
        self._cycles = self._steps = 0
        self._step_began = 0.0
        step_batches = max(1, loop["accumulation"]) if loop["loaders"] else 0
        self.evaluation = Evaluation(
            lambda phase: self._wire.send("phase", phase=phase), self._synchronise, step_batches
        )
        self._gradients = Gradients(request["trace"]) if request["job"] == "numerics" else None
        self._trained, self._passed_at = True, 0
        if players.playing.part != "all" and not loop["loaders"]:
            self._fail("unsupported", NO_PARTS)

    def before_draw(self) -> None:
        """All that was drawn has been trained on, but for a step's first batches where the script draws all of them."""
        self.evaluation.end()  # who trains on will say so after the draw, or sets the attribute
        if self.source is None:
            return
        self._before_draw(self.source)
        while self._players.playing.reads_only:  # what the loader alone could reach: nobody trains on these batches
            next(self.source.stream)
            self._before_draw(self.source)
        if self._doing[-1] == TRAINING and self.source.has_passed_epoch:
            self._doing.append(BEYOND_EPOCH)

    def _before_draw(self, source: Source) -> None:
        stream, ahead = source.stream, self._players.playing.draws_ahead
        if self._trained or not ahead:
            self._pass(stream.position - self._passed_at if ahead else stream.last_samples)
            self._trained, self._passed_at = False, source.stream.position  # another stream perhaps, or place

    def before_step(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step."""
        self.evaluation.trains()
        self._step_began = perf_counter()
        if self._gradients is not None:
            self._gradients.before_step([weight for group in optimizer.param_groups for weight in group["params"]])

    def after_step(self, _: Optimizer) -> None:
        """An optimizer has stepped."""
        self._players.playing.updates.append((self._step_began, perf_counter()))
        self._trace_step()
        self._steps += 1
        if not self._loop["loaders"] and self._steps % self._loop["optimizers"] == 0:
            self._pass_step()

    def on_evaluation(self, by: str) -> None:
        """Something is done that belongs to evaluation, unless each step does it."""
        self.evaluation.shows(by, self.source.drawn if self.source is not None else 0)

    def before_backward(self, loss: torch.Tensor) -> None:
        """A backward pass begins; a script that changes its weights by itself has done so since the one before."""
        self.evaluation.trains()
        self._trained = True
        if self._gradients is not None:
            self._gradients.losses.append(loss.detach())
        if self._loop["updates_itself"] and not self._loop["loaders"]:
            if self._cycles:
                self._pass_step()
            self._cycles += 1

    def after_backward(self, weights: list[torch.Tensor]) -> None:
        """A backward pass has ended."""
        if self._gradients is not None and self._loop["updates_itself"]:
            self._gradients.before_step(weights)
            self._trace_step()

    def _trace_step(self) -> None:
        """A step whose numbers are compared."""
        if self._gradients is not None and self._gradients.after_step():
            self._wire.send("result", value=self._gradients.trace())
            end_burst()

    def _pass_step(self) -> None:
        """The gate, in a loop without a loader."""
        samples = self._loop["step_samples"] * max(1, self._loop["accumulation"]) * self._loop["ranks"]
        self._players.playing.position += samples
        self._pass(samples)

    def _pass(self, samples: int) -> None:
        """The gate: goes on at once while there is something to train, else tells what was trained, and waits.

        Args:
            samples: Trained since the last time.
        """
        if has_ended():
            end_burst()
        if self._gradients is not None:
            return
        player = self._players.playing
        if not player.is_open:
            taken = player.pass_first(samples, self.evaluation.left_out)
            self.evaluation.left_out = 0.0
            if not taken:
                return
            self._open(player)
        elif self._leads:
            self._begin(player, lead=samples)
            return
        elif player.place < self._until:
            return
        else:
            self._finish(player)
        self._obey()

    def _open(self, player: Player) -> None:
        """The first steps are taken."""
        self._synchronise()
        self._opening_peaks[player.number] = self._peaks()
        if not self._is_loss_finite(player):
            return
        missing = player.effects.missing(player.stream, reads_only=player.reads_only)
        player.effects.close()
        if missing:
            reason = "; ".join(f"{name} did not come into effect: {why}" for name, why in missing.items())
            self._out(player, "unsupported", reason, without_effect=list(missing))
            return
        player.hold_workers()
        self._wire.send("ready", player=player.number, reads_batches=self._loop["reads_batches"], **player.ready())
        if not self._players.is_shared:
            self._doing.append(TRAINING)

    def _obey(self) -> None:
        """Waits until it is asked to train on; what else is asked for is answered."""
        asked: dict[str, Callable[[dict[str, Any]], bool]] = {
            "join": self._join, "train": self._train, "report": self._report, "leave": self._report, "end": self._end,
        }  # fmt: skip
        while True:
            command = self._wire.receive()
            if "command" in command:  # this process was started for the job, and has no server between
                command = json.loads(command["command"])
            action, number = command["action"], command["player"]
            if action != "end" and number in self._outs:  # it fell out while the parent had its first steps repeated
                self._wire.send("out", **self._outs[number])
            elif asked[action](command):
                return

    def _join(self, command: dict[str, Any]) -> bool:
        """Another player takes its first steps."""
        player = Player(command["player"], {**command["seat"], "changes": command["changes"]}, self._loop)
        self._wire.send("phase", phase="warm up")
        self._players.join(player)
        self.evaluation.left_out = 0.0
        if player.part != "all" and not self._loop["loaders"]:
            self._out(player, "unsupported", NO_PARTS)
            return False
        return True

    def _train(self, command: dict[str, Any]) -> bool:
        """A player trains a block; where several play, a micro-batch leads in, untimed."""
        self._wire.send("phase", phase="train")
        player = self._players.play(command["player"])
        if command["start"] is not None:
            player.restart(command["start"])
        self._until, self._leads_in = command["until"], command["leads_in"]
        self._leads = self._players.is_shared and not player.starts_loader
        player.release_workers()
        if not self._leads:
            self._begin(player, lead=0)
        return True

    def _report(self, command: dict[str, Any]) -> bool:
        """What is known of a player besides its blocks; it may leave then."""
        player = self._players.of(command["player"])
        self._wire.send("report", player=player.number, value=self._figures(player), drained=player.drained)
        if command["action"] == "leave":
            self._players.drop(player)
        return False

    def _end(self, _: dict[str, Any]) -> bool:
        self._players.release_workers()
        self._wire.send("phase", phase="end")
        self._wire.send("done")
        end_burst()

    def _begin(self, player: Player, *, lead: int) -> None:
        """The block's clock runs."""
        self._leads = False
        self.evaluation.left_out = 0.0
        self._synchronise()
        player.begin(self._top, lead=lead)

    def _finish(self, player: Player) -> None:
        """The block is trained: tells what it took."""
        self._synchronise()
        told = player.finish(self.evaluation.left_out)
        if not self._is_loss_finite(player):
            return
        player.hold_workers()  # until the next block's clock runs: what they read meanwhile would flatter it
        if not self._players.is_shared:  # else none can say what is its own
            player.looks.after(told["lap"]["samples"], told["lap"]["seconds"], leads_in=self._leads_in)
        told["lap"]["own_pass"] = self.source.own_pass if self.source is not None else None
        self._wire.send("block", player=player.number, leads_in=self._leads_in, **told)

    def _figures(self, player: Player) -> dict[str, Any]:
        """What is known besides the blocks: where others play, of its memory what its first steps took of the GPU's."""
        if self._players.is_shared:
            return {"host_memory_bytes": None, "loss": player.loss, **self._opening_peaks[player.number]}
        of_player = {"loss": player.loss, "looks": player.looks.taken()}
        return {"host_memory_bytes": self._memory.look(), **of_player, **self._peaks()}

    def _peaks(self) -> dict[str, int]:
        """What was taken of a GPU's memory at most."""
        if not self._loop["device"].startswith("cuda"):
            return {}
        import torch

        return {
            "device_memory_bytes": int(torch.cuda.max_memory_reserved()),
            "device_allocated_bytes": int(torch.cuda.max_memory_allocated()),
        }

    def _is_loss_finite(self, player: Player) -> bool:
        """Whether it is; a player for which it is not is out."""
        loss, self.last_loss = self.last_loss, None
        if loss is not None:
            player.loss = float(loss)
        if player.loss is None or math.isfinite(player.loss):
            return True
        self._out(player, "invalid", f"the loss became {player.loss}", spoilt=True)
        return False

    def _out(self, player: Player, outcome: str, reason: str, *, spoilt: bool = False, **more: Any) -> None:
        """A player has failed: the others go on without it, where there are any.

        Not where several ranks would have to see it alike, nor where weights are spoilt that nobody has kept.
        """
        alone = not self._players.is_shared or self._loop["ranks"] > 1
        if alone or (spoilt and not self._players.restore()):
            self._fail(outcome, reason, **more)
        self._players.drop(player)
        told = self._outs[player.number] = {"player": player.number, "outcome": outcome, "reason": reason, **more}
        self._wire.send("out", **told)

    def _fail(self, outcome: str, reason: str, **more: Any) -> None:
        self._wire.send("failure", outcome=outcome, reason=reason, **more)
        end_burst()

    def _synchronise(self) -> None:
        if self._loop["device"].startswith("cuda"):
            import torch

            torch.cuda.synchronize()
