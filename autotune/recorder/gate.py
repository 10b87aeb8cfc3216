"""The gate of a script's training loop: it opens for a block at a time, and times it."""

from __future__ import annotations

import json
import math
from time import perf_counter  # by name: the script may replace what `time` holds
from typing import TYPE_CHECKING, Any

from .effects import compiled_graphs
from .ending import BEYOND_EPOCH, TRAINING, end_burst, has_ended
from .evaluation import Evaluation
from .gradients import Gradients
from .usage import MemoryWatch, Processors

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

    from .effects import Effects
    from .stream import Stream
    from .wire import Wire

COMPILED_BATCHES = 3
"""Micro-batches after which compiled code is believed to be complete: for other sizes it may be compiled once more."""
FILLS = 2
"""A queue that was empty is full after so many times what its workers take for their share of it, as their first batch
took, start included. Who has trained for as long without waiting for a batch has a loader that is faster, and a queue
that is full as a rule: it need not be emptied first. Chosen: training and workers share the processors."""
WAITED_SHARE = 0.05
"""Of a lap: who waits so long for batches has emptied the loader's queue. Chosen above what handing one over takes."""


class Gate:
    """Lets a script train as far as it is told.

    Args:
        wire: To the parent.
        request: The job.
        loop: What a look at the script found.
        effects: Tells whether the changes came into effect.
        memory: Watches memory.
        doing: What the script is doing, in its last item.
        top: The process that all ranks hang below; None: there is one.

    Attributes:
        stream: What it draws from; None in a script without a loader.
        streams: All that the script draws from.
        evaluation: What is no part of a block.
        last_loss: Of the last backward pass.
        start_seconds: From the request until the loop.
    """

    def __init__(
        self,
        wire: Wire,
        request: dict[str, Any],
        loop: dict[str, Any],
        effects: Effects,
        memory: MemoryWatch,
        doing: list[str],
        top: int | None = None,
    ) -> None:
        self.stream: Stream | None = None
        self.streams: list[Stream] = []
        self.last_loss: torch.Tensor | None = None
        self.start_seconds = 0.0
        self._wire = wire
        self._request = request
        self._loop = loop
        self._effects = effects
        self._memory = memory
        self._doing = doing
        self._top = top
        self._accumulation: int = max(1, loop["accumulation"])
        self._opened = perf_counter()
        self._passed, self._position = 0, 0
        self._is_open = False
        self._until: int | None = None
        self._lap: dict[str, Any] = {}
        self._steps: list[tuple[float, float]] = []
        self._step_began = 0.0
        self._cycles = 0
        self._updates, self._update_seconds = 0, 0.0
        self._drawn_when_filled, self._waited = 0, False
        self._trained_since_restart = 0.0
        self._last_pass = self._opened
        step_batches = self._accumulation if loop["loaders"] else 0
        self.evaluation = Evaluation(
            lambda phase: self._wire.send("phase", phase=phase), self._synchronise, step_batches
        )
        self._gradients = Gradients(request["trace"]) if request["job"] == "numerics" else None
        compiled = request["changes"].get("knobs", {}).get("compile_mode") is not None
        self._draws_ahead = loop["draws_ahead"] and request["plan"]["part"] != "loader"
        self._trained, self._passed_at = True, 0
        passes = self._accumulation if loop["loaders"] and not self._draws_ahead else 1  # of the gate, in a step
        self._opening = max(passes + 1, COMPILED_BATCHES if compiled else 0)
        self._passes = passes

    def before_draw(self) -> None:
        """All that was drawn has been trained on, but for a step's first batches where the script draws all of them."""
        self.evaluation.end()  # who trains on will say so after the draw, or sets the attribute
        if self.stream is not None:
            if self._trained or not self._draws_ahead:
                position = self.stream.position
                self._pass(position, position - self._passed_at if self._draws_ahead else self.stream.last_samples)
                self._trained, self._passed_at = False, self.stream.position  # it may begin elsewhere now
            if self._doing[-1] == TRAINING and self.stream.has_passed_epoch:
                self._doing.append(BEYOND_EPOCH)

    def before_step(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step."""
        self.evaluation.trains()
        self._step_began = perf_counter()
        if self._gradients is not None:
            self._gradients.before_step([weight for group in optimizer.param_groups for weight in group["params"]])

    def after_step(self, _: Optimizer) -> None:
        """An optimizer has stepped."""
        self._steps.append((self._step_began, perf_counter()))
        self._trace_step()
        if not self._loop["loaders"] and len(self._steps) % self._loop["optimizers"] == 0:
            self._pass_step()

    def on_evaluation(self, by: str) -> None:
        """Something is done that belongs to evaluation, unless each step does it."""
        self.evaluation.shows(by, self.stream.drawn if self.stream is not None else 0)

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
        samples = self._loop["step_samples"] * self._accumulation * self._loop["ranks"]
        self._position += samples
        self._pass(self._position, samples)

    def drain(self) -> None:
        """Draws batches that nobody trains on, for as long as the plan says: what the loader alone could reach."""
        while True:
            self.before_draw()
            if self.stream is not None:
                self.stream.draw()

    def _pass(self, position: int, samples: int) -> None:
        """The gate: goes on at once while there is something to train, else reports and waits."""
        if has_ended():
            end_burst()
        if self._gradients is not None:
            return
        now = perf_counter()
        if not self._is_open:
            self._passed += 1 if samples else 0
            seconds, self._last_pass = now - self._last_pass - self.evaluation.left_out, now
            self._opened += self.evaluation.left_out  # as if that had come before
            self.evaluation.left_out = 0.0
            if self._passed < self._opening:
                return
            self._open(position, max(1, samples), seconds)
            return
        if self._until is not None and position < self._until:
            return
        self._finish(position)
        self._go_on(position)

    def _open(self, position: int, samples: int, seconds: float) -> None:
        """The first steps are taken."""
        self._is_open = True
        self._synchronise()
        self._check_loss()
        stream = self.stream
        missing = self._effects.missing(stream, reads_only=self._request["plan"]["part"] == "loader")
        if missing:
            reason = "; ".join(f"{name} did not come into effect: {why}" for name, why in missing.items())
            self._wire.send("failure", outcome="unsupported", reason=reason, without_effect=list(missing))
            end_burst()
        self._wire.send(
            "ready",
            pace=max(seconds, 1e-9) / samples,
            epoch_samples=stream.epoch_samples if stream is not None else None,
            reads_batches=self._loop["reads_batches"],
            draws_ahead=self._draws_ahead,
            loader_seconds=self._loader_seconds,
            start_seconds=self.start_seconds,
            opening_seconds=perf_counter() - self._opened,
            opening_steps=self._passed / self._passes,
        )
        self._doing.append(TRAINING)
        self._go_on(position)

    def _go_on(self, position: int) -> None:
        """Waits until it is told to train on; what else is asked for is answered."""
        while True:
            command = self._wire.receive()
            if "command" in command:  # this process was started for the job, and has no server between
                command = json.loads(command["command"])
            if command["report"]:
                self._wire.send("report", value=self._figures(), drained=self._drained)
            elif command["until"] is None:
                self._release_workers()
                self._wire.send("phase", phase="end")
                self._wire.send("result", value=self._figures())
                end_burst()
            else:
                break
        self._wire.send("phase", phase="train")
        if command["start"] is not None:
            position = command["start"]
            self._release_workers()  # those of the loader that is dropped must end
            if self.stream is not None:
                self.stream.restart(position)
                self._drawn_when_filled, self._waited = self.stream.drawn, False
                self._trained_since_restart = 0.0
            self._position = position
        self._until = command["until"]
        self._begin(position, leads_in=command["leads_in"])

    @property
    def _loader_seconds(self) -> float:
        """What the slowest start of the loader took until its first batch."""
        starts = self.stream.starts if self.stream is not None else []
        return max((created + waited for created, waited, _ in starts), default=0.0)

    def _begin(self, position: int, *, leads_in: bool) -> None:
        self._steps.clear()
        self.evaluation.left_out = 0.0
        stream = self.stream
        self._lap = {
            "position": position,
            "leads_in": leads_in,
            "processors": Processors(self._top),
            "graphs": compiled_graphs(),
        }
        if stream is not None:
            self._lap |= {
                "drawn": stream.drawn,
                "samples": stream.samples,
                "starts": len(stream.starts),
                "start_seconds": stream.start_seconds,
                "wait_seconds": stream.wait_seconds,
            }
        self._release_workers()
        self._synchronise()
        self._lap["began"] = perf_counter()

    def _finish(self, position: int) -> None:
        """The block is trained: tells what it took."""
        self._synchronise()
        lap, stream = self._lap, self.stream
        left_out = self.evaluation.left_out
        seconds = perf_counter() - lap["began"] - left_out
        taken = lap["processors"].taken()
        self._check_loss()
        for each in self.streams:
            each.hold_workers()  # until the next block's clock runs: what they read meanwhile would flatter it
        told: dict[str, Any] = {"samples": position - lap["position"], "starts": [], "start_seconds": 0.0}
        told |= {"compiled": compiled_graphs() > lap["graphs"], "left_out": left_out}
        if stream is not None:
            batches = stream.drawn - lap["drawn"]
            wait_seconds = stream.wait_seconds - lap["wait_seconds"]
            told |= {
                "samples": stream.samples - lap["samples"],
                "batches": batches,
                "starts": stream.starts[lap["starts"] :],
                "start_seconds": stream.start_seconds - lap["start_seconds"],
                "wait_seconds": wait_seconds,
                "own_pass": stream.own_pass,
            }
            if stream.drawn - self._drawn_when_filled > stream.workers and wait_seconds > WAITED_SHARE * seconds:
                self._waited = True
            self._trained_since_restart += seconds - told["start_seconds"]
            if self._loop["optimizers"] == 1:
                seconds += self._missing_updates(batches)
        told["seconds"] = max(seconds, 1e-9)
        self._wire.send("block", lap=told, taken=taken, drained=self._drained, leads_in=lap["leads_in"])

    def _missing_updates(self, batches: int) -> float:
        """What the optimizer's steps would take that belong to so many micro-batches, over what those seen took."""
        self._updates += len(self._steps)
        self._update_seconds += math.fsum(ended - began for began, ended in self._steps)
        usual = self._update_seconds / self._updates if self._updates else 0.0
        return usual * (batches / self._accumulation - len(self._steps))

    @property
    def _drained(self) -> bool:
        stream = self.stream
        if stream is None or self._waited or stream.drawn - self._drawn_when_filled >= stream.queue:
            return True
        return self._trained_since_restart >= FILLS * stream.prefetched * self._loader_seconds

    def _figures(self) -> dict[str, Any]:
        """What is known besides the blocks."""
        import torch

        device: dict[str, int] = {}
        if self._loop["device"].startswith("cuda"):
            device = {
                "device_memory_bytes": int(torch.cuda.max_memory_reserved()),
                "device_allocated_bytes": int(torch.cuda.max_memory_allocated()),
            }
        loss = self.last_loss
        return {"host_memory_bytes": self._memory.look(), "loss": None if loss is None else float(loss), **device}

    def _release_workers(self) -> None:
        for stream in self.streams:
            stream.release_workers()

    def _check_loss(self) -> None:
        loss = self.last_loss
        if loss is not None and not math.isfinite(value := float(loss)):
            self._wire.send("failure", outcome="invalid", reason=f"the loss became {value}")
            end_burst()

    def _synchronise(self) -> None:
        if self._loop["device"].startswith("cuda"):
            import torch

            torch.cuda.synchronize()
