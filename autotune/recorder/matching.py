"""Decides whether a process trains the measured loop, by the data and models that a look has described."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..torch_settings.naming import class_of, hash_of_shapes, holds_any, models_of, shapes_hash

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

TRAINED = "trained-{}"
"""File in a launch's shared folder, by the id of a process that trains: its name, and whether it matches."""

MOST_SEARCHES = 20
"""Searches of all objects that find no model of a later optimizer: a script may make one for each iteration.

Not tuned.
"""


class Match:
    """The evidence so far.

    Args:
        loop: The description from the look at the tuned script.

    Attributes:
        draws: Whether training draws from data of a measured class, or the script needs no loader.
        reads: Whether training has drawn from any data.
    """

    def __init__(self, loop: dict[str, Any]) -> None:
        from torch.utils.weak import WeakTensorKeyDictionary  # here: the parent process, too, imports this module

        self._data = {key.partition(" ")[0] for key in loop["loaders"]}
        self._shapes = {key.rpartition(" ")[2] for key in loop["models"]}
        self._models: list[weakref.ref[nn.Module]] = []
        self._keys: list[str] = loop["models"]
        self._weights = WeakTensorKeyDictionary()  # of optimizers that step all weights of a measured model
        self._has_matched = False
        self._fruitless = 0  # searches since then
        self.draws = not self._data
        self.reads = False

    def drawn_from(self, loader: DataLoader[Any]) -> None:
        """Notes a loader that training draws from."""
        self.reads = True
        self.draws = self.draws or class_of(loader.dataset) in self._data

    def knows(self, models: Iterable[nn.Module]) -> None:
        """Notes models that were measured, by their keys."""
        alive = [reference for reference in self._models if reference() is not None]
        self._models = alive + [weakref.ref(model) for model in models]

    def steps(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer steps a model of the measured shapes, on data of a measured class."""
        steps = self.draws and self._is_of_model(optimizer)
        self._has_matched |= steps
        return steps

    def models_of(self, optimizer: Optimizer) -> list[nn.Module]:
        """The measured models that an optimizer steps."""
        return self._found(lambda: models_of(optimizer, self._keys))

    def _found(self, search: Callable[[], list[nn.Module]]) -> list[nn.Module]:
        """Searches all objects, which takes long; finds none after too many searches that found none."""
        if self._fruitless >= MOST_SEARCHES:
            return []
        objects = search()
        self._fruitless += self._has_matched and not objects
        return objects

    def is_early(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer steps a measured model before training reads any data.

        Such a step decides nothing: scripts take one on random data, or without gradients to silence a scheduler.
        """
        return not (self.reads or self.draws) and self._is_of_model(optimizer)

    def is_possible(self) -> bool | None:
        """Whether any optimizer of this process steps a measured model; None if there is no optimizer yet."""
        from torch.optim import Optimizer

        optimizers = [one for one in gc.get_objects() if issubclass(type(one), Optimizer)]
        return any(self._is_of_model(one) for one in optimizers) if optimizers else None

    def _is_of_model(self, optimizer: Optimizer) -> bool:
        weights = _weights_of(optimizer)
        if not self._shapes:
            return True
        if hash_of_shapes(weights) in self._shapes:
            self._weights.update(dict.fromkeys(weights))
            return True
        if any(weight in self._weights for weight in weights):  # a later phase trains a part of the model
            return True
        stepped = set(map(id, weights))
        alive = [model for reference in self._models if (model := reference()) is not None]
        if any(holds_any(model, stepped) for model in alive):
            return True
        measured = self._found(lambda: self._holders_of(stepped))
        self.knows(measured)
        return bool(measured)

    def _holders_of(self, weights: set[int]) -> list[nn.Module]:
        """The models of measured shapes with any of these weights: on several ranks one is wrapped in another class."""
        from torch import nn

        modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
        holders = [one for one in modules if holds_any(one, weights)]
        return [one for one in holders if shapes_hash(one) in self._shapes]

    def is_model(self, model: nn.Module) -> bool:
        """Whether a model of any class has the shapes of a measured one."""
        return not self._shapes or shapes_hash(model) in self._shapes


def note(shared: str | None, *, matches: bool) -> None:
    """Writes a file that reports to the launcher that this process trains."""
    if shared is not None:
        name = os.path.basename(sys.argv[0]) if sys.argv[0] not in {"", "-c"} else "python -c"
        with contextlib.suppress(OSError), open(os.path.join(shared, TRAINED.format(os.getpid())), "w") as file:
            json.dump({"name": name, "matches": matches}, file)


def _weights_of(optimizer: Optimizer) -> list[nn.Parameter]:
    groups = optimizer.__dict__.get("param_groups", ())  # wrappers of frameworks have none
    return [weight for group in groups for weight in group["params"]]
