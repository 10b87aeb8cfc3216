"""`autotune.live`: tunes your own loop while it trains."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shlex
import sys
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar

from torch.utils.data import DataLoader

from autotune.errors import UsageError
from autotune.hardware import probe_host
from autotune.knobs import allowed_knobs
from autotune.recorder.arrival import ORDERS
from autotune.recorder.live.training import LiveTraining
from autotune.results.live import LiveLog
from autotune.secrets import masked_command, remember_secrets
from autotune.workload.user_errors import described

Loader = TypeVar("Loader", bound=DataLoader[Any])
Model = TypeVar("Model")
Optimizer = TypeVar("Optimizer")


def live(
    loader: Loader, model: Model, optimizer: Optimizer, *, out: str | Path | None = None, allow: str = ""
) -> tuple[Loader, Model, Optimizer]:
    """Tunes the training of this process while it goes on; call it once, before the loop.

    It returns the objects unchanged. Settings that do not change what is learned (loader workers, threads, the form of
    the optimizer) play block by block beside yours, and the faster ones stay. Settings that cannot be changed keep your
    value. Training continues whatever fails. In a script that a command of autotune has started, it stays off.

    Args:
        loader: The loader that feeds the training.
        model: The model that trains.
        optimizer: Its optimizer.
        out: Keep a log beside this path, for ``autotune watch``; None: no log.
        allow: Settings to try although they change what is learned: ``precision``, ``compile_mode``.

    Raises:
        UsageError: The arguments are in another order, or `allow` names something else.
    """
    if ORDERS not in os.environ:
        _require_order(loader, model, optimizer)
    begin(out, allow)
    return loader, model, optimizer


def begin(out: str | Path | None = None, allow: str = "") -> None:
    """Tunes the training of this process from now on, as `live` does; callbacks of frameworks call it."""
    allowed = allowed_knobs(allow)
    if ORDERS in os.environ:  # the recorder is here already, and two would undo each other's changes
        _stay_off(json.loads(os.environ[ORDERS])["role"])
        return
    remember_secrets(sys.argv, os.environ)
    LiveTraining(_Adviser(out), probe_host().cpu.budget, allowed)


def _require_order(*given: object) -> None:
    """Refuses what cannot be meant. Wrappers may be of any class, and several models may come in a list."""
    for (name, needed), one in zip(_NEEDED.items(), given, strict=True):
        if not hasattr(one, needed) and not isinstance(one, (list, tuple, dict, NoneType)):
            raise UsageError(
                f"expected {'an' if name == 'optimizer' else 'a'} {name}, got {described(one)}; "
                "pass loader, model and optimizer in this order"
            )


_NEEDED = {"loader": "__iter__", "model": "__call__", "optimizer": "step"}
"""What each argument of `live` has, whatever its class."""
_INSTEAD = {
    "train": "'autotune train' tunes this process, with its own --out and --allow",
    "launch": "'autotune launch' trains with a result here; to tune again, start the script with 'autotune train'",
}
"""What a command does in its script, by its role; bursts, which measure the script as it is, say nothing."""


@functools.cache
def _stay_off(role: str) -> None:
    """Says once why the script's own call does nothing: frameworks' callbacks come with each fit."""
    if role in _INSTEAD:
        print(f"autotune: the script's own tuning stays off: {_INSTEAD[role]}", file=sys.stderr)


class _Adviser:
    """Plans candidates in the training process itself."""

    def __init__(self, out: str | Path | None) -> None:
        self._log = LiveLog(lambda sentence: print(f"autotune: {sentence}", file=sys.stderr))
        self._out = out
        self._candidates: list[dict[str, Any]] = []

    def ask(self, facts: dict[str, Any]) -> None:
        """Asks for candidates."""
        if self._out is not None:
            self._log.open(Path(self._out), shlex.join(masked_command(sys.argv)))
        self._candidates = self._log.begin({"event": "began", "pid": os.getpid(), **facts}, probe_host())

    def answer(self) -> list[dict[str, Any]]:
        """The candidates."""
        return self._candidates

    def tell(self, event: str, **content: Any) -> None:
        """Logs an event; a failing log never stops the training."""
        with contextlib.suppress(Exception):
            self._log.add({"event": event, **content})
            if event == "ended":
                self._log.say_ended("no setting is faster than yours")
