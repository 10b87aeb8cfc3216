"""A training script: the command that runs it, what it is called, and what its environment needs."""

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
from autotune.secrets import is_masked, masked_command, remember_secrets

RECORDER = Path(__file__).parents[1] / "recorder"
LAUNCHERS = (
    "torch.distributed.", "accelerate.", "deepspeed.", "coverage.", "cProfile.", "debugpy.", "pdb.", "profile.",
    "trace.",
)  # fmt: skip
"""Modules that start a script, and what is in them."""
QUIET = {
    "AUTOTUNE_BURST": "1", "WANDB_MODE": "disabled", "COMET_MODE": "disabled", "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "MLFLOW_ALLOW_FILE_STORE": "true", "MPLBACKEND": "agg", "SWANLAB_MODE": "disabled", "DVCLIVE_TEST": "true",
}  # fmt: skip
"""In bursts: trackers have modes of their own in which nothing is sent. MLflow has none: the recorder's `quiet`
redirects it to a folder, which MLflow 3.17 refuses unless it is allowed. DVCLive's test mode writes into a temporary
folder. Matplotlib opens no window."""


@dataclass(frozen=True)
class Script:
    """A command that trains.

    Attributes:
        command: Its words, as they are executed, with their secrets.
        writable: What its bursts may change in earnest.
        any_network: Whether its bursts may connect anywhere after their first step.
    """

    command: tuple[str, ...]
    writable: tuple[Path, ...] = ()
    any_network: bool = False

    @classmethod
    def of(cls, words: Sequence[str]) -> Script:
        """The script that a person typed.

        Raises:
            UsageError: There is no command, or no such program, or a secret in it is hidden.
        """
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
        """What its files are called: the Python file that the command names first, without its ending, or module."""
        for before, word in itertools.pairwise(("", *self.command)):
            if before in {"-m", "--module"} and not f"{word}.".startswith(LAUNCHERS):
                return word.rpartition(".")[2]
            if word.endswith((".py", ".sh")):
                return Path(word).stem
        return Path(self.command[0]).name

    @property
    def place(self) -> str:
        """The path of that file from here without its ending, or the module with its packages: scripts of one name."""
        for before, word in itertools.pairwise(("", *self.command)):
            if before in {"-m", "--module"} and not f"{word}.".startswith(LAUNCHERS):
                return word
            if word.endswith((".py", ".sh")):
                whole = Path(os.path.abspath(word)).with_suffix("")
                return (whole.relative_to(Path.cwd()) if whole.is_relative_to(Path.cwd()) else whole).as_posix()
        return Path(self.command[0]).name

    @property
    def text(self) -> str:
        """As it is typed, its secrets hidden."""
        return shlex.join(masked_command(self.command))

    @property
    def watched(self) -> list[str]:
        """Its words, so that the recorder comes along also where ``env`` sets the path of Python anew."""
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
        """The word with which the recorder cannot come along, where the command itself says so."""
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
    """Python's own options that take nothing, as they are typed, before the script or what else it runs."""
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or word == "-":
            return
        plain = re.match(r"-[^WXcm-]*", word)  # those take the rest of the word, or the next
        if plain is not None:
            yield plain[0]
            ends = word[len(plain[0]) :]
            if ends[:1] in {"c", "m"}:
                return
            if ends in {"W", "X"}:
                next(rest, None)


def _with_recorder(path: str | None) -> str:
    """Python's path, on which the recorder comes first."""
    return os.pathsep.join([str(RECORDER / "site"), *filter(None, [path])])
