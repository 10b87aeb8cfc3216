"""A study that several machines of one kind share: what the others have run, what they run now, and which confirms.

All of it is stored in the study itself, in a relational database: trials, and a few attributes.
"""

from __future__ import annotations

import math
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
"""A machine counts as gone if this one has seen its trial open for longer; the trial's point is free again. A machine
that confirms counts as gone if nothing new has come for as long. Each machine goes by its own clock, since two may
differ."""
BEGINNING_SECONDS = 10.0
"""The machine that begins opens a trial at once; after this long without one, another begins. Not tuned."""
ALIVE_SECONDS = 10.0
"""Time since the last trial of others. A machine that confirms stores a round every few seconds; on very slow
workloads a round takes longer, and then two machines confirm. Not tuned."""
SETTLING_SECONDS = 0.5
"""Time between writing a claim and reading which machine holds it: Optuna offers no test-and-set of a database."""
POLL_SECONDS = 0.5
_BEGINNING, _CONFIRMING, _CONFIRMED = "beginning", "confirming", "confirmed"


class Shared:
    """One machine's view of a shared study.

    Args:
        study: All machines have opened it in one storage.
        is_over: Returns whether this machine's time has run out, or a user has asked it to end.
        note: Receives a note, once, about each thing that this machine waits for.
    """

    def __init__(
        self,
        study: optuna.Study,
        is_over: Callable[[], bool] = lambda: False,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.is_over = is_over  # returns whether this machine waits no longer
        self.distributions: dict[str, BaseDistribution] = {}  # of other machines: for each parameter the study's first
        self._study = study
        self._note = note
        self._noted: set[str] = set()
        self._name = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self._seen: set[int] = set()
        self._own: set[int] = set()
        self._running: list[tuple[int, dict[str, Any]]] = []  # numbers and parameters
        self._open_since: dict[int, float] = {}
        self._claim: tuple[str, str] | None = None
        self._heard = time.monotonic()

    def opened(self, number: int) -> None:
        """Records that this machine runs a trial itself."""
        self._own.add(number)

    def arrived(self) -> list[FrozenTrial]:
        """Other machines' trials that have ended since the last call, in the order in which they began."""
        trials = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.RUNNING))
        new = [trial for trial in trials if trial.state is TrialState.COMPLETE and trial.number not in self._seen]
        self._seen.update(trial.number for trial in new)
        others = [trial for trial in trials if trial.state is TrialState.RUNNING and trial.number not in self._own]
        theirs, now = [trial for trial in new if trial.number not in self._own], time.monotonic()
        if theirs or any(trial.number not in self._open_since for trial in others):
            self._heard = now
        self._open_since = {trial.number: self._open_since.get(trial.number, now) for trial in others}
        alive = (trial for trial in others if now - self._open_since[trial.number] < STALE_SECONDS)
        self._running = [(trial.number, dict(trial.params)) for trial in alive]
        for trial in (*theirs, *others):
            self.distributions = trial.distributions | self.distributions
        return theirs

    def is_under_way(self, parameters: Mapping[str, Any] | None, *, before: float = math.inf) -> bool:
        """Whether another machine was running a point at the last call of `arrived`.

        Args:
            parameters: Of the point; None if it is outside the search space.
            before: Only trials with a lower number count.
        """
        return any(number < before and running == parameters for number, running in self._running)

    def begins(self) -> bool:
        """Whether this machine is the one that runs the baseline."""
        if not self._running and self._claims(_BEGINNING, BEGINNING_SECONDS):
            return True
        self._tell("another machine of this study runs the baseline; this one waits for it")
        return False

    def may_confirm(self, is_enough: Callable[[], bool], meanwhile: Callable[[], None]) -> bool:
        """Whether this machine is the one that confirms; if another does, waits until it has, or time runs out.

        No machine confirms while others still search: their finds may become finalists.

        Args:
            is_enough: Returns whether there is time to wait and still to confirm. Without it, this machine only waits
                for one that still shows activity.
            meanwhile: Called while this machine waits.
        """
        self._heard = time.monotonic()
        while not self._study.user_attrs.get(_CONFIRMED) and not self.is_over():
            if not self._running and self._claims(_CONFIRMING, STALE_SECONDS):
                return True
            self._tell("another machine of this study still searches, or confirms; this one waits for it")
            if not is_enough() and time.monotonic() - self._heard > ALIVE_SECONDS:
                return True
            time.sleep(POLL_SECONDS)
            meanwhile()
        meanwhile()
        return False

    def confirmed(self) -> None:
        """Records, for the other machines, that the rounds are over."""
        self._study.set_user_attr(_CONFIRMED, True)

    def _claims(self, what: str, seconds: float) -> bool:
        """Whether this machine holds the claim to a task; claims it now if no other machine has.

        Args:
            what: The task, for one machine.
            seconds: How long another machine's claim lasts without any sign of activity.
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
        if text not in self._noted:
            self._noted.add(text)
            self._note(text)
