"""Compares results of the same workload across machines, and says where to train. Needs no torch.

Only rows of the same workload can be compared, so they are grouped by its fingerprint. A warning names each target that
stands for two workloads.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from autotune.errors import ResultFileError
from autotune.knobs import limit_of
from autotune.measuring import (
    SAMPLES_PER_JOULE,
    SECONDS_PER_HOUR,
    Interval,
    ObjectiveName,
    Outcome,
    Speedup,
    per_dollar,
)
from autotune.results.cross_file import Cross
from autotune.results.gather import Gathered, Machine, machine_of
from autotune.results.result import Result
from autotune.results.summary import beside_others, knob_text, rate_interval, settings_text
from autotune.stored import Stored
from autotune.units import format_rate, format_seconds, rounded
from autotune.wording import ratio_text

Kin = Literal["", "yours", "like yours"]
Named = tuple[str, Result]
"""A result file's path, and its result."""


class Row(Stored):
    """One result: what the workload did on a machine before and after tuning."""

    path: str
    machine: str = Field(description="what trained")
    hostname: str
    label: str = Field(description="the machine, with its host where several of one kind are compared")
    processor: str = Field(
        description="the GPU's model, or the CPU's model and the number of CPUs; and the number of ranks, if several"
    )
    kin: Kin = Field(
        default="", description="whether this is the result that you marked as yours, or has the same processor"
    )
    device: str
    torch: str | None
    created: datetime
    status: Literal["complete", "partial"]
    judged: bool = Field(description="the newest complete result of its machine, by which knobs are judged")
    before_samples_per_second: float | None
    before_ci95: Interval | None
    after_samples_per_second: float | None
    after_ci95: Interval | None
    objective: ObjectiveName = Field(description="what the speed-up compares")
    speedup: Speedup | None = Field(description="None: not measured in pairs; `confirmed` says whether it is certain")
    speedup_reason: str | None
    memory_bytes: int | None = Field(description="peak of the best config")
    memory_of: Literal["device", "host"]
    samples_per_joule: float | None = Field(description="of the device, by the best config; None: not known")
    dollars_per_hour: float | None = Field(default=None, description="of the machine, as you gave it")
    samples_per_dollar: float | None = Field(default=None, description="by the best config; None: no price")
    knobs: dict[str, Any] = Field(description="all knobs of the best config, and build's arguments")
    changed_knobs: dict[str, tuple[Any, Any]]
    held_knobs: dict[str, str] = Field(description="knobs that were not searched there, and why")


class CrossRow(Stored):
    """Another machine's config, measured on a machine."""

    path: str
    machine: str = Field(description="where it was measured, as the rows label it")
    config_of: str = Field(description="whose config")
    created: datetime
    outcome: Outcome
    over_own: Speedup | None = Field(description="of the other's config over the machine's own")
    over_baseline: Speedup | None
    finding: str = Field(description="the outcome, in words that follow the machine's name")
    notes: tuple[str, ...]


class WorkloadGroup(Stored):
    """All rows of one workload, the fastest first."""

    name: str
    target: str
    fingerprint: str
    rows: tuple[Row, ...]
    machines: int = Field(description="those that knobs are judged by; two at least are needed")
    shared_knobs: dict[str, Any] = Field(description="values that all machines agree on and some baseline lacks")
    particular_knobs: dict[str, dict[str, Any]] = Field(description="knobs that differ: the value of each machine")
    crosses: tuple[CrossRow, ...] = ()
    choices: tuple[str, ...] = Field(default=(), description="where to train, in sentences")

    def values_text(self, knob: str) -> str:
        """A particular knob's values: ``4 on A, B; 0 on C (not searched)``."""
        searched = {row.label: knob not in row.held_knobs for row in self.rows if row.judged}
        machines: dict[str, list[str]] = {}
        for label, value in self.particular_knobs[knob].items():
            where = label if searched.get(label, True) else f"{label} (not searched)"
            machines.setdefault(knob_text(knob, value), []).append(where)
        return "; ".join(f"{value} on {', '.join(where)}" for value, where in machines.items())


