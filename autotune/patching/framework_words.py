"""Knobs as arguments in a script: those of loaders, and of frameworks' objects."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from autotune.knobs import DATALOADER_ARGUMENTS, KNOBS, going_with
from autotune.knobs.knob import Framework
from autotune.patching.source import Source

LOADER = DATALOADER_ARGUMENTS
_PACKAGES: dict[str, Framework] = {
    "transformers": "transformers", "lightning": "lightning", "pytorch_lightning": "lightning",
    "accelerate": "accelerate",
}  # fmt: skip


def _arguments(knob: str) -> dict[str, str]:
    """The arguments that take a knob's value unchanged, of DataLoader and of frameworks."""
    words = [("torch", LOADER.get(knob)), *KNOBS[knob].words.items()]
    return {taker: word for taker, word in words if isinstance(word, str)}


_KNOB_OF = {argument: KNOBS[knob] for knob in KNOBS for argument in _arguments(knob).values()}
_WORKERS = _arguments("num_workers")
NEEDS_WORKERS = {
    argument: _WORKERS[taker] for knob in going_with("num_workers") for taker, argument in _arguments(knob).items()
}
"""Arguments that are refused without workers, and the argument that gives the number of workers."""


def absent_values(name: str) -> tuple[object, ...]:
    """The values that an argument has if it is not given; several are alike."""
    knob = _KNOB_OF.get(name)
    return knob.absent.get(name, (knob.default,)) if knob is not None else ()


def absent(name: str, value: object) -> bool:
    """Whether an argument that is not given has this value already."""
    return any(type(value) is type(default) and value == default for default in absent_values(name))


def framework_call(source: Source) -> tuple[Framework, ast.Call] | None:
    """The one call that takes a framework's arguments, and the framework; None if there is no such call."""
    makers = [(framework, call) for call in source.calls() for framework in _made(source.meanings(call.func))]
    order: tuple[Framework, ...] = ("transformers", "lightning", "accelerate", "fabric")
    for framework in order:
        calls = [call for own, call in makers if own == framework]
        if len(calls) == 1:
            return framework, calls[0]
    return None


def _made(names: Iterable[str]) -> set[Framework]:
    """The frameworks whose object a call of one of these names makes; a script may have a Trainer of its own."""
    made: set[Framework] = set()
    for name in names:
        package, last = _PACKAGES.get(name.partition(".")[0]), name.rpartition(".")[2]
        if package == "transformers" and last.endswith("TrainingArguments"):
            made.add("transformers")
        elif package == "lightning" and last in {"Trainer", "Fabric"}:
            made.add("lightning" if last == "Trainer" else "fabric")
        elif package == "accelerate" and last == "Accelerator":
            made.add("accelerate")
    return made


def arguments(framework: Framework, knob: str, value: Any, optimizer: str | None) -> dict[str, Any] | None:
    """A knob in a framework's own keyword arguments; None if it has none for this value."""
    word = KNOBS[knob].words.get(framework)
    if isinstance(word, str):
        return {word: value}
    written = KNOBS[knob].written.get(framework)
    return written(value, optimizer) if written is not None else None
