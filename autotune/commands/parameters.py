"""A command's options for those who do not type them: read from the command itself, so that there is one list of them.

From Python and from an agent, values come as they are written there: numbers, lists, mappings. They are turned into
what a person would have typed, and read by what reads that; so names, defaults and errors are the command's.
"""

from __future__ import annotations

import difflib
import inspect
import os
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from autotune.errors import UsageError
from autotune.knobs import format_scalar

Kind = Literal["text", "texts", "path", "paths", "switch"]
OF_THE_TERMINAL = frozenset({"context", "json", "quiet", "version"})
"""Parameters of commands that are about what a terminal shows."""


@dataclass(frozen=True)
class Parameter:
    """One option.

    Attributes:
        name: As Python spells it; the option has dashes.
        kind: What is typed for it: a text, several, a path, several, or the option alone.
        default: What is used when it is left out.
        help: What it means.
        sample: How its value is written, such as ``KNOB=VALUE``; empty where that needs no words.
    """

    name: str
    kind: Kind
    default: Any
    help: str
    sample: str = ""

    @property
    def option(self) -> str:
        """As it is typed: ``--memory-target``."""
        return f"--{self.name.replace('_', '-')}"

    def typed(self, value: Any) -> Any:
        """What a person would have typed for a value.

        Raises:
            UsageError: There are no words for it.
        """
        if value is None:
            return self.default
        if self.kind == "texts" and isinstance(value, Mapping):
            return [f"{name}={self._text(inner)}" for name, inner in value.items()]
        if self.kind in {"texts", "paths"}:
            one = self._text if self.kind == "texts" else self._path
            return [one(part) for part in ([value] if isinstance(value, (str, os.PathLike)) else self._all(value))]
        return {"switch": self._switch, "path": self._path, "text": self._text}[self.kind](value)

    def _switch(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise self._refusal("True or False", value)
        return value

    def _text(self, value: Any) -> str:
        """One word, or several separated by commas."""
        if value is None or isinstance(value, (str, bool, int, float)):
            return format_scalar(value)
        if isinstance(value, os.PathLike):
            return str(os.fspath(value))
        return ",".join(format_scalar(one) for one in self._all(value))

    def _path(self, value: Any) -> Path:
        if not isinstance(value, (str, os.PathLike)):
            raise self._refusal("the path of a file", value)
        return Path(value)

    def _all(self, value: Any) -> Iterable[Any]:
        if not isinstance(value, Collection) or isinstance(value, (bytes, Mapping)):
            raise self._refusal("a text, a number or a list of them", value)
        return value

    def _refusal(self, expected: str, value: Any) -> UsageError:
        return UsageError(f"{self.option}: expected {expected}, got {value!r:.60}; pass one, or leave it out")


def parameters_of(command: Callable[..., Any], without: Collection[str] = ()) -> dict[str, Parameter]:
    """The options of a command, but for those of the terminal and those named."""
    hints = typing.get_type_hints(command, include_extras=True)
    found = {}
    for name, parameter in inspect.signature(command).parameters.items():
        if name in OF_THE_TERMINAL or name in without:
            continue
        told = hints[name].__metadata__[0]  # Annotated[type, typer.Option(…)]
        default = None if parameter.default is inspect.Parameter.empty else parameter.default
        kind = _kind_of(typing.get_args(hints[name])[0])
        found[name] = Parameter(name, kind, default, told.help or "", told.metavar or "")
    return found


def typed(parameters: Mapping[str, Parameter], values: Mapping[str, Any]) -> dict[str, Any]:
    """All of a command's options, as typed: these values, and the defaults of the others.

    Raises:
        TypeError: There is no such option.
        UsageError: There are no words for a value.
    """
    for name in values:
        if name not in parameters:
            near = difflib.get_close_matches(name, parameters, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(parameters)}"
            raise TypeError(f"there is no option {name!r}; {hint}")
    return {name: parameter.typed(values.get(name)) for name, parameter in parameters.items()}


def _kind_of(hint: Any) -> Kind:
    """What is typed for a parameter of this type."""
    parts = {hint, *typing.get_args(hint)}
    if bool in parts:
        return "switch"
    if Path in parts:
        return "path"
    inner = {argument for part in parts for argument in typing.get_args(part)}
    if Path in inner:
        return "paths"
    return "texts" if str in inner else "text"
