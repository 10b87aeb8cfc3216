"""A player of a script: its changes, its streams of the script's loaders, and whether it came into effect."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .changes import Changes
from .clock import Clock
from .effects import Effects
from .failing import PlayerError
from .player import Player

if TYPE_CHECKING:
    from .stream import Stream


class UnsupportedError(PlayerError):
    """A config cannot be trained with in this script.

    Args:
        reason: Why.
        without_effect: The knobs that it is about.
    """

    outcome = "unsupported"

    def __init__(self, reason: str, without_effect: list[str] | None = None) -> None:
        super().__init__(reason)
        self.without_effect = without_effect or []


class ScriptPlayer(Player):
    """What is known of one config in a script's process.

    Args:
        number: By which the parent calls it.
        seat: What it trains: ``changes``, the ``part`` of training, and the ``seed`` of the order of samples.
        loop: What a look at the script found.

    Attributes:
        part: Of training: ``loader``, whose batches are not trained on; ``compute``, on a few batches that stay; any
            other trains as it is.
        seed: Of the order of samples.
        changes: Its config's.
        effects: Tells whether they came into effect.
        stream: That of the loop's first loader; None before it has drawn, or in a script without a loader.
        draws_ahead: Whether the script draws all batches of a step before it trains on one.
    """

    stream: Stream | None

    def __init__(self, number: int, seat: dict[str, Any], loop: dict[str, Any]) -> None:
        import torch

        clock = Clock(torch.cuda.synchronize) if loop["device"].startswith("cuda") else Clock()
        compiled = seat["changes"].get("knobs", {}).get("compile_mode") is not None
        self.part, self.seed = seat["part"], seat["seed"]
        self.draws_ahead = loop["draws_ahead"] and not self.reads_only
        super().__init__(number, clock, max(1, loop["accumulation"]), compiled=compiled)
        if not loop["loaders"] or self.draws_ahead:
            self.step_passes = 1
        self.is_patient = True  # what a script compiles by itself is not known
        if loop["ranks"] > 1:  # each restarts, or none: they cannot agree here on who waited longest
            self.restart_limit_seconds = math.inf
        self.changes = Changes(seat["changes"])
        self.effects = Effects(self.changes, loop["device"])
        self._reads_batches = loop["reads_batches"]
        self._has_one_optimizer = loop["optimizers"] == 1

    @property
    def reads_only(self) -> bool:
        """Whether its batches are not trained on."""
        return bool(self.part == "loader")

    def ready(self) -> dict[str, Any]:
        """What its first steps say.

        Raises:
            UnsupportedError: Some changes did not come into effect.
        """
        missing = self.effects.missing(self.stream, reads_only=self.reads_only)
        self.effects.close()
        if missing:
            reason = "; ".join(f"{name} did not come into effect: {why}" for name, why in missing.items())
            raise UnsupportedError(reason, list(missing))
        return {**super().ready(), "draws_ahead": self.draws_ahead, "reads_batches": self._reads_batches}

    def restart(self, position: int) -> None:
        """Goes on at another place in the stream of samples."""
        self.release_workers()  # those of the loader that is dropped must end
        super().restart(position)

    def _missing_updates(self, micro_batches: int) -> float:
        return super()._missing_updates(micro_batches) if self._has_one_optimizer else 0.0

    def close(self) -> None:
        """Ends its loaders, and what looks at its effects."""
        self.effects.close()
        super().close()
