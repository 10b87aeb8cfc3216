"""Every burst as a trial of one Optuna study, so that Optuna's own tools apply and a killed run resumes.

Ask and tell: the stages enqueue their points, the sampler proposes the rest, and every end, a failure too, is told.
A failure is told as a finite, pessimistic value with a violated constraint: every sampler learns from it, whereas
trials that FAIL are ignored and come again.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from autotune.config import Scalar
from autotune.errors import UsageError
from autotune.measurement import Burst, Measurement, Outcome, Point, pool
from autotune.space import Space

ORDERED_KNOBS = {"batch_size": True, "num_workers": False, "prefetch_factor": True, "num_threads": False}
"""Knobs whose values lie on a scale, and whether that scale is logarithmic."""
PARAMETER_PREFIX = "build."
_BURST, _STAGE, _REASON, _ROUND, _DRIFT = "burst", "stage", "reason", "round", "drift"


@dataclass(frozen=True)
class Trial:
    """A burst and why it was run.

    Attributes:
        burst: What was run, and how it ended.
        stage: The part of the search that asked for it.
        reason: Why, in one sentence.
        round: Which interleaved round of the confirmation it belongs to, if it does.
        drift: The machine's speed when it ran, over its speed at first.
        resumed: Whether an earlier, interrupted run ran it.
    """

    burst: Burst
    stage: str
    reason: str
    round: int | None = None
    drift: float = 1.0
    resumed: bool = False

    @property
    def rate(self) -> float | None:
        """Samples per second at the machine's first speed, or None when it did not end well."""
        return self.burst.rate / self.drift if self.burst.rate is not None else None


class FileLock:
    """A lock for the journal that the system releases when its holder dies: a killed run blocks no later one."""

    def __init__(self, path: str) -> None:
        self._lock = filelock.FileLock(f"{path}.lock")

    def acquire(self) -> bool:
        """Waits for the lock."""
        self._lock.acquire()
        return True

    def release(self) -> None:
        """Gives the lock back."""
        self._lock.release()