class Comparison(Stored):
    """The answer of `compare`."""

    # "schema" itself would shadow a method of pydantic's BaseModel.
    schema_: Literal["autotune.comparison/1"] = Field(default="autotune.comparison/1", alias="schema")
    groups: tuple[WorkloadGroup, ...]
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def compare(
    gathered: Gathered, samples: int | None = None, at_least: float | None = None, mine: str | None = None
) -> Comparison:
    """Puts results side by side, grouped by workload.

    Args:
        gathered: The files.
        samples: In a whole training, to add its time and cost.
        at_least: Share of the fastest machine's rate that the cheapest must reach; None: any.
        mine: Your own result's file, compared on equal processors.
    """
    yours = next((result for path, result in gathered.results if path == mine), None)
    kin_of: dict[str, Kin] = {
        path: ""
        if yours is None or _processor(result) != _processor(yours)
        else "yours"
        if path == mine
        else "like yours"
        for path, result in gathered.results
    }
    members: dict[str, list[Named]] = {}
    crosses_of: dict[str, list[tuple[str, Cross]]] = {}
    for path, cross in gathered.crosses:
        crosses_of.setdefault(cross.workload.fingerprint, []).append((path, cross))
    for path, result in sorted(gathered.results, key=lambda named: (named[1].workload.name, named[1].workload.target)):
        members.setdefault(result.workload.fingerprint, []).append((path, result))
    groups = []
    warnings = [*_workload_warnings([result for _, result in gathered.results])]
    for fingerprint, named in members.items():
        crosses = crosses_of.get(fingerprint, [])
        groups.append(_group(named, crosses, kin_of, samples, at_least))
        results = [result for _, result in named]
        warnings += [*_row_warnings(groups[-1]), *_baseline_warnings(results), *_best_warnings(results)]
        warnings += [*_load_warnings(results), *_cross_warnings(groups[-1], crosses)]
    homeless = [
        f"{path} measures a config of {cross.workload.name} ({cross.workload.target}), "
        "but no result of that workload is among the files"
        for path, cross in gathered.crosses
        if cross.workload.fingerprint not in members
    ]
    return Comparison(
        groups=tuple(groups), warnings=(*warnings, *gathered.warnings), problems=(*gathered.problems, *homeless)
    )


def require_rows(comparison: Comparison) -> None:
    """Raises a `ResultFileError` when nothing was compared; the problems name each unusable file."""
    if not comparison.groups:
        raise ResultFileError("there is nothing to compare: name result files of autotune, or folders that hold some")


def _group(
    named: Sequence[Named],
    crosses: Sequence[tuple[str, Cross]],
    kin_of: Mapping[str, Kin],
    samples: int | None,
    at_least: float | None,
) -> WorkloadGroup:
    results = [result for _, result in named]
    machines = {machine_of(result) for result in results}
    hosts, devices = (Counter(kind for kind, _ in {(each[0], each[part]) for each in machines}) for part in (1, 2))
    # The hardware; with the device and the host where several have the same name.
    labels = {
        (kind, host, device): kind + f" ({device})" * (devices[kind] > 1) + f" on {host}" * (hosts[kind] > 1)
        for kind, host, device in machines
    }
    judging = _newest_complete(results)
    judged = {id(result) for result in judging}
    rows = [
        _row(path, result, labels[machine_of(result)], kin_of[path], judged=id(result) in judged)
        for path, result in named
    ]
    rows.sort(key=lambda row: (-(row.after_samples_per_second or 0.0), row.label, row.created.isoformat(), row.path))
    order: dict[str, int] = {}
    for number, row in enumerate(rows):
        order.setdefault(row.label, number)  # a machine takes the place of its first row
    judging.sort(key=lambda result: order[labels[machine_of(result)]])
    shared, particular = _judged_knobs({labels[machine_of(result)]: result for result in judging})
    workload = results[0].workload
    return WorkloadGroup(
        name=workload.name,
        target=workload.target,
        fingerprint=workload.fingerprint,
        rows=tuple(rows),
        machines=len(judging),
        shared_knobs=shared,
        particular_knobs=particular,
        crosses=tuple(_cross_row(path, cross, labels) for path, cross in crosses),
        choices=(*choices([row for row in rows if row.judged], samples, at_least), *standing(rows)),
    )


def _newest_complete(results: Sequence[Result]) -> list[Result]:
    """The newest complete result of each machine that has one."""
    complete = sorted((result for result in results if result.status == "complete"), key=lambda result: result.created)
    return list({machine_of(result): result for result in complete}.values())


