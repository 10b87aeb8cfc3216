"""A player: a config that takes turns with others in one process, with its own loaders and figures."""

from __future__ import annotations

import math
import multiprocessing
from typing import TYPE_CHECKING, Any

from .failing import PlayerError
from .laps import Laps

if TYPE_CHECKING:
    import torch

    from .clock import Clock
    from .laps import Start


class NonFiniteLossError(PlayerError):
    """The loss became NaN or infinite, or no step could be taken because the gradients did."""

    outcome = "invalid"


class Player(Laps):
    """What a gate knows of a config; subclasses train it.

    Args:
        number: By which the parent calls it.
        clock: Clock of the device that trains.
        accumulation: Micro-batches of a step of the optimizer.
        compiled: Whether it compiles.

    Attributes:
        number: By which the parent calls it.
        streams: What it draws from, of each loader.
        step_passes: How often it comes to the gate in a step of the optimizer.
        extra_passes: The same after the first step: an ordinary micro-batch, by which its pace is known.
        is_compiled: Whether it compiles.
        is_patient: Whether it takes all of its first steps, however slow they are.
        is_open: Whether its first steps are taken.
        peaks: Of the device's memory, as `usage.peak_bytes` tells them.
        opening: What its first steps took, and what came before, of the player that a process starts with.
        wants_worst: Whether it is yet to take as much memory as training may ever take, by `train_on_worst`.
        last_loss: Of the last backward pass; None where there was none since it was last looked at.
        loss: The last one that was looked at.
    """

    def __init__(self, number: int, clock: Clock, accumulation: int, *, compiled: bool) -> None:
        super().__init__(clock, accumulation)
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
        self._told_starts = 0

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
