"""A player: a config that takes turns with others in one process. It times its laps, and knows its loader's queue.

The starts of the loader are timed apart. Each lap is charged its share of the optimizer's steps, wherever it ends.
"""

from __future__ import annotations

import math
import multiprocessing
from typing import TYPE_CHECKING, Any

from .effects import compiled_graphs
from .failing import PlayerError
from .protocol import Lap, Start

if TYPE_CHECKING:
    import torch

    from .clock import Clock
    from .endless import Endless

COMPILED_BATCHES = 3
"""Micro-batches after which compiled code is believed to be complete: for other sizes it may be compiled once more."""
FILLS = 2
"""Workers fill an empty queue in this many times what their share of it takes at the pace of their first batch, start
included. A player that has trained for that long without waiting has a faster loader, whose queue is usually full in
training too. Chosen above 1: training and workers share the processors."""
WAITED_SHARE = 0.05
"""A lap with a larger share of waiting for batches has emptied the queue. Chosen above what handing one over takes."""
RESTART_LIMIT_SECONDS = 4.0
"""A loader that is slower than this is not restarted: torch kills a worker that does not end within five seconds."""


class NonFiniteLossError(PlayerError):
    """The loss became NaN or infinite, or no step could be taken because the gradients did."""

    outcome = "invalid"


