"""A setting that a training can play: changes to the script's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..changes import Changes

if TYPE_CHECKING:
    from .pools import Changed


@dataclass(frozen=True)
class Setting:
    """Changes to the script's own setting; `process`, `optimizer` and `model` name functions of `process_settings`."""

    name: str = "your own setting"
    knobs: Mapping[str, Any] = field(default_factory=dict)  # their values
    loader: Mapping[str, Any] = field(default_factory=dict)  # arguments of `DataLoader`
    process: Mapping[str, Any] = field(default_factory=dict)  # each function with its value
    optimizer: Mapping[str, Any] = field(default_factory=dict)  # the same
    model: Mapping[str, str] = field(default_factory=dict)  # each function with its knob

    def with_changes(self, words: Mapping[str, Any]) -> Setting:
        """The same with a candidate's changes, as `Adviser.answer` describes them."""
        parts = {name: {**own, **words[name]} for name, own in vars(self).items() if name != "name"}
        return Setting(words["name"], **parts)

    @property
    def of_loader(self) -> Changed:
        """The key of its pools."""
        return tuple(sorted(self.loader.items()))

    def changes(self) -> Changes:
        """The changes that apply it, and undo it."""
        return Changes({**vars(self), "changed": list(self.knobs)})


OWN = Setting()
