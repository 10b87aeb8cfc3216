"""A player: a config that takes turns with others in one process. It times its laps, and tracks its loader's queue.

The starts of the loader are timed separately. Each lap is charged its share of optimizer steps, wherever it ends.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..torch_settings.compiled import compiled_graphs
from ..torch_settings.naming import queue_of, start_method
from .failing import PlayerError
from .protocol import Lap, Start

if TYPE_CHECKING:
    import torch

    from .clock import Clock
    from .endless import Endless

COMPILED_BATCHES = 3
"""Micro-batches after which code is assumed to be compiled: other sizes may cause one more compilation."""
FILLS = 2
"""The queue counts as refilled after ``FILLS`` × prefetch factor × first-batch latency (start included). A player that
has trained that long without waiting has a faster loader, whose queue is usually full in training too. Above 1, because
training and workers share the processors. Not tuned."""
WAITED_SHARE = 0.05
"""A lap that found the queue empty, and spent a larger share on waiting, has emptied it. The share alone shows nothing:
where a step takes 25 ms, handing over a batch that is ready takes 5 %. Not tuned."""
RESTART_LIMIT_SECONDS = 4.0
"""A loader whose first batch takes longer is not restarted: torch kills workers that do not end within five seconds."""


class NonFiniteLossError(PlayerError):
    """The loss became NaN or infinite, or no step was possible because the gradients did."""

    outcome = "invalid"


class Player:
    """A config at a gate; subclasses train it.

    Args:
        clock: Of the device that trains.
        accumulation: Micro-batches of an optimizer step.
    """

    def __init__(self, number: int, clock: Clock, accumulation: int, *, compiled: bool) -> None:
        self.number = number  # that the parent uses for it
        self.streams: dict[Any, Any] = {}  # one for each loader
        self.step_passes = accumulation  # at the gate, in an optimizer step
        self.extra_passes = 1  # after the first step: an ordinary micro-batch, which shows its pace
        self.is_compiled = self.is_patient = compiled  # a patient one takes all of its first steps, however slow
        self.is_open = False  # it has taken its first steps
        self.peaks = 0, 0  # of the device's memory, as `usage.peak_bytes` returns them
        self.opening = {"start_seconds": 0.0, "build_seconds": 0.0}  # costs of its start and first steps
        self.wants_worst = False  # it must still take as much memory as training may ever take, by `train_on_worst`
        self.last_loss: torch.Tensor | None = None  # None if there was no backward pass since the last check
        self.loss: float | None = None  # the last that was checked
        self.restart_limit_seconds = RESTART_LIMIT_SECONDS  # a loader whose first batch takes longer is not restarted
        self._reported_starts = 0
        self.clock = clock
        self.stream: Endless | None = None  # None before the first batch, and in a loop without a loader
        self.position = 0  # in the stream of samples, in a loop without a loader
        self.updates: list[tuple[Any, Any]] = []  # marks around each optimizer step of the lap
        self._accumulation = accumulation
        self._drawn_when_filled, self._waited = 0, False
        self._trained_since_restart: float | None = None
        self._updates, self._update_seconds = 0, 0.0
        self._first_update: float | None = None
        self._began: Any = None
        self._before = (0, 0, 0)
        self._lead, self._lap_place = 0, 0
        self._graphs = 0

    @property
    def place(self) -> int:
        """Its position in the stream of samples."""
        return self.position if self.stream is None else self.stream.position

    def restart(self, position: int) -> None:
        """Continues at another position in the stream of samples, with an empty queue; a slow loader just continues."""
        self.position = position
        if self.stream is None:
            return
        (waited,) = self.slowest(self.stream.starts[0].wait_seconds if self.stream.starts else 0.0)
        if waited < self.restart_limit_seconds:
            self.stream.restart(position)
            self.queue_filled()
            self._trained_since_restart = 0.0
        else:
            self.queue_filled()
            self.stream.position = position  # as if restarted: as many samples, but others

    def queue_filled(self) -> None:
        """Notes that the loader's queue may hold batches prepared while nothing was timed."""
        self._drawn_when_filled, self._waited = self.stream.drawn if self.stream is not None else 0, False
        self._trained_since_restart = None

    @property
    def drained(self) -> bool:
        """Whether the batches that the loader had prepared in advance are used up.

        One of these conditions is enough:

        - Training has found the queue empty, and waited.
        - As many batches as the queue holds were drawn.
        - The loader was restarted, and could have refilled its queue since: then it is full in training too.
        """
        if self.stream is None or self._waited:
            return True
        loader, since = self.stream.loader, self._trained_since_restart
        queue = queue_of(loader)
        if self.stream.drawn - self._drawn_when_filled >= queue:
            return True
        return since is not None and since >= FILLS * queue / max(1, loader.num_workers) * self.loader_seconds

    @property
    def loader_seconds(self) -> float:
        """Seconds of the loader's slowest start, until its first batch."""
        starts = self.stream.starts if self.stream is not None else []
        return max((start.seconds for start in starts), default=0.0)

    def begin_lap(self, lead: int = 0) -> None:
        """Begins a lap, after waiting for the device; `lead` untimed samples were trained just before."""
        self.updates.clear()
        for each in self.streams.values():
            each.waits.clear()
        if (stream := self.stream) is not None:
            stream.found_empty = False
            self._before = stream.drawn, stream.samples, len(stream.starts)
        self._lead, self._lap_place = lead, self.place
        self._graphs = compiled_graphs()
        self._began = self.clock.mark()

    def end_lap(self, left_out: float = 0.0) -> Lap:
        """Waits for the device, and ends the lap, which held `left_out` seconds of evaluation."""
        seconds, stream = self.clock.seconds(self._began, self.clock.finish()) - left_out, self.stream
        samples, batches, waits, starts = self.place - self._lap_place, 1, 0.0, list[Start]()
        start_seconds = beside = 0.0
        if stream is not None:
            drawn, samples_before, first = self._before
            batches, samples, starts = stream.drawn - drawn, stream.samples - samples_before, stream.starts[first:]
            others = [each for each in self.streams.values() if each is not stream]
            seconds, waits, beside, start_seconds = self.slowest(
                seconds + self._missing_updates(batches),
                self._waited_for(stream),
                sum(map(self._waited_for, others)),
                sum(start.seconds for start in starts),
            )
            # Waiting for the first batch of each worker does not count: they start at the same time.
            fresh = stream.drawn - self._drawn_when_filled <= stream.loader.num_workers
            self._waited |= not fresh and stream.found_empty and waits > WAITED_SHARE * seconds
            if self._trained_since_restart is not None:
                self._trained_since_restart += seconds - start_seconds
        restarts = [start.seconds for start in starts if not start.after_epoch]
        return Lap(
            samples=samples,
            consumed=max(1, samples),
            seconds=max(seconds, 1e-9),
            wait_seconds=waits,
            batches=batches,
            starts=len(starts),
            start_seconds=start_seconds,
            restarts=len(restarts),
            restart_seconds=sum(restarts),
            compiled=compiled_graphs() > self._graphs,
            lead=self._lead,
            left_out=left_out,
            wait_beside_seconds=beside,
        )

    def _waited_for(self, stream: Endless) -> float:
        """Seconds of the lap in which a loader's batches were awaited, without its starts."""
        return sum(self.clock.waited(asked, came) for asked, came in stream.waits)

    def slowest(self, *seconds: float) -> tuple[float, ...]:
        """The largest of each value over all ranks, which are as fast as the slowest."""
        return seconds

    def _missing_updates(self, micro_batches: int) -> float:
        """Seconds of optimizer steps due for these micro-batches, minus those within the lap."""
        return (micro_batches / self._accumulation - len(self.updates)) * self._usual_update()

    def _usual_update(self) -> float:
        """Usual seconds of an optimizer step, including the steps of this lap."""
        took = [self.clock.seconds(began, ended) for began, ended in self.updates]
        if took and self._first_update is None:  # it creates the optimizer's state; used until there is another one
            self._first_update = took.pop(0)
        self._updates += len(took)
        self._update_seconds += sum(took)
        return self._update_seconds / self._updates if self._updates else self._first_update or 0.0

    @property
    def starts_loader(self) -> bool:
        """Whether its loader starts with the next batch, which must be timed."""
        return self.stream is not None and self.stream.is_between_epochs

    @property
    def new_starts(self) -> list[Start]:
        """The starts of its loader since the last call."""
        starts = self.stream.starts if self.stream is not None else []
        before, self._reported_starts = self._reported_starts, len(starts)
        return starts[before:]

    @property
    def epoch_samples(self) -> int | None:
        """Samples of an epoch; None if unknown."""
        return self.stream.epoch_samples if self.stream is not None else None

    def ready(self) -> dict[str, Any]:
        """Returns facts from its first steps; raises if its settings did not take effect."""
        return {
            **self.opening,
            "epoch_samples": self.epoch_samples,
            "loader_seconds": self.loader_seconds,
            "starts": self.new_starts,
            "forks_workers": start_method() == "fork",
        }

    def figures(self) -> dict[str, Any]:
        """Its results besides blocks, as fields of a measurement or of its telemetry."""
        return {}

    def check_loss(self) -> None:
        """Checks the last loss.

        Raises:
            NonFiniteLossError: It is NaN or infinite.
        """
        loss, self.last_loss = self.last_loss, None
        if loss is not None:
            self.loss = require_finite(loss, self.stream.drawn if self.stream is not None else None)

    def check_weights(self) -> None:
        """Checks that all ranks train the same model, where that is known."""

    def train_on_worst(self) -> None:
        """Takes as much memory as training may ever need."""

    def hold_workers(self) -> None:
        """Stops the workers of its loaders until `release_workers`."""
        for stream in self.streams.values():
            stream.hold_workers()

    def release_workers(self) -> None:
        """Resumes the workers of its loaders."""
        for stream in self.streams.values():
            stream.release_workers()

    @property
    def has_dead_worker(self) -> bool:
        """Whether one of its workers is known to have died."""
        return False

    def begin_anew(self) -> None:
        """Continues with new loaders from its position in the stream of samples."""
        self.restart(self.place)

    def close(self) -> None:
        """Ends its loaders."""
        self.release_workers()
        for stream in self.streams.values():
            stream.close()


def require_finite(loss: torch.Tensor | None, batches: int | None) -> float:
    """The value of a loss.

    While a GradScaler looks for its scale, gradients overflow, but the loss itself stays finite.

    Args:
        loss: Loss of the last backward pass.
        batches: Batches drawn so far; None if unknown.

    Raises:
        NonFiniteLossError: It is NaN or infinite.
    """
    value = float(loss) if loss is not None else math.nan
    if not math.isfinite(value):
        raise NonFiniteLossError(f"the loss became {value}{'' if batches is None else f' after {batches} batches'}")
    return value
