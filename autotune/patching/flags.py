"""Options of argparse: the word that sets an option, and the attribute that holds its value."""

from __future__ import annotations

import ast
from collections.abc import Sequence


def typed(named: Sequence[str], argv: Sequence[str]) -> str | None:
    """The word of the command line that sets one of these options, which may be abbreviated."""
    for word in argv[1:]:
        before = word.partition("=")[0]
        for option in named:
            long = option.startswith("--") and len(before) > 2 and before.startswith("--")
            if word == option or (long and option.startswith(before)):
                return before
            if not option.startswith("--") and not word.startswith("--") and word.startswith(option):
                return option
    return None


def destination(option: ast.Call) -> str | None:
    """The attribute that holds the value of an option."""
    for keyword in option.keywords:
        if keyword.arg == "dest":
            return str(keyword.value.value) if isinstance(keyword.value, ast.Constant) else None
    flags = [one.value for one in option.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    long = [flag for flag in flags if flag.startswith("--")]
    name = next(iter(long or flags), None)
    return name.lstrip("-").replace("-", "_") if name is not None else None