class Player:
    """What a gate knows of a config; subclasses train it.

    Args:
        number: By which the parent calls it.
        clock: Clock of the device that trains.
        accumulation: Micro-batches of a step of the optimizer.
        compiled: Whether it compiles.

    Attributes:
        number: By which the parent calls it.
        clock: Clock of the device that trains.
        stream: The stream of batches; None before the first batch, and in a loop without a loader.
        position: Place in the stream of samples, in a loop without a loader.
        updates: Marks of the clock before and after each step of the optimizer, since the lap began.
        streams: What it draws from, of each loader.
        step_passes: How often it comes to the gate in a step of the optimizer.
        extra_passes: The same after the first step: an ordinary micro-batch, by which its pace is known.
        is_compiled: Whether it compiles.
        is_patient: Whether it takes all of its first steps, however slow they are.
        is_open: Whether its first steps are taken.
        restart_limit_seconds: A loader whose first batch takes longer is not restarted.
        peaks: Of the device's memory, as `usage.peak_bytes` tells them.
        opening: What its first steps took, and what came before, of the player that a process starts with.
        wants_worst: Whether it is yet to take as much memory as training may ever take, by `train_on_worst`.
        last_loss: Of the last backward pass; None where there was none since it was last looked at.
        loss: The last one that was looked at.
    """

    def __init__(self, number: int, clock: Clock, accumulation: int, *, compiled: bool) -> None:
        self.number = number
        self.streams: dict[Any, Any] = {}
        self.step_passes, self.extra_passes = accumulation, 1
        self.is_compiled = self.is_patient = compiled
        self.is_open = False
        self.peaks = 0, 0
        self.opening = {"start_seconds": 0.0, "build_seconds": 0.0}
        self.wants_worst = False
        self.last_loss: torch.Tensor | None = None
        self.loss: float | None = None
        self.restart_limit_seconds = RESTART_LIMIT_SECONDS
        self._told_starts = 0
        self.clock = clock
        self.stream: Endless | None = None
        self.position = 0
        self.updates: list[tuple[Any, Any]] = []
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
        """In the stream of samples."""
        return self.position if self.stream is None else self.stream.position

    def restart(self, position: int) -> None:
        """Goes on at another place in the stream of samples, with an empty queue; a slow loader just goes on."""
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
            self.stream.position = position  # as if it did: other samples, but as many

    def queue_filled(self) -> None:
        """Notes that the loader's queue may hold what it prepared while nothing was timed."""
        self._drawn_when_filled, self._waited = self.stream.drawn if self.stream is not None else 0, False
        self._trained_since_restart = None

    @property
    def drained(self) -> bool:
        """Whether what the loader had prepared in advance is gone: a batch was waited for, or as many were drawn.

        Or it was restarted, and could have filled its queue again since: then that is full in training too.
        """
        if self.stream is None or self._waited:
            return True
        loader, since = self.stream.loader, self._trained_since_restart
        prefetched = loader.prefetch_factor or 0
        if self.stream.drawn - self._drawn_when_filled >= loader.num_workers * prefetched:
            return True
        return since is not None and since >= FILLS * prefetched * self.loader_seconds

    @property
    def loader_seconds(self) -> float:
        """Seconds of the slowest start of the loader, until its first batch."""
        starts = self.stream.starts if self.stream is not None else []
        return max((start.seconds for start in starts), default=0.0)

    def begin_lap(self, lead: int = 0) -> None:
        """A lap begins; the device was waited for.

        Args:
            lead: Samples that were trained just before, untimed.
        """
        self.updates.clear()
        if (stream := self.stream) is not None:
            stream.waits.clear()
            self._before = stream.drawn, stream.samples, len(stream.starts)
        self._lead, self._lap_place = lead, self.place
        self._graphs = compiled_graphs()
        self._began = self.clock.mark()

    def end_lap(self, left_out: float = 0.0) -> Lap:
        """Waits for the device, and ends the lap.

        Args:
            left_out: Seconds of evaluation in it.
        """
        seconds, stream = self.clock.seconds(self._began, self.clock.finish()) - left_out, self.stream
        samples, batches, waits, starts = self.place - self._lap_place, 1, 0.0, list[Start]()
        start_seconds = 0.0
        if stream is not None:
            drawn, samples_before, known = self._before
            batches, samples, starts = stream.drawn - drawn, stream.samples - samples_before, stream.starts[known:]
            seconds, waits, start_seconds = self.slowest(
                seconds + self._missing_updates(batches),
                sum(self.clock.seconds(asked, came) for asked, came in stream.waits),
                sum(start.seconds for start in starts),
            )
            # The first batch of each worker may be waited for, however fast they are: they begin at the same time.
            fresh = stream.drawn - self._drawn_when_filled <= stream.loader.num_workers
            self._waited |= not fresh and waits > WAITED_SHARE * seconds
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
        )

    def slowest(self, *seconds: float) -> tuple[float, ...]:
        """The largest of each value over all ranks, which go as fast as the slowest."""
        return seconds

    def _missing_updates(self, micro_batches: int) -> float:
        """Seconds of the optimizer's steps that belong to these micro-batches, less those that fell into the lap."""
        return (micro_batches / self._accumulation - len(self.updates)) * self._usual_update()

    def _usual_update(self) -> float:
        """Usual seconds of a step of the optimizer; the steps since the lap began count too."""
        took = [self.clock.seconds(began, ended) for began, ended in self.updates]
        if took and self._first_update is None:  # it makes the optimizer's state, and stands for others until one came
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
        """The starts of its loader since this was last asked."""
        starts = self.stream.starts if self.stream is not None else []
        before, self._told_starts = self._told_starts, len(starts)
        return starts[before:]

    @property
    def epoch_samples(self) -> int | None:
        """Samples of an epoch, as far as that is known."""
        return self.stream.epoch_samples if self.stream is not None else None

    def ready(self) -> dict[str, Any]:
        """What its first steps say; raises where its settings did not come into effect."""
        method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
        return {
            **self.opening,
            "epoch_samples": self.epoch_samples,
            "loader_seconds": self.loader_seconds,
            "starts": self.new_starts,
            "forks_workers": method == "fork",
        }

    def figures(self) -> dict[str, Any]:
        """What is known of it besides its blocks, as fields of a measurement or of its telemetry."""
        return {}

    def check_loss(self) -> None:
        """Looks at the last loss.

        Raises:
            NonFiniteLossError: It is NaN or infinite.
        """
        loss, self.last_loss = self.last_loss, None
        if loss is not None:
            self.loss = require_finite(loss, self.stream.drawn if self.stream is not None else None)

    def check_weights(self) -> None:
        """Makes sure that all ranks train the same model, where that is known."""

    def train_on_worst(self) -> None:
        """Takes as much memory as training may ever take."""

    def hold_workers(self) -> None:
        """Stops the workers of its loaders until `release_workers`."""
        for stream in self.streams.values():
            stream.hold_workers()

    def release_workers(self) -> None:
        """Lets the workers of its loaders go on."""
        for stream in self.streams.values():
            stream.release_workers()

    @property
    def has_dead_worker(self) -> bool:
        """Whether one of its workers was ended, as far as that is known."""
        return False

    def begin_anew(self) -> None:
        """Goes on with new loaders, from the place in the stream of samples where it is."""
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
        loss: Of the last backward pass.
        batches: That were drawn so far; None: that is not known.

    Raises:
        NonFiniteLossError: It is NaN or infinite.
    """
    value = float(loss) if loss is not None else math.nan
    if not math.isfinite(value):
        raise NonFiniteLossError(f"the loss became {value}{'' if batches is None else f' after {batches} batches'}")
    return value