def _judged_knobs(results: Mapping[str, Result]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Knobs that all machines agree on and some baseline does not, and knobs that differ, by machine."""
    if len(results) < 2:
        return {}, {}
    shared, particular = {}, {}
    best = {label: result.best.point.values for label, result in results.items()}
    baselines = [result.baseline.point.values for result in results.values()]
    for knob in dict.fromkeys(knob for knobs in best.values() for knob in knobs):
        values = {label: knobs.get(knob) for label, knobs in best.items()}
        first, *others = values.values()
        if any(knob_text(knob, other) != knob_text(knob, first) for other in others):
            particular[knob] = values
        elif any(knob_text(knob, knobs.get(knob)) != knob_text(knob, first) for knobs in baselines):
            shared[knob] = first
    return shared, particular


def _processor(result: Result) -> str:
    """Results with the same text can be compared.

    It holds the GPU's model, or the CPU's model and their number, and the ranks if there are several.
    """
    name_of = result.hardware.machine if result.device == "cpu" else result.hardware.processor
    ranks = result.best.config.ranks
    return name_of(result.device) + (f", {ranks} ranks" if ranks > 1 else "")


def _row(path: str, result: Result, label: str, kin: Kin, *, judged: bool) -> Row:
    before, after = result.baseline.measurement, result.best.measurement
    memory_of: Literal["device", "host"] = "host" if result.constraints.device == "cpu" else "device"
    rate, price = getattr(after, "samples_per_second", None), result.dollars_per_hour
    return Row(
        path=path,
        machine=result.machine,
        hostname=result.hardware.hostname,
        label=label,
        processor=_processor(result),
        kin=kin,
        device=result.constraints.device,
        torch=result.software.torch,
        created=result.created,
        status=result.status,
        judged=judged,
        before_samples_per_second=getattr(before, "samples_per_second", None),
        before_ci95=rate_interval(result.baseline),
        after_samples_per_second=rate,
        after_ci95=rate_interval(result.best),
        objective=result.objective.name,
        speedup=result.speedup,
        speedup_reason=result.speedup_reason,
        memory_bytes=getattr(after, f"{memory_of}_memory_bytes", None),
        memory_of=memory_of,
        samples_per_joule=_samples_per_joule(result),
        dollars_per_hour=price,
        samples_per_dollar=per_dollar(rate, price) if rate is not None and price is not None else None,
        knobs=result.best.point.values,
        changed_knobs=result.changed_knobs,
        held_knobs=_held_knobs(result),
    )


def _samples_per_joule(result: Result) -> float | None:
    """The figure of the best config; None without energy, or for several GPUs, since only the first one is read."""
    measured, several = result.best.measurement, result.best.config.ranks > 1
    if measured is None or (several and result.constraints.device != "cpu"):
        return None
    return SAMPLES_PER_JOULE.score(measured)


def _held_knobs(result: Result) -> dict[str, str]:
    """Knobs that were not searched, and why; accumulation that follows from a searched batch size is not held."""
    held = {knob: "pinned" for knob, pin in result.constraints.pinned.items() if limit_of(pin) is None}
    held |= result.search.skipped_knobs
    if "batch_size" not in held and "accumulation_steps" not in result.constraints.pinned:
        held.pop("accumulation_steps", None)
    return held


def _cross_row(path: str, cross: Cross, labels: Mapping[Machine, str]) -> CrossRow:
    return CrossRow(
        path=path,
        machine=labels.get(machine_of(cross), cross.machine),
        config_of=labels.get(cross.config_of.where, cross.config_of.machine),
        created=cross.created,
        outcome=cross.outcome,
        over_own=cross.over_own,
        over_baseline=cross.over_baseline,
        finding=cross.finding,
        notes=cross.notes,
    )


# Warnings about rows that are less comparable than they look.


def _workload_warnings(results: Sequence[Result]) -> Iterator[str]:
    """Warns of targets that hide several workloads behind one name."""
    targets: dict[str, dict[str, Result]] = {}
    for result in results:
        targets.setdefault(result.workload.target, {})[result.workload.fingerprint] = result
    for target, workloads in sorted(targets.items()):
        if len(workloads) > 1:
            yield (
                f"{target} stands for {len(workloads)} workloads (fingerprints {', '.join(sorted(workloads))}): "
                f"{_what_differs(list(workloads.values()))}, so rates cannot be compared"
            )


def _what_differs(results: Sequence[Result]) -> str:
    """The differences between workloads that their records show."""
    parts: dict[str, list[str]] = {}
    for result in results:
        workload, model = result.workload, result.workload.model
        parts.setdefault("samples", []).append("none" if workload.samples is None else f"{workload.samples:,}")
        parts.setdefault("effective batch", []).append(f"{result.baseline.config.effective_batch:,}")
        if model is not None:
            parts.setdefault("model", []).append(model.words)
            parts.setdefault("optimizer", []).append(model.optimizer or "not known")
    differing = {part: dict.fromkeys(values) for part, values in parts.items() if len(set(values)) > 1}
    parts_text = ", ".join(f"{part} ({'; '.join(values)})" for part, values in differing.items())
    return f"they differ in {parts_text or 'the model, the data, the optimizer or the effective batch'}"


def _row_warnings(group: WorkloadGroup) -> Iterator[str]:
    """Warns of partial results, and of machines with several results."""
    for row in group.rows:
        if row.status == "partial":
            yield f"{row.path} is partial: the knobs of {row.label} are not judged by it"
    labelled: dict[str, list[Row]] = {}
    for row in group.rows:
        labelled.setdefault(row.label, []).append(row)
    for label, rows in labelled.items():
        judged = next((row.path for row in rows if row.judged), None)
        if len(rows) > 1 and judged is not None:
            counted = f"{label} has {len(rows)} results of {group.name}"
            yield f"{counted}; its knobs are judged by the newest complete one, {judged}"


def _baseline_warnings(results: Sequence[Result]) -> Iterator[str]:
    first, *rest = results
    knobs = {knob for other in rest for knob in other.baseline.config.changes_from(first.baseline.config)}
    if knobs:
        yield (
            f"the baselines of {first.workload.name} differ in {', '.join(sorted(knobs))}: "
            "the machines' gains refer to different configs"
        )


def _best_warnings(results: Sequence[Result]) -> Iterator[str]:
    """Warns of tuned configs that learn in another way, which rates do not show."""
    name = results[0].workload.name
    batches = sorted({result.best.config.effective_batch for result in results})
    if len(batches) > 1:
        sizes = ", ".join(f"{batch:,}" for batch in batches)
        yield f"the tuned configs of {name} differ in their effective batch ({sizes}): they do not train alike"
    if any(result.best.parameters != results[0].best.parameters for result in results):
        yield f"the tuned configs of {name} give build() different arguments: they do not train the same thing"


def _load_warnings(results: Sequence[Result]) -> Iterator[str]:
    """Warns of gains that were measured while other programs took much CPU."""
    for result in results:
        if result.speedup is not None and (beside := beside_others(result)):
            yield f"{result.workload.name} on {result.machine}: {beside.removeprefix('; ')}"


def _cross_warnings(group: WorkloadGroup, crosses: Sequence[tuple[str, Cross]]) -> Iterator[str]:
    """Warns of crosses that measured another config than a machine's row has now."""
    judged = {(row.machine, row.hostname, row.device): row for row in group.rows if row.judged}
    for path, cross in crosses:
        for machine, side in ((machine_of(cross), cross.own), (cross.config_of.where, cross.theirs)):
            row = judged.get(machine)
            if row is not None and side is not None and row.knobs != side.point.values:
                yield f"{path} measured another config of {row.label} than {row.path} holds: measure it again"


MOST_LISTED = 8
"""Machines that get a sentence with the cost of the training; the table has the rates of all."""


def choices(rows: Sequence[Row], samples: int | None = None, at_least: float | None = None) -> Iterator[str]:
    """Sentences on where to train; none with fewer than two machines.

    Args:
        rows: One per machine.
        samples: Samples of a whole training, epochs included; None: not known.
        at_least: The share of the fastest machine's rate that the cheapest and the most frugal must reach; None: any.
    """
    measured = [row for row in rows if row.after_samples_per_second]
    if len(measured) > 1:
        rates = {row.label: row.after_samples_per_second or 0.0 for row in measured}
        yield _best("fastest", measured, rates, format_rate)
        least = (at_least or 0.0) * max(rates.values())
        fast = [row for row in measured if rates[row.label] >= least]
        among = f" of those that reach {100 * at_least:g} % of the fastest" if at_least else ""
        dollars = {row.label: value for row in fast if (value := row.samples_per_dollar)}
        priced = ", where the price is known" if among and len(dollars) < len(fast) else ""
        if len(dollars) > 1 or (dollars and among):
            yield _best(
                f"cheapest{among}{priced}", measured, dollars, lambda value: f"{rounded(value)} samples a dollar"
            )
        joules: dict[str, dict[str, float]] = {}
        for row in fast:  # by device: a GPU's joules are those of the whole card, a CPU's leave out memory and board
            if row.samples_per_joule:
                joules.setdefault(row.device, {})[row.label] = row.samples_per_joule
        for device, values in joules.items():
            if len(values) > 1 or among:
                kind = f", {device} alone" if len(joules) > 1 else ""
                yield _best(f"most frugal{among}{kind}", measured, values, lambda value: f"{value:.3g} samples a joule")
    if samples is not None:
        yield from _whole_trainings(measured, samples)


def standing(rows: Sequence[Row]) -> Iterator[str]:
    """How your result stands among other machines' newest ones of the same processor; nothing where no row is yours.

    Args:
        rows: All rows of a workload, with those marked that are yours or like yours.
    """
    mine = next((row for row in rows if row.kin == "yours"), None)
    if mine is None or not (rate := mine.after_samples_per_second):
        return
    alike = [row for row in rows if row.kin == "like yours" and row.judged and row.label != mine.label]
    others = [(row, other) for row in alike if (other := row.after_samples_per_second)]
    if not others:
        yield (
            f"yours: {format_rate(rate)}; no other machine's complete result of this workload comes from "
            f"{mine.processor}"
        )
        return
    place = 1 + sum(other > rate for _, other in others)
    yield f"yours: {format_rate(rate)}, number {place} of {len(others) + 1} with {mine.processor}"
    low, high = (rate * end for end in _relative(mine))
    for row, other in others[:MOST_LISTED]:
        least, most = (other * end for end in _relative(row))
        sure = ", no certain difference" if low <= most and least <= high else ""
        differing = {knob: to for knob, to in row.knobs.items() if to != mine.knobs.get(knob)}
        knobs = settings_text(differing, ", ") or "the same knobs"
        yield f"yours runs at {ratio_text(rate / other)} of {row.label} ({row.path}){sure}; it has {knobs}"


def _best(word: str, rows: Sequence[Row], values: dict[str, float], words: Callable[[float], str]) -> str:
    """The best machine by one figure, and those within its uncertainty: all figures follow from the rate."""
    first = max(values, key=lambda label: values[label])
    spread = {row.label: _relative(row) for row in rows}
    low = values[first] * spread[first][0]
    ties = [label for label in values if label != first and values[label] * spread[label][1] >= low]
    tied = f"; no certain difference from {', '.join(ties)}" if ties else ""
    return f"{word}: {first}, {words(values[first])}{tied}"


def _relative(row: Row) -> tuple[float, float]:
    """The ends of the rate's interval, as shares of the rate; without an interval, nothing is certain."""
    rate, interval = row.after_samples_per_second, row.after_ci95
    return (interval.low / rate, interval.high / rate) if rate and interval is not None else (0.0, math.inf)


def _whole_trainings(rows: Sequence[Row], samples: int) -> Iterator[str]:
    """Time and cost of a whole training on each machine, the cheapest first, then the fastest."""
    trainings = []
    for row in rows:
        seconds = samples / (row.after_samples_per_second or 1.0)
        price = None if row.dollars_per_hour is None else seconds / SECONDS_PER_HOUR * row.dollars_per_hour
        trainings.append((price is None, price or seconds, row.label, seconds, price))
    for _, _, label, seconds, price in sorted(trainings)[:MOST_LISTED]:
        cost = "" if price is None else f" and costs ${price:,.2f}"
        yield f"{samples:,} samples: {_long(seconds)}{cost} on {label}"
    if len(trainings) > MOST_LISTED:
        yield f"and on {len(trainings) - MOST_LISTED} more machines"


def _long(seconds: float) -> str:
    """A duration; in days from three days on."""
    days = seconds / 86400.0
    return f"{days:,.1f} days" if days >= 3 else format_seconds(seconds)
