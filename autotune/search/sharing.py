"""A study that several machines of one kind share: what the others have run, what they are running, and who confirms.

All of it is in the study itself, which a relational database keeps: trials, and a few of its own attributes.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from optuna.trial import FrozenTrial, TrialState

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

STALE_SECONDS = 300.0
"""A trial that this machine has seen open for longer belongs to one that is gone: it keeps nobody from its point. Who
confirms is gone when nothing new has come for as long. Clocks of two hosts may differ: each goes by its own."""
BEGINNING_SECONDS = 10.0
"""Who begins opens a trial at once: without one for so long, somebody else begins. Chosen."""
ALIVE_SECONDS = 10.0
"""Since the last trial of others: who confirms tells a round every few seconds, but for very slow workloads, in which
two machines then confirm. Chosen."""
SETTLING_SECONDS = 0.5
"""Between claiming and looking who has claimed last: a database has no test-and-set that Optuna would pass on."""
POLL_SECONDS = 0.5
_BEGINNING, _CONFIRMING, _CONFIRMED = "beginning", "confirming", "confirmed"


class Alone:
    """The view of a study that is this machine's own: there are no others.

    Attributes:
        distributions: By which other machines draw, of each parameter the one that the study knew first.
    """

    def __init__(self) -> None:
        self.distributions: dict[str, BaseDistribution] = {}

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
        note: Told, once for each, what is waited for.
    """

    def __init__(
        self,
        study: optuna.Study,
        is_over: Callable[[], bool] = lambda: False,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__()
        self._study = study
        self._is_over = is_over
        self._note = note
        self._told: set[str] = set()
        self._name = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self._seen: set[int] = set()
        self._own: set[int] = set()
        self._running: list[dict[str, Any]] = []
        self._open_since: dict[int, float] = {}
        self._claim: tuple[str, str] | None = None
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
        theirs, now = [trial for trial in new if trial.number not in self._own], time.monotonic()
        if theirs or any(trial.number not in self._open_since for trial in others):
            self._heard = now
        self._open_since = {trial.number: self._open_since.get(trial.number, now) for trial in others}
        self._running = [dict(trial.params) for trial in others if now - self._open_since[trial.number] < STALE_SECONDS]
        for trial in (*theirs, *others):
            self.distributions = trial.distributions | self.distributions
        return theirs

    def is_under_way(self, parameters: Mapping[str, Any] | None) -> bool:
        """Whether another machine was running a point, when `arrived` was called last."""
        return parameters is not None and dict(parameters) in self._running

    def begins(self) -> bool:
        """Whether this machine is the one that runs the baseline."""
        if not self._running and self._claims(_BEGINNING, BEGINNING_SECONDS):
            return True
        self._tell("another machine of this study runs the baseline, and is waited for")
        return False

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
            if not self._running and self._claims(_CONFIRMING, STALE_SECONDS):
                return True
            self._tell("another machine of this study still searches, or confirms, and is waited for")
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

    def _claims(self, what: str, seconds: float) -> bool:
        """Whether this machine has claimed something, as it does now where nobody has.

        Args:
            what: To be done by one machine.
            seconds: After which another machine's claim counts no more, where nothing was heard of any since.
        """
        holder = self._study.user_attrs.get(what)
        if holder not in {None, self._name} and self._claim != (what, holder):
            self._claim, self._heard = (what, holder), time.monotonic()
        if holder is None or (holder != self._name and time.monotonic() - self._heard > seconds):
            self._study.set_user_attr(what, self._name)
            time.sleep(SETTLING_SECONDS)
            holder = self._study.user_attrs.get(what)
        return bool(holder == self._name)

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._note(text)
