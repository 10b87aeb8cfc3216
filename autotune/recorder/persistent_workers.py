"""Persistent workers, even if a script recreates its loader for each epoch: one loader stands in for all.

They see changes to the data set between epochs, like workers that are started for each epoch. Random numbers are drawn
as by the script's own loader.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader

from ..torch_settings.naming import length_of
from .attributes import Attributes, is_same
from .batches import Watched
from .drawing import Drawing, Own
from .stream import ITERATE

_FOLLOWED = ("sampler", "batch_sampler")


class StandIn:
    """A loader that replaces a script's own, and later ones that the script makes like it.

    Args:
        arguments: Arguments of `DataLoader`: the script's own with the changes.
        say: Receives a warning about draws that differ.
        persists_anyway: Whether workers persist in the unchanged script, and keep their copy of the data set.

    Attributes:
        was_changed: Whether the script has changed the data set, so that workers were restarted.
    """

    def __init__(self, arguments: dict[str, Any], say: Callable[[str], None], *, persists_anyway: bool = False) -> None:
        self.was_changed = False
        self._arguments = arguments
        self._say = say
        self._sampler = _sampler_of(arguments)
        self._loader = self._made()
        self._sees_changes = bool(arguments.get("persistent_workers")) and not persists_anyway
        self._copied: Attributes | None = None
        self._reader: weakref.ref[Watched] | None = None

    @property
    def is_read(self) -> bool:
        """Whether an epoch is unfinished; not every script reaches its end: Lightning counts batches."""
        reader = self._reader() if self._reader is not None else None
        if reader is None or reader.is_over:
            return False
        batches = length_of(self._loader)
        return batches is None or reader.count < batches

    def takes_over(self, arguments: dict[str, Any]) -> bool:
        """Whether it can replace a loader with these arguments; if so, it adopts that loader's order.

        It must not be in use, and its workers must hold the same objects: data set and collate function.
        """
        if self.is_read or not self._is_alike(arguments):
            return False
        self._sampler = _sampler_of(arguments)
        return True

    def read(self, script: DataLoader[Any], *, goes_on: bool) -> Iterator[Any]:
        """Starts an epoch.

        Args:
            script: The script's own loader.
            goes_on: Whether that loader was read before.
        """
        if self._sees_changes:
            self._see_changes()
        reading = self._loader.read(Own.of(script), self._sampler, ITERATE, self._say, goes_on=goes_on)
        self._reader = weakref.ref(reading)
        return reading

    def _made(self) -> Drawing:
        return Drawing(**self._arguments)

    def _see_changes(self) -> None:
        """Restarts workers if their copies differ from the script's objects."""
        former, self._copied = self._copied, Attributes(self._arguments["dataset"], self._arguments["collate_fn"])
        if former is not None and not self._copied.are_as(former):
            self._loader = self._made()
            self.was_changed = True

    def _is_alike(self, arguments: dict[str, Any]) -> bool:
        if arguments.keys() != self._arguments.keys() or not arguments.get("persistent_workers"):
            return False
        # By identity: a data set may define equality in any way.
        held = (name for name in arguments if name not in _FOLLOWED)
        return all(is_same(arguments[name], self._arguments[name]) for name in held)


def _sampler_of(arguments: dict[str, Any]) -> Any:
    """The sampler of a loader's batches; None for an iterable data set."""
    if "batch_sampler" in arguments:
        return arguments["batch_sampler"]
    sampler, size = arguments.get("sampler"), arguments["batch_size"]
    return sampler if sampler is None or size is None else BatchSampler(sampler, size, arguments["drop_last"])
