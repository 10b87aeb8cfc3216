"""A player of a script: its changes, its streams of the script's loaders, and whether the changes took effect."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ..timing.clock import clock_of
from ..timing.failing import PlayerError
from ..timing.player import Player
from .changes import Changes
from .effects import Effects

if TYPE_CHECKING:
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
        self.effects = Effects(self.changes, loop["device"])
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
        return super()._missing_updates(micro_batches) if self._has_one_optimizer else 0.0

    def close(self) -> None:
        """Ends its loaders, and the checks of its effects."""
        self.effects.close()
        super().close()
