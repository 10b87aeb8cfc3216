"""A study that several machines of one kind share: what the others have run, what they are running, and who confirms.

All of it is in the study itself, which a relational database keeps: trials, and a few of its own attributes.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from optuna.trial import FrozenTrial, TrialState

if TYPE_CHECKING:
    import optuna

STALE_SECONDS = 300.0
"""A trial that has been open for longer belongs to a machine that is gone: it keeps nobody from its point."""
ALIVE_SECONDS = 10.0
"""Since the last trial of others: who confirms tells a round every few seconds, but for very slow workloads, in which
two machines then confirm. Chosen."""
SETTLING_SECONDS = 0.5
"""Between claiming and looking who has claimed last: a database has no test-and-set that Optuna would pass on."""
POLL_SECONDS = 0.5
_BEGINNING, _CONFIRMING, _CONFIRMED = "beginning", "confirming", "confirmed"


class Alone:
    """The view of a study that is this machine's own: there are no others."""

    def opened(self, _number: int) -> None:
        """There is nobody to tell."""

    def arrived(self) -> list[FrozenTrial]:
        """No other machine tells anything."""
        return []

    def is_under_way(self, _parameters: Mapping[str, Any] | None) -> bool:
        """No other machine runs anything."""
        return False

    def begins(self) -> bool:
        """This machine always does."""
        return True

    def may_confirm(self, _is_enough: Callable[[], bool], _meanwhile: Callable[[], None]) -> bool:
        """This machine always may."""
        return True

    def confirmed(self) -> None:
        """There is nobody to tell."""

    def is_over(self) -> bool:
        """Nobody is waited for."""
        return False


class Shared(Alone):
    """One machine's view of a shared study.

    Args:
        study: Which all of them have opened in one storage.
        is_over: Whether this machine's time is, or somebody asked it to end: it waits for nobody then.
    """

    def __init__(self, study: optuna.Study, is_over: Callable[[], bool] = lambda: False) -> None:
        self._study = study
        self._is_over = is_over
        self._name = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self._seen: set[int] = set()
        self._own: set[int] = set()
        self._running: list[dict[str, Any]] = []
        self._heard = time.monotonic()

    def opened(self, number: int) -> None:
        """This machine runs a trial itself."""
        self._own.add(number)

    def arrived(self) -> list[FrozenTrial]:
        """Trials that have ended since the last call, but for this machine's own, as they were begun."""
        trials = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.RUNNING))
        new = [trial for trial in trials if trial.state is TrialState.COMPLETE and trial.number not in self._seen]
        self._seen.update(trial.number for trial in new)
        others = [trial for trial in trials if trial.state is TrialState.RUNNING and trial.number not in self._own]
        self._running = [dict(trial.params) for trial in others if not _is_stale(trial)]
        theirs = [trial for trial in new if trial.number not in self._own]
        if theirs:
            self._heard = time.monotonic()
        return theirs

    def is_under_way(self, parameters: Mapping[str, Any] | None) -> bool:
        """Whether another machine was running a point, when `arrived` was called last."""
        return parameters is not None and dict(parameters) in self._running

    def begins(self) -> bool:
        """Whether this machine is the one that runs the baseline."""
        return self._claims(_BEGINNING)

    def may_confirm(self, is_enough: Callable[[], bool], meanwhile: Callable[[], None]) -> bool:
        """Whether this machine is the one that confirms; where another one does, waits until it has, or time is over.

        Nobody does while others still search: what they find belongs to the finalists.

        Args:
            is_enough: Whether there is time to wait, and to confirm still: without it, only who is heard of is waited
                for.
            meanwhile: Called while it waits.
        """
        self._heard = time.monotonic()
        while not self._study.user_attrs.get(_CONFIRMED) and not self._is_over():
            if not self._running and self._claims(_CONFIRMING):
                return True
            if not is_enough() and time.monotonic() - self._heard > ALIVE_SECONDS:
                return True
            time.sleep(POLL_SECONDS)
            meanwhile()
        meanwhile()
        return False

    def confirmed(self) -> None:
        """Tells the others that the rounds are over."""
        self._study.set_user_attr(_CONFIRMED, True)

    def is_over(self) -> bool:
        """Whether this machine waits for nobody any more."""
        return self._is_over()

    def _claims(self, what: str) -> bool:
        """Whether this machine has claimed something, as it does now where nobody has."""
        if self._study.user_attrs.get(what) is None:
            self._study.set_user_attr(what, self._name)
            time.sleep(SETTLING_SECONDS)
        return bool(self._study.user_attrs.get(what) == self._name)


def _is_stale(trial: FrozenTrial) -> bool:
    began = trial.datetime_start
    return began is not None and (datetime.now() - began).total_seconds() > STALE_SECONDS