class TrialLog:
    """The study, and its trials as bursts.

    Args:
        study: An Optuna study that maximises samples per second.
        space: What is searched.
    """

    def __init__(self, study: optuna.Study, space: Space) -> None:
        self.study = study
        self._distributions = make_distributions(space)
        self._space = space
        self.trials: list[Trial] = []
        self.drift = 1.0
        for frozen in study.get_trials(deepcopy=False):
            if frozen.state is TrialState.RUNNING:  # a killed run's: it would repel the sampler for ever
                study.tell(frozen.number, state=TrialState.FAIL)
            elif (trial := _trial_from(frozen)) is not None:
                self.trials.append(trial)

    def run(
        self, point: Point, stage: str, reason: str, burst: Callable[[], Burst], *, round_number: int | None = None
    ) -> Trial:
        """Runs a burst as a trial of a point that a stage chose."""
        asked = self._ask(point)
        return self._finish(asked, stage, reason, burst(), round_number)

    def propose(self, refuse: Callable[[Point], str | None], tries: int) -> tuple[optuna.Trial, Point] | None:
        """A new point from the sampler; what is refused or known is told to it and not run.

        Args:
            refuse: Why a point must not run, or None.
            tries: How many proposals to draw.

        Returns:
            The open trial, to be ended by `finish`, and its point; None when all proposals were known or refused.
        """
        for _ in range(tries):
            asked = self.study.ask(self._distributions)
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

    def finish(self, asked: optuna.Trial, stage: str, reason: str, burst: Burst) -> Trial:
        """Ends a trial that `propose` opened."""
        return self._finish(asked, stage, reason, burst, None)

    def measurement(self, point: Point) -> Measurement | None:
        """All that was measured of a point, as one measurement."""
        known = [t.burst.measurement for t in self.trials if t.burst.point == point and t.burst.ok]
        return pool([measurement for measurement in known if measurement]) if known else None

    def best(self) -> Trial | None:
        """The fastest trial of the search so far, confirmations left out."""
        return fastest(trial for trial in self.trials if trial.round is None)

    def _ask(self, point: Point) -> optuna.Trial:
        parameters = self._parameters(point)
        if parameters is None:  # outside what is searched, e.g. a baseline under pins
            return self.study.ask()
        self.study.enqueue_trial(parameters)
        return self.study.ask(self._distributions)

    def _finish(self, asked: optuna.Trial, stage: str, reason: str, burst: Burst, round_number: int | None) -> Trial:
        trial = Trial(burst, stage, reason, round_number, self.drift)
        asked.set_user_attr(_STAGE, stage)
        asked.set_user_attr(_REASON, reason)
        if round_number is not None:
            asked.set_user_attr(_ROUND, round_number)
        if self.drift != 1.0:
            asked.set_user_attr(_DRIFT, self.drift)
        asked.set_user_attr(_BURST, burst.model_dump(mode="json"))
        self._tell(asked, trial)
        self.trials.append(trial)
        return trial

    def _tell(self, asked: optuna.Trial, trial: Trial) -> None:
        self._constrain(asked, trial.burst.outcome)
        self.study.tell(asked, trial.rate or 0.0)

    @staticmethod
    def _constrain(asked: optuna.Trial, outcome: Outcome) -> None:
        asked.set_constraint("memory", 1.0 if outcome.is_memory else 0.0)
        asked.set_constraint("runs", 0.0 if outcome is Outcome.OK or outcome.is_memory else 1.0)

    def _parameters(self, point: Point) -> dict[str, Scalar] | None:
        """The study's parameters of a point; None when the point lies outside its distributions."""
        values = {knob: getattr(point.config, knob) for knob in self._space.choices}
        values |= {
            PARAMETER_PREFIX + name: point.parameters.get(name, choices[0])
            for name, choices in self._space.parameters.items()
        }
        for name, distribution in self._distributions.items():
            if isinstance(distribution, IntDistribution) and values[name] is None:
                values[name] = distribution.low  # without workers there is no prefetching: any value will do
            if not _holds(distribution, values[name]):
                return None
        return values

    def _point(self, parameters: dict[str, Any]) -> Point:
        """The point that the sampler means: numbers are moved to the nearest value on offer."""
        knobs: dict[str, Scalar] = {}
        arguments: dict[str, Scalar] = {}
        for name, value in parameters.items():
            if name.startswith(PARAMETER_PREFIX):
                arguments[name.removeprefix(PARAMETER_PREFIX)] = value
            else:
                ordered = isinstance(self._distributions[name], IntDistribution)
                choices = self._space.choices[name].values
                knobs[name] = nearest(value, choices, logarithmic=ORDERED_KNOBS[name]) if ordered else value
        return Point(config=self._space.config(knobs), parameters=arguments)


