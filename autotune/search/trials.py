"""Stores every burst as a trial of one Optuna study, so that Optuna's own tools apply and a killed run can resume.

It uses Optuna's ask-and-tell interface: the search enqueues its first points, the sampler proposes the rest, and every
outcome goes back to the study, including failures. A failure is stored as a finite, pessimistic value with a violated
constraint, so every sampler learns from it; samplers ignore trials with the state FAIL, and propose them again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
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
    pair_apart,
    pool,
)
from autotune.search.distributions import PARAMETER_PREFIX, differing, holds, make_distributions, nearest
from autotune.search.model import Design
from autotune.search.ranking import Standing, standings
from autotune.search.sharing import POLL_SECONDS, Shared
from autotune.search.storage import beside

Kept = TypeVar("Kept")
STORED = ("burst", "stage", "reason", "round", "pair", "chained", "turn")
"""What the study keeps of a `Trial`, as attributes of these names."""


@dataclass(frozen=True)
class Trial:
    """A burst and why it was run."""

    burst: Burst
    stage: str  # the part of the search that asked for it
    reason: str  # in one sentence
    round: int | None = None  # the interleaved round of the confirmation that it belongs to
    pair: Pair | None = None  # with the incumbent of its time; None without one, in a round, or if it failed
    # its ratio to the incumbent times the incumbent's score; in this chain the machine's speed of the moment cancels
    chained: float | None = None
    turn: int | None = None  # the challenge of the incumbent, which others of the same number shared; None in a round
    resumed: bool = False  # an earlier, interrupted run or another machine ran it
    objective: Objective = SAMPLES_PER_SECOND  # scores it

    @property
    def score(self) -> float | None:
        """The score by the objective, chained if it played a duet; None if it failed or lacks a figure."""
        measured = self.burst.measurement if self.burst.ok else None
        own = self.objective.score(measured) if measured is not None else None
        return own if own is None or self.chained is None else self.chained


class TrialLog:
    """The study, and its trials as bursts.

    If the storage fails (a full disk, a lost database), the search continues with a copy in memory and notes that for
    the user.

    Args:
        others: The other machines that share the study; None if it is this machine's own.
    """

    def __init__(
        self,
        study: optuna.Study,
        space: Space,
        note: Callable[[str], None] = lambda _: None,
        *,
        objective: Objective = SAMPLES_PER_SECOND,
        others: Shared | None = None,
    ) -> None:
        self.study = study
        self.objective = objective
        self._offered = make_distributions(space)
        self.distributions = dict(self._offered)
        self._space = space
        self.design = Design(space)
        self._ranking: tuple[int, tuple[list[Standing], Trial | None]] = 0, ([], None)
        self._note = note
        self._in_memory = False
        self._compiler_noted = False
        self.trials: list[Trial] = []
        self._others = others
        if others is not None:
            self.sync()
            return
        stored = study.get_trials(deepcopy=False)
        earlier = [trial for frozen in stored if (trial := _trial_from(frozen, objective)) is not None]
        # A burst that an earlier budget cut off says nothing about this one.
        self.trials += [trial for trial in earlier if trial.burst.outcome is not Outcome.TIMEOUT]
        if any(differing(frozen.distributions, self.distributions) for frozen in stored):
            try:
                self._move_to(beside(study))
            except Exception as error:  # noqa: BLE001 - each kind of storage has its own errors
                self._continue_in_memory(error)
            return
        # A killed run's open trials would repel the sampler for ever.
        open_trials = [frozen.number for frozen in stored if frozen.state is TrialState.RUNNING]
        self._kept(lambda: [self.study.tell(number, state=TrialState.FAIL) for number in open_trials])

    @property
    def can_resume(self) -> bool:
        """Whether another command can continue the study: neither its storage has failed, nor do machines share it."""
        return self._others is None and not self._in_memory

    def sync(self) -> None:
        """Adds the trials that other machines have run meanwhile, if they share the study."""
        self._kept(self._take_in)

    def _take_in(self) -> None:
        if self._others is None:
            return
        arrived = self._others.arrived()
        self._agree()
        theirs = [trial for frozen in arrived if (trial := _trial_from(frozen, self.objective)) is not None]
        # A burst that another machine's budget cut off may fit into this one's.
        self.trials += [trial for trial in theirs if trial.burst.outcome is not Outcome.TIMEOUT]

    def _agree(self) -> None:
        """Adopts the categories that other machines began the study with: it accepts no others."""
        theirs = self._others.distributions if self._others is not None else {}
        if names := differing(theirs, self.distributions):
            self.distributions |= {name: theirs[name] for name in names}
            self._note(
                f"the study was begun with other choices of {', '.join(names)}: choices that this machine lacks are "
                "left to other machines, and choices that the study lacks are tried without the sampler"
            )

    def elsewhere(self, point: Point) -> str | None:
        """Why a point must not run now: another machine is running it."""
        is_tried = self._others is not None and self._others.is_under_way(self.parameters(point))
        return "another machine is trying it" if is_tried else None

    def move_to(self, space: Space) -> None:
        """Continues in a space with more knobs, another baseline, or a held knob."""
        made = make_distributions(space)
        new = {name: made[name] for name in made if name not in self.distributions}
        self._offered |= new
        self.distributions |= new
        self._space = space
        self.design, self._ranking = Design(space), (0, ([], None))
        self._agree()

    def leave_out_disallowed(self, baseline: Point) -> None:
        """Leaves out what an earlier run tried under other options; the baseline and all failures stay.

        A point whose partner is left out is compared with the baseline, with less certainty.
        """

        def stays(trial: Trial) -> bool:
            point = trial.burst.point
            is_safe = not trial.resumed or not trial.burst.ok or point == baseline
            return is_safe or self._space.allows(point.config, point.parameters)

        kept = [trial for trial in self.trials if stays(trial)]
        if self._others is not None or len(kept) == len(self.trials):
            return
        points = {trial.burst.point for trial in kept}
        own = next((trial.score for trial in kept if trial.burst.point == baseline), None)

        def beside_another(trial: Trial) -> Trial:
            is_alone = trial.pair is not None and trial.pair.partner not in points and not trial.pair.too_few
            if own is None or trial.score is None or not is_alone:
                return trial
            return replace(trial, pair=pair_apart(baseline, trial.score / own))

        count = len(self.trials) - len(kept)
        self._note(f"{count} of the earlier run's bursts are left out: this run's options or limits do not allow them")
        self.trials[:], self._ranking = map(beside_another, kept), (0, ([], None))

    def record(
        self, burst: Burst, stage: str, reason: str, pair: Pair | None = None, *, round_number: int | None = None
    ) -> Trial:
        """Stores a burst that has ended as a trial of its own."""
        return self.finish(self.ask(burst.point), stage, reason, burst, pair, round_number=round_number)

    def ask(self, point: Point) -> optuna.Trial:
        """Opens a trial of a point; end it with `finish`."""
        return self._kept(lambda: self._ask(point))

    def take(self, point: Point) -> optuna.Trial | None:
        """Opens a trial of a point, unless another machine has opened one at the same time, with a lower number."""
        open_trial = self.ask(point)
        self.sync()
        if not self._is_second(open_trial, point):
            return open_trial
        self.withdraw(open_trial)
        return None

    def _is_second(self, open_trial: optuna.Trial, point: Point) -> bool:
        """Whether another machine was running the point before this trial was opened."""
        parameters = self.parameters(point)
        return self._others is not None and self._others.is_under_way(parameters, before=open_trial.number)

    def withdraw(self, open_trial: optuna.Trial) -> None:
        """Closes a trial whose point was not played: it may be proposed again."""

        def close() -> None:
            if open_trial.study is self.study:  # else its storage has failed meanwhile
                self.study.tell(open_trial, state=TrialState.FAIL)

        self._kept(close)

    def propose(self, refuse: Callable[[Point], str | None], tries: int) -> tuple[optuna.Trial, Point] | None:
        """Draws a new point from the sampler; answers known and refused ones without running them.

        Args:
            refuse: Returns why a point must not run, or None.
            tries: The most proposals to draw.

        Returns:
            The open trial, to end with `finish`, and its point; None if all proposals were known or refused.
        """
        return self._kept(lambda: self._propose(refuse, tries))

    def _propose(self, refuse: Callable[[Point], str | None], tries: int) -> tuple[optuna.Trial, Point] | None:
        for _ in range(tries):
            open_trial = self._opened(self.study.ask(self.distributions))
            if not all(holds(self._offered[name], value) for name, value in open_trial.params.items()):
                self.study.tell(open_trial, state=TrialState.FAIL)  # only other machines, which offer this, may run it
                continue
            point = self._point(open_trial.params)
            earlier = next((t for t in self.trials if t.burst.point == point and t.round is None), None)
            if earlier is not None:
                self._tell(open_trial, earlier)
            elif (why := refuse(point)) is not None:
                open_trial.set_user_attr("reason", f"not run: {why}")
                self._constrain(open_trial, Outcome.OOM)
                self.study.tell(open_trial, 0.0)
            else:
                self._take_in()
                if not self._is_second(open_trial, point):
                    return open_trial, point
                self.study.tell(open_trial, state=TrialState.FAIL)
        return None

    def measurement(self, point: Point, stage: str | None = None) -> Measurement | None:
        """All measurements of a point, pooled into one; only those of `stage`, if given."""
        trials = (trial for trial in self.trials if stage is None or trial.stage == stage)
        measurements = [t.burst.measurement for t in trials if t.burst.point == point and t.burst.ok]
        return pool([measurement for measurement in measurements if measurement]) if measurements else None

    def may_confirm(self, is_enough: Callable[[], bool]) -> bool:
        """Whether this machine confirms; if another machine of the study does, waits for it.

        Args:
            is_enough: Returns whether there is time to wait.
        """
        return self._kept(lambda: self._others is None or self._others.may_confirm(is_enough, self._take_in))

    def confirmed(self) -> None:
        """Records, for other machines, that the rounds are over."""
        self._kept(lambda: self._others.confirmed() if self._others is not None else None)

    def await_first(self, is_enough: Callable[[], bool]) -> None:
        """Waits for the first trial of a shared study, if another machine runs it: all others are compared with it.

        Args:
            is_enough: Returns whether there is time to wait.
        """
        while not self.trials and is_enough() and not self._kept(lambda: self._others is None or self._others.begins()):
            if self._others is None or self._others.is_over():
                return
            time.sleep(POLL_SECONDS)
            self.sync()

    def standings(self) -> list[Standing]:
        """The ranking of all points that ended well in the search, the incumbent first."""
        return self._ranked()[0]

    def incumbent(self) -> Trial | None:
        """The last trial of the point believed to be the best; None while nothing has ended well."""
        return self._ranked()[1]

    def _ranked(self) -> tuple[list[Standing], Trial | None]:
        """The ranking and the incumbent; computed again when the search has played more."""
        searched = [trial for trial in self.trials if trial.round is None]
        if self._ranking[0] != len(searched):
            ranking = standings(searched, self.design)
            best = (one for one in reversed(searched) if one.score is not None and one.burst.point == ranking[0].point)
            self._ranking = len(searched), (ranking, next(best) if ranking else None)
        return self._ranking[1]

    def _ask(self, point: Point) -> optuna.Trial:
        parameters = self.parameters(point)
        if parameters is None:  # outside the search space, such as a baseline under pins
            return self._opened(self.study.ask())
        while True:
            self.study.enqueue_trial(parameters)
            open_trial = self._opened(self.study.ask({name: self.distributions[name] for name in parameters}))
            if open_trial.params == parameters or self._others is None:
                return open_trial
            self.study.tell(open_trial, state=TrialState.FAIL)  # another machine has taken the enqueued parameters

    def _opened(self, open_trial: optuna.Trial) -> optuna.Trial:
        if self._others is not None:
            self._others.opened(open_trial.number)
        return open_trial

    def finish(
        self,
        open_trial: optuna.Trial,
        stage: str,
        reason: str,
        burst: Burst,
        pair: Pair | None,
        *,
        round_number: int | None = None,
        turn: int | None = None,
    ) -> Trial:
        """Ends a trial that `ask` or `propose` opened, in its storage or, if that has failed, in the copy in memory."""
        chained = self._chained(burst, pair)
        trial = Trial(burst, stage, reason, round_number, *chained, turn=turn, objective=self.objective)
        self.trials.append(trial)  # first, so that a failing storage loses no measurement
        try:
            self._store(open_trial if open_trial.study is self.study else self._ask(burst.point), trial)
        except Exception as error:  # noqa: BLE001 - each kind of storage has its own errors
            self._continue_in_memory(error)
        self._note_compiler(burst)
        return trial

    def _chained(self, burst: Burst, pair: Pair | None) -> tuple[Pair | None, float | None]:
        """The pair, scaled from rates to the objective, and the score that follows from it."""
        before = (trial for trial in reversed(self.trials) if trial.score is not None and trial.round is None)
        partner = next((trial for trial in before if pair is not None and trial.burst.point == pair.partner), None)
        if pair is None or partner is None or partner.score is None:
            return pair, None
        mine, theirs = (self._per_rate(side.measurement) for side in (burst, partner.burst))
        if mine is None or theirs is None:
            return pair, None
        pair = pair.scaled(mine / theirs)
        return pair, pair.ratio * partner.score

    def _per_rate(self, measured: Measurement | None) -> float | None:
        """The score per sample per second."""
        score = self.objective.score(measured) if measured is not None else None
        if score is None or measured is None or not measured.samples_per_second:
            return None
        return score / measured.samples_per_second

    def _store(self, open_trial: optuna.Trial, trial: Trial) -> None:
        for name in STORED:
            if (value := getattr(trial, name)) is not None:
                kept = value.model_dump(mode="json") if isinstance(value, (Burst, Pair)) else value
                open_trial.set_user_attr(name, kept)
        self._tell(open_trial, trial)

    def _kept(self, action: Callable[[], Kept]) -> Kept:
        """The result of an action on the study; if its storage fails, of the action on the copy in memory."""
        try:
            return action()
        except Exception as error:  # noqa: BLE001 - each kind of storage has its own errors
            self._continue_in_memory(error)
            return action()

    def _continue_in_memory(self, error: Exception) -> None:
        """Replaces the study by a copy in memory.

        Raises:
            Exception: The same error, if the storage did not cause it.
        """
        if self._in_memory:
            raise error
        self._in_memory = True
        self._others = None  # a storage that fails leaves them behind
        self._move_to(optuna.create_study(sampler=self.study.sampler, direction="maximize"))
        self._note(
            f"the trials can no longer be stored ({type(error).__name__}: {error}): "
            "the search continues without storing them, and --resume cannot continue from later trials"
        )

    def _move_to(self, study: optuna.Study) -> None:
        """Continues in another study, with all trials so far."""
        self.study = study
        for trial in self.trials:
            self._store(self._ask(trial.burst.point), trial)

    def _note_compiler(self, burst: Burst) -> None:
        """Notes, once, that the compiler could not take the whole model: the remedy is worth more than any knob."""
        text = compiler_text(burst.measurement) if burst.measurement is not None else None
        if text is not None and not self._compiler_noted:
            self._compiler_noted = True
            self._note(text)

    def _tell(self, open_trial: optuna.Trial, trial: Trial) -> None:
        self._constrain(open_trial, trial.burst.outcome)
        self.study.tell(open_trial, trial.score or 0.0)

    @staticmethod
    def _constrain(open_trial: optuna.Trial, outcome: Outcome) -> None:
        open_trial.set_constraint("memory", 1.0 if outcome.is_memory else 0.0)
        open_trial.set_constraint("runs", 0.0 if outcome is Outcome.OK or outcome.is_memory else 1.0)

    def parameters(self, point: Point) -> dict[str, Scalar] | None:
        """The study's parameters for a point; None if one of its values lies outside the distributions."""
        values: dict[str, Scalar] = {}
        for name, distribution in self.distributions.items():
            offered = self._offered[name]
            if name.startswith(PARAMETER_PREFIX):
                argument = name.removeprefix(PARAMETER_PREFIX)
                if argument not in point.parameters:  # left to build(), whose default is not known
                    continue
                value = point.parameters[argument]
            else:
                value = getattr(point.config, name)
            if isinstance(offered, IntDistribution) and value is None:
                value = offered.low  # without workers there is no prefetching: any value will do
            if not holds(distribution, value):
                return None
            values[name] = value
        return values

    def _point(self, parameters: dict[str, Any]) -> Point:
        """The point of some parameters; numbers move to the nearest value on offer."""
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
    """A finished trial of an earlier run; None if it never ran."""
    attributes = frozen.user_attrs
    if frozen.state is not TrialState.COMPLETE or "burst" not in attributes:
        return None
    kept = {name: attributes[name] for name in STORED if name in attributes}
    pair = kept.get("pair") and Pair.model_validate(kept["pair"])
    kept |= {"burst": Burst.model_validate(kept["burst"]), "pair": pair}
    return Trial(**kept, resumed=True, objective=objective)
