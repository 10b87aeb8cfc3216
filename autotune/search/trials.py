"""Every burst as a trial of one Optuna study, so that Optuna's own tools apply and a killed run resumes.

Ask and tell: what the search begins with is enqueued, the sampler proposes the rest, and every end, a failure too, is
told.
A failure is told as a finite, pessimistic value with a violated constraint: every sampler learns from it, whereas
trials that FAIL are ignored and come again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import optuna
from optuna.distributions import IntDistribution
from optuna.trial import FrozenTrial, TrialState

from autotune.knobs import KNOBS, Scalar, Space
from autotune.measuring import (
    SAMPLES_PER_SECOND,
    Burst,
    Measurement,
    Objective,
    Outcome,
    Pair,
    Point,
    compiler_text,
    pool,
)
from autotune.search.distributions import PARAMETER_PREFIX, differing, holds, make_distributions, nearest, takes
from autotune.search.model import Design
from autotune.search.sharing import POLL_SECONDS, Alone, Shared
from autotune.search.standing import Standing, standings
from autotune.search.storage import beside

Kept = TypeVar("Kept")
_BURST, _STAGE, _REASON, _ROUND = "burst", "stage", "reason", "round"
_PAIR, _CHAINED, _TURN = "pair", "chained", "turn"


@dataclass(frozen=True)
class Trial:
    """A burst and why it was run.

    Attributes:
        burst: What was run, and how it ended.
        stage: The part of the search that asked for it.
        reason: Why, in one sentence.
        round: Which interleaved round of the confirmation it belongs to, if it does.
        pair: How it did against the incumbent of its time; None without one, in a round, or where it failed.
        chained: Beside an incumbent, their ratio times the incumbent's own score: so all scores are chained to the
            first one, and the machine's speed of the moment cancels.
        turn: Which challenge of the incumbent it took part in, with all that have the same number; None in a round.
        resumed: Whether an earlier, interrupted run ran it, or another machine.
        objective: What it is judged by.
    """

    burst: Burst
    stage: str
    reason: str
    round: int | None = None
    pair: Pair | None = None
    chained: float | None = None
    turn: int | None = None
    resumed: bool = False
    objective: Objective = SAMPLES_PER_SECOND

    @property
    def score(self) -> float | None:
        """By the objective, chained where it played a duet; None when it did not end well or lacks a figure."""
        measured = self.burst.measurement if self.burst.ok else None
        own = self.objective.score(measured) if measured is not None else None
        return own if own is None or self.chained is None else self.chained


class TrialLog:
    """The study, and its trials as bursts.

    A storage that fails (a full disk, a database gone) costs the trials' place in it and nothing else: the search goes
    on with a copy in memory, and a person is told.

    Args:
        study: An Optuna study that maximises the objective.
        space: What is searched.
        note: Told what a person should know.
        objective: By which trials are judged.
        others: What other machines do in the same study, if they share it.
    """

    def __init__(
        self,
        study: optuna.Study,
        space: Space,
        note: Callable[[str], None] = lambda _: None,
        *,
        objective: Objective = SAMPLES_PER_SECOND,
        others: Alone | None = None,
    ) -> None:
        self.study = study
        self.objective = objective
        self._offered = make_distributions(space)
        self.distributions = dict(self._offered)
        self._space = space
        self.design = Design(space, Point(config=space.baseline))
        self._standings: tuple[int, list[Standing]] = 0, []
        self._note = note
        self._in_memory = False
        self._told_of_compiler = False
        self.trials: list[Trial] = []
        self._others = others or Alone()
        if others is not None:
            self.sync()
            return
        known = study.get_trials(deepcopy=False)
        earlier = [trial for frozen in known if (trial := _trial_from(frozen, objective)) is not None]
        # What the budget of then cut off says nothing now.
        self.trials += [trial for trial in earlier if trial.burst.outcome is not Outcome.TIMEOUT]
        if not all(takes(frozen, self.distributions) for frozen in known):
            try:
                self._move_to(beside(study))
            except Exception as error:  # noqa: BLE001 - each kind of storage has its own errors
                self._continue_in_memory(error)
            return
        # A killed run's open trials would repel the sampler for ever.
        open_trials = [frozen.number for frozen in known if frozen.state is TrialState.RUNNING]
        self._kept(lambda: [self.study.tell(number, state=TrialState.FAIL) for number in open_trials])

    def sync(self) -> None:
        """Takes in what other machines have run meanwhile, where they share the study."""
        self._kept(self._take_in)

    def _take_in(self) -> None:
        arrived = self._others.arrived()
        self._agree()
        theirs = [trial for frozen in arrived if (trial := _trial_from(frozen, self.objective)) is not None]
        # What another machine's budget cut off may fit into this one's.
        self.trials += [trial for trial in theirs if trial.burst.outcome is not Outcome.TIMEOUT]

    def _agree(self) -> None:
        """Draws by the categories with which other machines have begun the study: it takes no others."""
        theirs = self._others.distributions
        if names := differing(theirs, self.distributions):
            self.distributions |= {name: theirs[name] for name in names}
            self._note(
                f"the study was begun with other choices of {', '.join(names)}: what is not on offer here is left to "
                "other machines, and what is not on offer there is tried without the sampler"
            )

    def elsewhere(self, point: Point) -> str | None:
        """Why a point must not run now: another machine is running it."""
        return "another machine is trying it" if self._others.is_under_way(self.parameters(point)) else None

    def move_to(self, space: Space) -> None:
        """Goes on in a space that has more knobs, another start, or a knob that is held."""
        new = {name: one for name, one in make_distributions(space).items() if name not in self.distributions}
        self._offered |= new
        self.distributions |= new
        self._space = space
        self.design, self._standings = Design(space, Point(config=space.baseline)), (0, [])
        self._agree()

    def run(
        self,
        point: Point,
        stage: str,
        reason: str,
        measure: Callable[[], tuple[Burst, Pair | None]],
        *,
        round_number: int | None = None,
    ) -> Trial:
        """Runs a point that the search chose, as a trial."""
        asked = self.ask(point)
        burst, pair = measure()
        return self.finish(asked, stage, reason, burst, pair, round_number=round_number)

    def ask(self, point: Point) -> optuna.Trial:
        """Opens a trial of a point, to be ended by `finish`."""
        return self._kept(lambda: self._ask(point))

    def withdraw(self, asked: optuna.Trial) -> None:
        """Closes a trial whose point was not played: it may be proposed again."""
        self._kept(lambda: self.study.tell(asked, state=TrialState.FAIL))

    def propose(self, refuse: Callable[[Point], str | None], tries: int) -> tuple[optuna.Trial, Point] | None:
        """A new point from the sampler; what is refused or known is told to it and not run.

        Args:
            refuse: Why a point must not run, or None.
            tries: How many proposals to draw.

        Returns:
            The open trial, to be ended by `finish`, and its point; None when all proposals were known or refused.
        """
        return self._kept(lambda: self._propose(refuse, tries))

    def _propose(self, refuse: Callable[[Point], str | None], tries: int) -> tuple[optuna.Trial, Point] | None:
        for _ in range(tries):
            asked = self._opened(self.study.ask(self.distributions))
            if not all(holds(self._offered[name], value) for name, value in asked.params.items()):
                self.study.tell(asked, state=TrialState.FAIL)  # of another machine's choices, which may run it
                continue
            point = self._point(asked.params)
            known = next((t for t in self.trials if t.burst.point == point and t.round is None), None)
            if known is not None:
                self._tell(asked, known)
            elif (why := refuse(point)) is not None:
                asked.set_user_attr(_REASON, f"not run: {why}")
                self._constrain(asked, Outcome.OOM)
                self.study.tell(asked, 0.0)
            else:
                return asked, point
        return None

    def measurement(self, point: Point, stage: str | None = None) -> Measurement | None:
        """All that was measured of a point as one measurement; of one stage alone, if one is named."""
        trials = (trial for trial in self.trials if stage is None or trial.stage == stage)
        known = [t.burst.measurement for t in trials if t.burst.point == point and t.burst.ok]
        return pool([measurement for measurement in known if measurement]) if known else None

    def may_confirm(self, is_enough: Callable[[], bool]) -> bool:
        """Whether this machine confirms: another one does where they share the study, and then it is waited for.

        Args:
            is_enough: Whether there is time to wait.
        """
        return self._kept(lambda: self._others.may_confirm(is_enough, self._take_in))

    def confirmed(self) -> None:
        """Tells other machines that the rounds are over."""
        self._kept(lambda: self._others.confirmed())  # noqa: PLW0108 - a storage that fails leaves others behind

    def await_first(self, is_enough: Callable[[], bool]) -> None:
        """Waits for the first trial of a shared study, where another machine runs it: all are compared with it.

        Args:
            is_enough: Whether there is time to wait.
        """
        while not self.trials and is_enough() and not self._kept(lambda: self._others.begins()):  # noqa: PLW0108
            if self._others.is_over():
                return
            time.sleep(POLL_SECONDS)
            self.sync()

    def standings(self) -> list[Standing]:
        """How all points stand that have ended well in the search, the incumbent first."""
        if self._standings[0] != len(self.trials):
            self._standings = len(self.trials), standings(self.trials, self.design)
        return self._standings[1]

    def incumbent(self) -> Trial | None:
        """The last trial of the point that is believed to be the best; None while nothing has ended well."""
        best = next(iter(self.standings()), None)
        played = (trial for trial in reversed(self.trials) if trial.round is None and trial.score is not None)
        return next((trial for trial in played if best is not None and trial.burst.point == best.point), None)

    def _ask(self, point: Point) -> optuna.Trial:
        parameters = self.parameters(point)
        if parameters is None:  # outside what is searched, e.g. a baseline under pins
            return self._opened(self.study.ask())
        while True:
            self.study.enqueue_trial(parameters)
            asked = self._opened(self.study.ask(self.distributions))
            if asked.params == parameters or not isinstance(self._others, Shared):
                return asked
            self.study.tell(asked, state=TrialState.FAIL)  # another machine has taken what was meant for this one

    def _opened(self, asked: optuna.Trial) -> optuna.Trial:
        self._others.opened(asked.number)
        return asked

    def finish(
        self,
        asked: optuna.Trial,
        stage: str,
        reason: str,
        burst: Burst,
        pair: Pair | None,
        *,
        round_number: int | None = None,
        turn: int | None = None,
    ) -> Trial:
        """Ends a trial, as one that `propose` opened."""
        chained = self._chained(burst, pair)
        trial = Trial(burst, stage, reason, round_number, *chained, turn=turn, objective=self.objective)
        self.trials.append(trial)  # first of all: what was measured must not be lost with its storage
        try:
            self._store(asked, trial)
        except Exception as error:  # noqa: BLE001 - each kind of storage has its own errors
            self._continue_in_memory(error)
        self._tell_of_compiler(burst)
        return trial

    def _chained(self, burst: Burst, pair: Pair | None) -> tuple[Pair | None, float | None]:
        """The pair by the objective, which is in proportion to the rate; and the score that follows from it."""
        before = (trial for trial in reversed(self.trials) if trial.score is not None)
        partner = next((one for one in before if pair is not None and one.burst.point == pair.partner), None)
        if pair is None or partner is None or partner.score is None:
            return pair, None
        mine, theirs = (self._per_rate(one.measurement) for one in (burst, partner.burst))
        if mine is None or theirs is None:
            return pair, None
        pair = pair.scaled(mine / theirs)
        return pair, pair.ratio * partner.score

    def _per_rate(self, measured: Measurement | None) -> float | None:
        """The score of each sample per second."""
        score = self.objective.score(measured) if measured is not None else None
        if score is None or measured is None or not measured.samples_per_second:
            return None
        return score / measured.samples_per_second

    def _store(self, asked: optuna.Trial, trial: Trial) -> None:
        asked.set_user_attr(_STAGE, trial.stage)
        asked.set_user_attr(_REASON, trial.reason)
        if trial.round is not None:
            asked.set_user_attr(_ROUND, trial.round)
        if trial.turn is not None:
            asked.set_user_attr(_TURN, trial.turn)
        if trial.pair is not None:
            asked.set_user_attr(_PAIR, trial.pair.model_dump(mode="json"))
        asked.set_user_attr(_CHAINED, trial.chained)
        asked.set_user_attr(_BURST, trial.burst.model_dump(mode="json"))
        self._tell(asked, trial)

    def _kept(self, action: Callable[[], Kept]) -> Kept:
        """What an action on the study yields; when its storage fails, on the copy in memory."""
        try:
            return action()
        except Exception as error:  # noqa: BLE001 - each kind of storage has its own errors
            self._continue_in_memory(error)
            return action()

    def _continue_in_memory(self, error: Exception) -> None:
        """Puts a copy in memory in the study's place.

        Raises:
            Exception: The same error, when it was not the storage's.
        """
        if self._in_memory:
            raise error
        self._in_memory = True
        self._others = Alone()
        self._move_to(optuna.create_study(sampler=self.study.sampler, direction="maximize"))
        self._note(
            f"the trials can no longer be stored ({type(error).__name__}: {error}): "
            "the search goes on without, but --resume will not know of what follows"
        )

    def _move_to(self, study: optuna.Study) -> None:
        """Goes on in another study, with all that is known."""
        self.study = study
        for trial in self.trials:
            self._store(self._ask(trial.burst.point), trial)

    def _tell_of_compiler(self, burst: Burst) -> None:
        """Says once that the compiler could not take the model whole: the remedy is worth more than any knob."""
        told = compiler_text(burst.measurement) if burst.measurement is not None else None
        if told is not None and not self._told_of_compiler:
            self._told_of_compiler = True
            self._note(told)

    def _tell(self, asked: optuna.Trial, trial: Trial) -> None:
        self._constrain(asked, trial.burst.outcome)
        self.study.tell(asked, trial.score or 0.0)

    @staticmethod
    def _constrain(asked: optuna.Trial, outcome: Outcome) -> None:
        asked.set_constraint("memory", 1.0 if outcome.is_memory else 0.0)
        asked.set_constraint("runs", 0.0 if outcome is Outcome.OK or outcome.is_memory else 1.0)

    def parameters(self, point: Point) -> dict[str, Scalar] | None:
        """The study's parameters of a point; None when the point lies outside its distributions."""
        values: dict[str, Scalar] = {}
        for name, distribution in self.distributions.items():
            offered = self._offered[name]
            if name.startswith(PARAMETER_PREFIX):
                argument = name.removeprefix(PARAMETER_PREFIX)
                value = point.parameters.get(argument, self._space.parameters[argument][0])
            else:
                value = getattr(point.config, name)
            if isinstance(offered, IntDistribution) and value is None:
                value = offered.low  # without workers there is no prefetching: any value will do
            if not holds(distribution, value):
                return None
            values[name] = value
        return values

    def _point(self, parameters: dict[str, Any]) -> Point:
        """The point that the sampler means: numbers are moved to the nearest value on offer."""
        knobs: dict[str, Scalar] = {}
        arguments: dict[str, Scalar] = {}
        for name, value in parameters.items():
            if name.startswith(PARAMETER_PREFIX):
                arguments[name.removeprefix(PARAMETER_PREFIX)] = value
            else:
                logarithmic = KNOBS[name].scale == "logarithmic"
                choices = self._space.choices[name].values if name in self._space.choices else (value,)  # held
                ordered = isinstance(self.distributions[name], IntDistribution)
                knobs[name] = nearest(value, choices, logarithmic=logarithmic) if ordered else value
        return Point(config=self._space.config(knobs), parameters=arguments)


def _trial_from(frozen: FrozenTrial, objective: Objective) -> Trial | None:
    """A finished trial of an earlier run; None for one that was never run."""
    attributes = frozen.user_attrs
    if frozen.state is not TrialState.COMPLETE or _BURST not in attributes:
        return None
    return Trial(
        burst=Burst.model_validate(attributes[_BURST]),
        stage=attributes.get(_STAGE, ""),
        reason=attributes.get(_REASON, ""),
        round=attributes.get(_ROUND),
        pair=Pair.model_validate(attributes[_PAIR]) if _PAIR in attributes else None,
        chained=attributes.get(_CHAINED),
        turn=attributes.get(_TURN),
        resumed=True,
        objective=objective,
    )
