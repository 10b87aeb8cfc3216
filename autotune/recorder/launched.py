"""A whole training with what was found: changes are applied as the script comes to them, and nothing is timed."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import hooks
from .changes import Changes
from .naming import find_models, loader_key, loader_kind, model_key
from .stream import ITERATE, Watched

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader


def begin(orders: dict[str, Any]) -> None:
    """Applies what the orders say; a script that calls `autotune.apply` does the same."""
    Launched(orders)


MOST_CALLS = 100
"""Of models in training, among which the one that was tuned is looked for. Chosen."""


class Launched:
    """Applies the changes.

    Args:
        orders: ``changes``; ``loop``: what a look at the script found when it was tuned.
    """

    def __init__(self, orders: dict[str, Any]) -> None:
        import torch

        self._loop = orders["loop"]
        self._changes = Changes(orders["changes"])
        self._made: dict[int, tuple[Any, DataLoader[Any]]] = {}
        self._calls = self._steps = 0
        self._kinds = {loader_kind(key) for key in self._loop["loaders"]}
        self._end_of_search: Any = None
        self._changes.on_process(torch.device(self._loop["device"]))
        hooks.on_step(self._on_step, lambda _: None)
        atexit.register(self._tell)
        feeds = self._changes.loader or self._changes.copies is not None
        if feeds or (self._changes.wants_models and self._loop["loaders"]):
            hooks.on_iterate(self._on_iterate)
        if self._changes.wants_models:
            self._end_of_search = hooks.on_outermost_forward(self._on_forward)

    def _on_iterate(self, loader: DataLoader[Any], iterate: hooks.Iterate) -> Iterator[Any]:
        import torch

        if loader_kind(loader_key(loader)) not in self._kinds or not torch.is_grad_enabled():
            return iterate(loader)
        if self._changes.wants_models:
            self._change(find_models(self._loop["models"]))
        if not self._changes.loader:
            return self._handed_on(iterate(loader))
        if id(loader) not in self._made:
            # The script's own is kept too, so that no other one gets its id.
            self._made[id(loader)] = (loader, torch.utils.data.DataLoader(**self._changes.arguments(loader)))
        return self._handed_on(ITERATE(self._made[id(loader)][1]))

    def _handed_on(self, batches: Iterator[Any]) -> Iterator[Any]:
        copies = self._changes.copies
        return batches if copies is None else Watched(batches, copies.drawn)

    def _on_forward(self, model: Any, _: tuple[Any, ...]) -> None:
        """A model that was not there yet when the loop began; looking for it costs a little, and ends some time."""
        import torch

        if not (self._changes.wants_models and torch.is_grad_enabled()):
            return
        self._calls += 1
        if model_key(model) in self._loop["models"]:
            self._change(find_models(self._loop["models"]) or [model])
        elif self._calls >= MOST_CALLS:
            self._end_of_search()

    def _on_step(self, optimizer: Optimizer) -> None:
        self._steps += 1
        self._changes.on_optimizer(optimizer)

    def _tell(self) -> None:
        """In the end: what was found for the script and never came into effect in a process that has trained."""
        missing = []
        if self._changes.loader and not self._made:
            missing.append("no loader like the one that was tuned was seen")
        if self._changes.wants_models:
            missing.append("the model that was tuned was not seen")
        if self._steps and missing:
            print(f"autotune: {' and '.join(missing)}: this training is not the one that was measured", file=sys.stderr)

    def _change(self, models: list[Any]) -> None:
        self._changes.on_models(models)
        if not self._changes.wants_models and self._end_of_search is not None:
            self._end_of_search()
            self._end_of_search = None
