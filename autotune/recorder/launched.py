"""A whole training with what was found: changes are applied as the script comes to them, and nothing is timed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import hooks
from .changes import Changes
from .naming import find_models, loader_key, model_key
from .stream import ITERATE

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


def begin(orders: dict[str, Any]) -> None:
    """Applies what the orders say; a script that calls `autotune.apply` does the same."""
    Launched(orders)


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
        self._warned = False
        self._end_of_search: Any = None
        self._changes.on_process(torch.device(self._loop["device"]))
        hooks.on_step(self._changes.on_optimizer, lambda _: None)
        if self._changes.loader or (self._changes.wants_models and self._loop["loaders"]):
            hooks.on_iterate(self._on_iterate)
        if self._changes.wants_models:
            self._end_of_search = hooks.on_outermost_forward(self._on_forward, lambda _: None)

    def _on_iterate(self, loader: DataLoader[Any], iterate: hooks.Iterate) -> Iterator[Any]:
        import torch

        if loader_key(loader) not in self._loop["loaders"] or not torch.is_grad_enabled():
            return iterate(loader)
        if self._changes.wants_models:
            self._change(find_models(self._loop["models"]))
        if not self._changes.loader:
            return iterate(loader)
        if id(loader) not in self._made:
            # The script's own is kept too, so that no other one gets its id.
            self._made[id(loader)] = (loader, torch.utils.data.DataLoader(**self._changes.arguments(loader)))
        return ITERATE(self._made[id(loader)][1])

    def _on_forward(self, model: Any, _: tuple[Any, ...]) -> None:
        """A model that was not there yet when the loop began."""
        import torch

        if self._changes.wants_models and torch.is_grad_enabled():
            if model_key(model) in self._loop["models"]:
                self._change(find_models(self._loop["models"]) or [model])
            elif not self._warned:
                self._warned = True
                print(
                    f"autotune: {type(model).__name__} is not the model that was tuned; it is left as it is",
                    file=sys.stderr,
                )

    def _change(self, models: list[Any]) -> None:
        self._changes.on_models(models)
        if not self._changes.wants_models and self._end_of_search is not None:
            self._end_of_search()
            self._end_of_search = None
