"""Every command with its arguments and options, as typer knows them."""

from __future__ import annotations

import inspect
import typing
from pathlib import Path
from typing import Any

_TAKES = {Path: "FILE", int: "N", str: "TEXT"}


def text() -> str:
    """The reference as Markdown: one section per command, with its help and a table of its options."""
    from typer.main import get_command

    from autotune.cli import app

    group: Any = get_command(app)
    sections = [_section("autotune", group)]
    sections += [_section(f"autotune {name}", command) for name, command in group.commands.items()]
    return "\n\n".join(sections)


def _section(title: str, command: Any) -> str:
    signature = inspect.signature(command.callback, eval_str=True).parameters
    hints = {name: typing.get_args(item.annotation)[0] for name, item in signature.items() if name != "context"}
    own = [parameter for parameter in command.params if parameter.name in hints and not parameter.hidden]
    words = [title, *(_placeholder(p) for p in own if p.param_type_name == "argument")]
    summary = (command.help or "").strip()
    rows = [_row(parameter, _takes(parameter, hints[parameter.name])) for parameter in own]
    table = ["| option | takes | when left out | meaning |", "|---|---|---|---|", *rows] if rows else []
    return "\n\n".join(part for part in (f"## `{' '.join(words)}`", summary, "\n".join(table)) if part)


def _placeholder(parameter: Any) -> str:
    return f"{parameter.name.upper()}{'…' if parameter.nargs == -1 else ''}"


def _takes(parameter: Any, hint: Any) -> str | None:
    """The kind of value that a parameter takes; None for a flag."""
    kinds = {hint, *typing.get_args(hint)}  # the types inside ``Path | None`` and ``list[str] | None``
    kinds |= {inner for kind in kinds for inner in typing.get_args(kind)}
    return None if bool in kinds else parameter.metavar or next(_TAKES[kind] for kind in _TAKES if kind in kinds)


def _row(parameter: Any, takes: str | None) -> str:
    name = ", ".join(parameter.opts) if parameter.param_type_name == "option" else _placeholder(parameter)
    shows_default = takes is not None and not parameter.required and parameter.default not in {None, ""}
    default = f"`{parameter.default}`" if shows_default else ""
    meaning = (parameter.help or "").replace("|", r"\|")
    return f"| `{name}` | {f'`{takes}`' if takes else ''} | {default} | {meaning} |"