def open_study(
    *, name: str, storage: str | None, journal: Path, sampler: str, seed: int, attributes: dict[str, Any], resume: bool
) -> optuna.Study:
    """A new study, or on `resume` the newest one with the same attributes.

    Args:
        name: Of a new study.
        storage: URL of a relational database; None for the journal.
        journal: File of the journal.
        sampler: ``tpe``, ``gp`` or ``random``.
        seed: Of the sampler.
        attributes: What a study must agree in to be resumed, e.g. the workload's fingerprint.
        resume: Whether to go on with an earlier study.

    Raises:
        UsageError: The storage cannot be opened, or there is nothing to resume.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    where = storage or str(journal)
    try:
        opened = _open_storage(storage, journal)
        if resume:
            name = _resumable(opened, attributes, where)
        study = optuna.create_study(
            study_name=name, storage=opened, sampler=make_sampler(sampler, seed), direction="maximize",
            load_if_exists=resume,
        )  # fmt: skip
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"the storage {where} cannot be opened: {error}; choose another with --storage or --out"
        ) from error
    if not resume:
        for key, value in attributes.items():
            study.set_user_attr(key, value)
        study.set_user_attr("created", time.time())
    return study


def fastest(trials: Iterable[Trial]) -> Trial | None:
    """The trial with the highest rate among those that ended well."""
    ok = [trial for trial in trials if trial.burst.ok]
    return max(ok, key=lambda trial: trial.rate or 0.0, default=None)


def make_sampler(name: str, seed: int) -> BaseSampler:
    """An Optuna sampler by its short name."""
    if name == "random":
        return RandomSampler(seed=seed)
    if name == "gp":
        return GPSampler(seed=seed)
    return TPESampler(seed=seed)


def make_distributions(space: Space) -> dict[str, BaseDistribution]:
    """What the sampler may draw: scales for ordered knobs, categories for the rest; the baseline's values included."""
    distributions: dict[str, BaseDistribution] = {}
    for knob, choices in space.choices.items():
        values = list(choices.values)
        own = getattr(space.baseline, knob)
        numbers = [value for value in (*values, own) if isinstance(value, int) and not isinstance(value, bool)]
        if knob in ORDERED_KNOBS and None not in values:
            distributions[knob] = IntDistribution(min(numbers), max(numbers), log=ORDERED_KNOBS[knob])
        else:
            distributions[knob] = CategoricalDistribution(values if own in values else [*values, own])
    for name, arguments in space.parameters.items():
        distributions[PARAMETER_PREFIX + name] = CategoricalDistribution(arguments)
    return distributions


def nearest(value: int, choices: Sequence[Scalar], *, logarithmic: bool) -> Scalar:
    """The choice that lies nearest to a drawn number."""
    scale: Callable[[float], float] = math.log if logarithmic else float
    numbers = [choice for choice in choices if isinstance(choice, int)]
    return min(numbers, key=lambda choice: abs(scale(choice) - scale(value)))


def _holds(distribution: BaseDistribution, value: Any) -> bool:
    if isinstance(distribution, IntDistribution):
        return isinstance(value, int) and distribution.low <= value <= distribution.high
    return isinstance(distribution, CategoricalDistribution) and value in distribution.choices


def _trial_from(frozen: FrozenTrial) -> Trial | None:
    """A finished trial of an earlier run; None for one that was never run."""
    attributes = frozen.user_attrs
    if frozen.state is not TrialState.COMPLETE or _BURST not in attributes:
        return None
    return Trial(
        burst=Burst.model_validate(attributes[_BURST]),
        stage=attributes.get(_STAGE, ""),
        reason=attributes.get(_REASON, ""),
        round=attributes.get(_ROUND),
        drift=attributes.get(_DRIFT, 1.0),
        resumed=True,
    )


def _open_storage(url: str | None, journal: Path) -> BaseStorage:
    if url is not None:
        return RDBStorage(url)
    journal.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(str(journal))
    lock.acquire()
    try:
        _drop_half_line(journal)
    finally:
        lock.release()
    return JournalStorage(JournalFileBackend(str(journal), lock_obj=lock))  # type: ignore[arg-type]


def _drop_half_line(journal: Path) -> None:
    """Cuts a journal whose writer was killed in the middle of a line back to its last whole one."""
    if not journal.exists():
        return
    with journal.open("rb+") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        lines = content[:whole].splitlines(keepends=True)
        while lines and not _is_json(lines[-1]):
            whole -= len(lines.pop())
        if whole != len(content):
            file.truncate(whole)
            os.fsync(file.fileno())


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _resumable(storage: BaseStorage, attributes: dict[str, Any], where: str) -> str:
    """The name of the newest study with these attributes."""
    studies = [
        study
        for study in storage.get_all_studies()
        if all(study.user_attrs.get(key) == value for key, value in attributes.items())
    ]
    if not studies:
        raise UsageError(
            f"--resume found no earlier run of this workload on this device in {where}; "
            "leave --resume out to begin anew"
        )
    return str(max(studies, key=lambda study: study.user_attrs.get("created", 0.0)).study_name)
