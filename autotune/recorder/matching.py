"""Decides whether a process trains the loop that was measured: a look has described its data and its models."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .naming import class_of, shapes_hash

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

TRAINED = "trained-{}"
"""A file in the shared folder of a launch, by the id of a process that trains: its name, and whether it matches."""


class Match:
    """The evidence so far.

    Args:
        loop: The description from the look at the script that was tuned.

    Attributes:
        draws: Whether training draws from data of a class that was measured, or the script needs no loader.
    """

    def __init__(self, loop: dict[str, Any]) -> None:
        self._data = {key.partition(" ")[0] for key in loop["loaders"]}
        self._shapes = {key.rpartition(" ")[2] for key in loop["models"]}
        self._models: list[weakref.ref[nn.Module]] = []
        self.draws = not self._data

    def drawn_from(self, loader: DataLoader[Any]) -> None:
        """Training begins a loader."""
        self.draws = self.draws or class_of(loader.dataset) in self._data

    def knows(self, models: Iterable[nn.Module]) -> None:
        """These are models that were measured, by their names."""
        alive = [reference for reference in self._models if reference() is not None]
        self._models = alive + [weakref.ref(model) for model in models]

    def steps(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer steps a model of the measured shapes, on data of a measured class."""
        return self.draws and self._is_of_model(_weights_of(optimizer))

    def is_possible(self) -> bool | None:
        """Whether any optimizer of this process steps a measured model; None where there is no optimizer yet."""
        from torch.optim import Optimizer

        optimizers = [one for one in gc.get_objects() if issubclass(type(one), Optimizer)]
        return any(self._is_of_model(_weights_of(one)) for one in optimizers) if optimizers else None

    def _is_of_model(self, stepped: set[int]) -> bool:
        if not self._shapes:
            return True
        alive = [model for reference in self._models if (model := reference()) is not None]
        if any(id(weight) in stepped for model in alive for weight in model.parameters()):
            return True
        from torch import nn

        # By shapes alone: on several ranks a model is wrapped in another class.
        modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
        holders = [one for one in modules if any(id(weight) in stepped for weight in one.parameters())]
        measured = [one for one in holders if shapes_hash(one) in self._shapes]
        self.knows(measured)
        return bool(measured)

    def is_model(self, model: nn.Module) -> bool:
        """Whether a model, of any class, has the shapes of one that was measured."""
        return not self._shapes or shapes_hash(model) in self._shapes


def note(shared: str | None, *, matches: bool) -> None:
    """Leaves word that this process trains, for who launched it."""
    if shared is not None:
        name = os.path.basename(sys.argv[0]) if sys.argv[0] not in {"", "-c"} else "python -c"
        with contextlib.suppress(OSError), open(os.path.join(shared, TRAINED.format(os.getpid())), "w") as file:
            json.dump({"name": name, "matches": matches}, file)


def _weights_of(optimizer: Optimizer) -> set[int]:
    groups = optimizer.__dict__.get("param_groups", ())  # not of an optimizer that a framework has wrapped
    return {id(weight) for group in groups for weight in group["params"]}
