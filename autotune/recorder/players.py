"""The players of a process: one of them plays at a time, and its changes are in force."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from .keeping import Keeping
from .player import Player
from .usage import forget_peaks, free_memory

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer


class Players:
    """Those that have joined and not left; they share the models and optimizers of the script.

    Args:
        first: That the process starts with.
        models: Of the script; empty: they are made later.
        device: That it trains on.

    Attributes:
        playing: That plays, or has played last.
        is_shared: Whether a second one has ever joined.
    """

    def __init__(self, first: Player, models: list[nn.Module], device: torch.device) -> None:
        self.playing = first
        self.is_shared = False
        self._all = {first.number: first}
        self._models = models
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._device = device
        self._keeping = Keeping()
        self._bring_into_force()

    def join(self, player: Player) -> None:
        """Takes in another one, which plays next."""
        self.is_shared = True
        self._keeping.keep(self._models, self._known_optimizers)
        forget_peaks(self._device)
        player.changes.wrapped = self.playing.changes.wrapped
        self._all[player.number] = player
        self.play(player.number)

    def play(self, number: int) -> Player:
        """Lets one play: what another one has changed is taken back first, and its gradients are dropped."""
        player = self.of(number)
        if player is not self.playing:
            self.playing.changes.undo()
            for optimizer in self._known_optimizers:
                for weight in (weight for group in optimizer.param_groups for weight in group["params"]):
                    weight.grad = None
            self.playing = player
            self._bring_into_force()
        return player

    def of(self, number: int) -> Player:
        """The player of a number."""
        return self._all[number]

    def drop(self, player: Player) -> None:
        """One leaves; its loaders end."""
        self._all.pop(player.number).close()
        free_memory()

    def restore(self) -> bool:
        """Puts weights and optimizer state back to where they were when the last one joined; whether that is known."""
        return self._keeping.restore(self._models, self._known_optimizers)

    def release_workers(self) -> None:
        """Lets all workers go on, so that they can end."""
        for player in self._all.values():
            player.release_workers()

    def on_models(self, models: list[nn.Module]) -> None:
        """Models of the script are found."""
        self._models = models
        self.playing.changes.on_models(models)

    def on_optimizer(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step."""
        if not any(known() is optimizer for known in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))
        self.playing.changes.on_optimizer(optimizer)

    @property
    def _known_optimizers(self) -> list[Optimizer]:
        return [optimizer for known in self._optimizers if (optimizer := known()) is not None]

    def _bring_into_force(self) -> None:
        changes = self.playing.changes
        changes.on_process(self._device)
        changes.on_copies()
        changes.on_models(self._models)
        for optimizer in self._known_optimizers:
            changes.on_optimizer(optimizer)
