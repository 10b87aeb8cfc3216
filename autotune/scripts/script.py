"""A training script: the command that runs it, its name, and its environment."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import UsageError
from autotune.recorder.arrival import ORDERS
from autotune.sandbox.system import WINDOWS
from autotune.secrets import is_masked, masked_command, remember_secrets

RECORDER = Path(__file__).parents[1] / "recorder"
LAUNCHERS = (
    "torch.distributed.", "accelerate.", "deepspeed.", "coverage.", "cProfile.", "debugpy.", "pdb.", "profile.",
    "trace.",
)  # fmt: skip
"""Modules that start a script, by the beginnings of their names."""
_MODULE = re.compile(r"-m|--module(?:=(.*))?")
"""The option that names a module, of Python and of launchers."""
_PYTHONS_MODULE = re.compile(r"-[bBdEiIOPqsSuvx]*m(.*)")
"""The same after Python's name: other options, or the module, may be in the same word."""
QUIET = {
    "AUTOTUNE_BURST": "1", "WANDB_MODE": "disabled", "COMET_MODE": "disabled", "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "MLFLOW_ALLOW_FILE_STORE": "true", "MPLBACKEND": "agg", "SWANLAB_MODE": "disabled", "DVCLIVE_TEST": "true",
}  # fmt: skip
"""Variables for bursts. Trackers get modes in which they send nothing. MLflow has none: the recorder's `quiet`
redirects it to a folder, which MLflow 3.17 refuses unless it is allowed. DVCLive's test mode writes into a temporary
folder. Matplotlib opens no window."""


@dataclass(frozen=True)
class Script:
    """A command that trains.

    Attributes:
        command: Its words as they are executed, secrets included.
        writable: The paths that its bursts may really change.
        any_network: Whether its bursts may connect anywhere after their first step.
    """

    command: tuple[str, ...]
    writable: tuple[Path, ...] = ()
    any_network: bool = False

    @classmethod
    def of(cls, words: Sequence[str]) -> Script:
        """The script that a person typed.

        Raises:
            UsageError: This is Windows, or there is no command, or no such program, or a secret in it is hidden.
        """
        if WINDOWS:
            raise UsageError(
                "expected Linux or macOS, since a script's processes report through local sockets, got Windows; tune a "
                "build() with autotune --model, or run this in WSL2"
            )
        command = tuple(words[1:] if words and words[0] == "--" else words)
        if not command:
            raise UsageError("expected the command that trains, got none; pass it last, as in -- python train.py")
        if is_masked(command):
            raise UsageError(
                f"expected the command that trains, got {shlex.join(masked_command(command))}, in which autotune has "
                "hidden a secret; write the secret, or a shell variable that holds it, in place of ***"
            )
        if shutil.which(command[0]) is None:
            raise UsageError(f"expected a program that can be run, got {command[0]!r}; check its name and PATH")
        remember_secrets(command)
        return cls(command)

    def __str__(self) -> str:
        return self.text

    @property
    def name(self) -> str:
        """The name of its result files: the first Python file or module of the command, without its ending."""
        module, file = self._trained
        return module.rpartition(".")[2] or (Path(file).stem if file else Path(self.command[0]).name)

    @property
    def place(self) -> str:
        """The path of that file without its ending, or the module's full name: it separates scripts of one name."""
        module, file = self._trained
        if not file:
            return module or Path(self.command[0]).name
        whole = Path(os.path.abspath(file)).with_suffix("")
        return (whole.relative_to(Path.cwd()) if whole.is_relative_to(Path.cwd()) else whole).as_posix()

    @property
    def _trained(self) -> tuple[str, str]:
        """The module that the command trains, or else the file; of both, the other is empty."""
        words, is_pythons = iter(self.command), False
        for word in words:
            option = _MODULE.fullmatch(word) or (_PYTHONS_MODULE.fullmatch(word) if is_pythons else None)
            is_pythons = Path(word).name.startswith("python") or (is_pythons and word.startswith("-"))
            if option is not None:
                module = option[1] or next(words, "")
                if not f"{module}.".startswith(LAUNCHERS):
                    return module, ""
            elif word.endswith((".py", ".sh")):
                return "", word
        return "", ""

    @property
    def text(self) -> str:
        """The command as it is typed, with its secrets hidden."""
        return shlex.join(masked_command(self.command))

    @property
    def watched(self) -> list[str]:
        """Its words, changed so that the recorder also comes along if ``env`` sets PYTHONPATH."""
        words = list(self.command)
        if Path(words[0]).name != "env":
            return words
        for place, word in enumerate(words[1:], 1):
            name, equals, value = word.partition("=")
            if name == "PYTHONPATH" and equals:
                words[place] = f"{name}={_with_recorder(value)}"
            elif not equals and not word.startswith("-"):
                break
        return words

    @property
    def closed_by(self) -> str | None:
        """The word of the command that keeps the recorder out; None if there is none."""
        words = list(self.command)
        if Path(words[0]).name == "env":
            options = list(itertools.takewhile(lambda word: word.startswith("-") or "=" in word, _joined(words[1:])))
            for word in options:
                if word in {"-", "-i", "--ignore-environment"} or re.fullmatch(r"-.*PYTHONPATH", word):
                    return f"env {word}"
            words = _joined(words[1:])[len(options) :]
        if not words or not Path(words[0]).name.startswith(("python", "pypy")):
            return None
        return next((f"{words[0]} {word}" for word in _options(words[1:]) if {*word} & {*"IES"}), None)

    def environment(self, orders: Mapping[str, Any], base: Mapping[str, str]) -> dict[str, str]:
        """The variables under which the recorder comes into every interpreter that the command starts."""
        return {**base, "PYTHONPATH": _with_recorder(base.get("PYTHONPATH")), ORDERS: json.dumps(orders)}


def _joined(words: Sequence[str]) -> list[str]:
    """The words of ``env``, whose ``-u NAME`` is one."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] in {"-u", "--unset", "-C", "--chdir"}:
            joined[-1] += f" {word}"
        else:
            joined.append(word)
    return joined


def _options(words: Iterable[str]) -> Iterator[str]:
    """Python's own options without an argument, before the script or module that it runs."""
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or word == "-":
            return
        plain = re.match(r"-[^WXcm-]*", word)  # these take the rest of the word, or the next word
        if plain is not None:
            yield plain[0]
            ends = word[len(plain[0]) :]
            if ends[:1] in {"c", "m"}:
                return
            if ends in {"W", "X"}:
                next(rest, None)


def _with_recorder(path: str | None) -> str:
    """PYTHONPATH with the recorder first."""
    return os.pathsep.join([str(RECORDER / "site"), *filter(None, [path])])
