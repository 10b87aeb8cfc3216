"""Turns other machines' results into the first candidates here: their configs, adapted to this machine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.hardware import DeviceKind, Hardware
from autotune.knobs import Choices, Scalar, Space, TrainConfig, affecting, format_scalar
from autotune.measuring import Point
from autotune.results.result import Result, WarmStartRecord, read_result
from autotune.search.distributions import nearest, whole_numbers
from autotune.search.proposal import WARM, Proposal
from autotune.search.trials import Trial
from autotune.wording import percent

HELPED = 0.95
"""A candidate helped if it was faster than the baseline and reached this share of the answer's score at once."""


@dataclass(frozen=True)
class Candidate:
    """Another machine's config, from the result file `source`, in a form that can be tried here.

    Its `point` is None if nothing close to it fits; `adapted` lists what had to change.
    """

    source: str
    machine: str
    point: Point | None
    adapted: tuple[str, ...]
    same_workload: bool

    @property
    def proposal(self) -> Proposal | None:
        """The proposal for the search, if there is a point."""
        return Proposal(self.point, WARM, f"the best on {self.machine} ({self.source})") if self.point else None


def read_results(paths: Iterable[Path]) -> list[tuple[str, Result]]:
    """The results to start from, each with the name of its file; raises `ResultFileError` for an unreadable one."""
    return [(str(path), read_result(path)) for path in paths]


def candidates(
    results: Iterable[tuple[str, Result]],
    space: Space,
    hardware: Hardware,
    *,
    fingerprint: str,
    device: DeviceKind,
    memory_limit_bytes: int | None,
) -> list[Candidate]:
    """The candidates that other machines' results, from `read_results`, suggest here, in their order.

    All other arguments describe this machine; `memory_limit_bytes` is what a burst may take, None if not known.
    """
    suggestions = []
    for source, result in results:
        scaled = rescaled(result, hardware, device, memory_limit_bytes, batch_free=space.effective_batch is None)
        offered = {knob: _offered(getattr(scaled, knob), choices) for knob, choices in space.choices.items()}
        config = space.fitting({knob: values[0] for knob, values in offered.items() if values})
        point, adapted = _brought_here(result, config, space) if config is not None else (None, ())
        same = result.workload.fingerprint == fingerprint
        suggestions.append(Candidate(source, result.machine, point, adapted, same))
    return suggestions


def _brought_here(result: Result, config: TrainConfig, space: Space) -> tuple[Point, tuple[str, ...]]:
    """A config of this machine with those arguments of build() that are explored here too, and what had to change."""
    theirs = result.best.parameters
    parameters = {name: value for name, value in theirs.items() if value in space.parameters.get(name, ())}
    changes = config.changes_from(result.best.config).items()
    adapted = [f"{knob}={format_scalar(now)} for {format_scalar(was)}" for knob, (was, now) in changes]
    left_out = [f"without {name}={value}" for name, value in theirs.items() if name not in parameters]
    return Point(config=config, parameters=parameters), (*adapted, *left_out)


def rescaled(
    result: Result, hardware: Hardware, device: DeviceKind, memory_limit_bytes: int | None, *, batch_free: bool
) -> TrainConfig:
    """The best config of another machine, with its sizes in proportion to this one.

    Workers and threads keep their share of the CPU budget. On the same kind of device, the batch shrinks until the
    memory that it took there fits here. On a GPU with a free effective batch, it also grows with the memory.
    """
    config = result.best.config
    share = hardware.cpu.budget / max(1, result.hardware.cpu.budget)
    changes: dict[str, Scalar] = {
        knob: max(1, round(share * value)) for knob in affecting("cores") if (value := getattr(config, knob))
    }
    measured = result.best.measurement
    taken = measured.device_memory_bytes if measured is not None else None
    there = result.constraints.memory_limit_bytes
    on_gpu = device != "cpu"
    if on_gpu == (result.constraints.device != "cpu") and memory_limit_bytes and taken:
        room = memory_limit_bytes / taken
        # The free memory of a host changes from hour to hour: there is no proportion to grow by.
        growth = memory_limit_bytes / there if on_gpu and batch_free and there else 1.0
        factor = room if room < 1 else max(1.0, min(room, growth))
        changes["batch_size"] = max(1, math.floor(factor * config.batch_size))
    return config.replace(**changes)


def records(
    tried: Sequence[Candidate], trials: Sequence[Trial], answer: Point, baseline: Point
) -> tuple[WarmStartRecord, ...]:
    """The outcome of each candidate, and whether it helped the search to its answer."""
    return tuple(_record(candidate, trials, answer, baseline) for candidate in tried)


def _record(candidate: Candidate, trials: Sequence[Trial], answer: Point, baseline: Point) -> WarmStartRecord:
    point = candidate.point
    number, trial = next(((n, t) for n, t in enumerate(trials, 1) if t.burst.point == point), (0, None))
    score = trial.score if trial is not None else None
    helped = False
    if point is None:
        verdict = "nothing close to it fits here"
    elif point == baseline:
        verdict = "it is the baseline here"
    elif trial is None:
        verdict = "it was not run: memory or a constraint forbade it, or the search ended first"
    elif score is None:
        verdict = f"it {trial.burst.ending}"
    elif score <= _first_score(baseline, trials):
        verdict = "it was not faster than the baseline"
    elif answer == baseline:
        verdict = "it seemed faster than the baseline, but that was not confirmed"
    else:
        reached = min(1.0, score / (_first_score(answer, trials) or score))
        helped = point == answer or reached >= HELPED
        verdict = f"it reached {percent(reached)} of the answer's score, with burst {number}"
        if point == answer:
            verdict = "it is the answer"
    return WarmStartRecord(
        source=candidate.source,
        machine=candidate.machine,
        same_workload=candidate.same_workload,
        changes=point.new_values(baseline) if point else {},
        adapted=candidate.adapted,
        samples_per_second=trial.burst.rate if trial is not None else None,
        helped=helped,
        verdict=verdict,
    )


def _offered(value: Scalar, choices: Choices) -> list[Scalar]:
    """The choice nearest to a value: the value itself, or the nearest number by ratio; none for other words."""
    if value in choices.values:
        return [value]
    if not whole_numbers(choices.values):
        return []
    return [nearest(number, choices.values, logarithmic=True) for number in whole_numbers([value])]


def _first_score(point: Point, trials: Sequence[Trial]) -> float:
    """The score of a point's first burst that ended well; 0 if none did."""
    return next((trial.score for trial in trials if trial.burst.point == point and trial.score is not None), 0.0)
