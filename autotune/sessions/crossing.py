"""Measures a result's config here, interleaved with this machine's own config and the baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from autotune import __version__
from autotune.bursts.runner import Runner, look_at_machine, make_runner
from autotune.errors import ResultFileError, UsageError
from autotune.hardware import DeviceKind, Hardware
from autotune.knobs import Scalar, WorkloadFacts, format_scalar, idle_knobs
from autotune.measuring import (
    SAMPLES_PER_SECOND,
    Burst,
    Measurement,
    Objective,
    Outcome,
    Point,
    Progress,
    Round,
    Rounds,
    Speedup,
    pool,
)
from autotune.results.cross_file import RESULTS, Cross, OwnSide, origin_of
from autotune.results.files import OtherKindError
from autotune.results.result import Result, Side, WorkloadRecord, read_result
from autotune.scripts import Script, ScriptIsolation
from autotune.scripts.facts import as_trained
from autotune.search.costs import Costs
from autotune.search.interrupts import Stop
from autotune.search.rounds import confirm, round_of
from autotune.search.stopping import Budget, plan_for, round_plan, sufficient_budget
from autotune.search.trials import Trial
from autotune.sessions.opening import opened
from autotune.sessions.options import missing_device, require_energy

PROBE_SECONDS = 20.0
"""Limit for looking at the machine. Not tuned."""

NamedResult = tuple[str, Result]
"""The path of a result's file, as it was given, and the result."""


@dataclass(frozen=True)
class Place:
    """The machine that measures the config, the workload on it, its own result, and notes on the comparison."""

    hardware: Hardware
    device: DeviceKind
    facts: WorkloadFacts
    own: NamedResult | None
    notes: tuple[str, ...] = ()


def cross_result(
    source: Result,
    target: str | Script,
    budget: Budget,
    progress: Progress,
    interrupts: Stop | None = None,
    *,
    against: NamedResult | None = None,
    results: Path | None = RESULTS,
    device: DeviceKind | None = None,
) -> Cross:
    """Trains with a result's config here, in interleaved rounds with this machine's own and the result's baseline.

    The machine's own result is `against`; without it, what `own_result` finds in this machine's folder of `results`,
    unless that is None. The default device is of the kind on which the config was tuned.

    Raises:
        UsageError: This machine has no such device, or the budget holds too few rounds.
        TargetError, WorkloadError: The workload cannot be trained here at all.
        Interrupted: Asked to end.
    """
    objective = source.objective  # an unknown objective is refused before anything runs
    results_read = [source] if against is None else [source, against[1]]
    for read in results_read:
        if read.ignored is not None:
            progress.note(read.ignored)
    arguments: dict[str, tuple[Scalar, ...]] = {}
    for parameters in (side.parameters for read in results_read for side in (read.baseline, read.best)):
        arguments |= {name: (*arguments.get(name, ()), value) for name, value in parameters.items()}
    if isinstance(target, Script):
        progress.note(f"the command that runs: {target.text}")
    # Several ranks use all GPUs, and a script uses those that it asks for.
    on_gpu = (device or source.constraints.device) == "cuda"
    on_gpu = on_gpu and source.best.config.ranks == 1 and not isinstance(target, Script)
    with opened(target, budget, progress, interrupts, progress.note, on_gpu=on_gpu) as isolation:
        progress.stage("probing")
        hardware = look_at_machine(isolation, min(PROBE_SECONDS, budget.preparing_seconds))
        kind = _device_here(source, device, hardware)
        if isinstance(isolation, ScriptIsolation):
            hardware, kind = as_trained(hardware, isolation.seen, device)
        require_energy(objective.name, hardware.device(kind), source.best.config.ranks)
        target_share = source.constraints.memory_target
        runner = make_runner(isolation, hardware, kind, memory_target=target_share, note=progress.note)
        progress.stage("checking the workload")
        facts = runner.check(budget.preparing_seconds, arguments)
        own = against
        if own is None and results is not None:
            own = own_result(results / hardware.slug, facts, kind, progress.note)
        notes = (
            *differences_of(source, facts.fingerprint),
            *learning_notes(source, own),
            *device_notes(source, kind),
            *own_notes(source, own, facts, kind),
        )
        theirs, others = points_in_turn(source, own)
        progress.baseline = source.baseline.point
        progress.stage("both configs in turn")
        prepared = budget.elapsed
        ran = run_in_turn(theirs, others, runner, budget, progress, objective)
        # As slow as the slowest, each might have taken twice the time that it had.
        enough = sufficient_budget(prepared, 2 * max((burst.seconds for burst in ran[1]), default=0.0))
        return judge_cross(source, Place(hardware, kind, facts, own, notes), ran, f"try --budget {enough:.0f}s")


def run_in_turn(
    reference: Point,
    others: Sequence[Point],
    runner: Runner,
    budget: Budget,
    progress: Progress,
    objective: Objective = SAMPLES_PER_SECOND,
) -> tuple[list[Round], list[Burst]]:
    """Runs rounds of a reference and other points, in turn, while there is time.

    If the reference fails, nothing more runs; alone it runs once. Another point that fails is left out of later rounds.

    Returns:
        The measurements of each round, and the bursts that failed.
    """
    plan = round_plan(plan_for(objective), budget.seconds)
    trials: list[Trial] = []
    costs = Costs(trials, plan)
    failed: list[Burst] = []
    rounds: list[Round] = []

    def play(points: Sequence[Point], number: int) -> list[Burst]:
        remaining = budget.remaining
        deadline = sum(costs.deadline(point, plan, remaining) for point in points)
        bursts = runner.play(points, plan.of_round(number), min(deadline, remaining))
        trials.extend(Trial(burst, "in turn", f"round {number + 1}", round=number) for burst in bursts)
        failed.extend(burst for burst in bursts if not burst.ok)
        rounds.append(round_of(bursts, objective))
        for burst in bursts:
            progress.burst(burst, None, None, budget.remaining)
        return bursts

    def affords(points: Sequence[Point]) -> bool:
        if any(burst.point == reference for burst in failed):
            return False
        return costs.round_seconds(points) <= budget.remaining

    if others:
        confirm(reference, others, play, Rounds((), objective), affords=affords, races=False)
    else:
        play([reference], 0)
    return [measured for measured in rounds if measured], failed


def points_in_turn(source: Result, own: NamedResult | None) -> tuple[Point, list[Point]]:
    """The other machine's config, and the different ones to compare it with: this machine's own first."""
    theirs = source.best.point
    mine = [own[1].best.point] if own is not None else []
    return theirs, [point for point in dict.fromkeys((*mine, source.baseline.point)) if point != theirs]


def own_result(
    folder: Path, facts: WorkloadFacts, device: DeviceKind, note: Callable[[str], None] = lambda _: None
) -> NamedResult | None:
    """This machine's own result of a workload on a device: the newest complete one, else the newest partial one.

    `note` receives a sentence for each file in the folder that cannot be read.
    """
    candidates: list[NamedResult] = []
    for path in sorted(folder.glob("*.json")):
        try:
            result = read_result(path)
        except OtherKindError:
            continue
        except ResultFileError as error:
            note(f"skipped while looking for this machine's own result: {error}")
            continue
        if result.workload.fingerprint == facts.fingerprint and result.constraints.device == device:
            candidates.append((str(path), result))
    return max(candidates, key=lambda named: (named[1].status == "complete", named[1].created), default=None)


def judge_cross(
    source: Result, place: Place, ran: tuple[list[Round], list[Burst]], remedy: str = "give a longer --budget"
) -> Cross:
    """The record of a comparison that `run_in_turn` has measured; `remedy` is for too few rounds.

    Raises:
        UsageError: The config trains here, but too few rounds ended well to compare it.
    """
    rounds, failed = ran
    baseline, (theirs, others) = source.baseline.point, points_in_turn(source, place.own)
    own = place.own[1].best.point if place.own is not None else None
    broken = breakdown(theirs, failed)
    if _pooled(theirs, rounds) is None:  # it may also have timed out each time
        broken = broken or next((burst for burst in failed if burst.point == theirs), None)
    failure = f"it {broken.ending}" if broken is not None else None
    over_own, own_reason = _compared(source, own, ran, "this machine's own config", failure)
    over_baseline, baseline_reason = _compared(source, baseline, ran, "the baseline", failure)
    compared = failure is not None or over_own is not None or over_baseline is not None
    # All sides together hang less often than a budget is too short.
    endings = [{burst.outcome for burst in failed if burst.point == point} for point in (theirs, *others)]
    timed_out = not any(rounds) and all(ending == {Outcome.TIMEOUT} for ending in endings)
    if timed_out or (not compared and any(breakdown(point, failed) is None for point in others)):
        raise UsageError(f"expected time to train all configs in turn, at least once, got too little; {remedy}")
    return Cross(
        created=datetime.now(timezone.utc),
        workload=WorkloadRecord.of(place.facts, theirs.parameters),
        # The name in this machine's own result, which the comparison shows beside it.
        machine=place.own[1].machine if place.own is not None else place.hardware.machine(place.device),
        hardware=place.hardware,
        software=place.hardware.software.model_copy(update={"autotune": __version__}),
        device=place.device,
        config_of=origin_of(source),
        theirs=Side.of(theirs, _pooled(theirs, rounds)),
        baseline=Side.of(baseline, _pooled(baseline, rounds)),
        own=_own_side(place.own, rounds) if place.own is not None else None,
        outcome=broken.outcome if broken is not None else Outcome.OK,
        failure=failure,
        objective=source.objective.name,
        over_own=over_own,
        over_own_reason=own_reason,
        over_baseline=over_baseline,
        over_baseline_reason=baseline_reason,
        rounds=len(rounds),
        notes=(*place.notes, *_disturbance_notes(rounds)),
    )


def breakdown(point: Point, failed: Sequence[Burst]) -> Burst | None:
    """The failed burst of a point; a timeout does not count, since the point may only be too slow for the budget."""
    return next((burst for burst in failed if burst.point == point and burst.outcome is not Outcome.TIMEOUT), None)


def differences_of(source: Result, fingerprint: str) -> Iterable[str]:
    """A note if the workload's fingerprint differs from the one that was tuned."""
    if fingerprint != source.workload.fingerprint:
        yield (
            f"the workload is not the one that was tuned (fingerprint {fingerprint} here, "
            f"{source.workload.fingerprint} there)"
        )


def device_notes(source: Result, device: DeviceKind) -> Iterable[str]:
    """A note on the config's knobs, if they are tried on another kind of device."""
    there, config = source.constraints.device, source.best.config
    if there == device:
        return
    idle = [f"{knob}={format_scalar(getattr(config, knob))}" for knob in idle_knobs(config, device)]
    without = f", where {', '.join(idle)} {'has' if len(idle) == 1 else 'have'} no effect" if idle else ""
    yield f"the config was tuned on {there}, and is tried on {device}{without}"


def learning_notes(source: Result, own: NamedResult | None) -> Iterable[str]:
    """Notes where the compared configs learn differently, which their rates do not show."""
    theirs = source.best
    sides = {"the baseline": source.baseline} | ({own[0]: own[1].best} if own is not None else {})
    for name, side in sides.items():
        if side.parameters != theirs.parameters:
            yield f"{name} and the other machine's config give build() different arguments: they train different things"
        if side.config.effective_batch != theirs.config.effective_batch:
            yield (
                f"the other machine's config takes {theirs.config.effective_batch:,} samples a step, {name} "
                f"{side.config.effective_batch:,}: they do not train alike"
            )


def own_notes(source: Result, own: NamedResult | None, facts: WorkloadFacts, device: DeviceKind) -> Iterable[str]:
    """Notes on what makes this machine's own result less comparable; the comparison uses it all the same."""
    if own is None:
        return
    path, result = own
    if result == source:
        yield f"{path} is the very result that is tried: 'autotune check' shows whether it still holds here"
    if result.workload.fingerprint != facts.fingerprint:
        yield f"{path} is of another workload (fingerprint {result.workload.fingerprint}, here {facts.fingerprint})"
    if result.constraints.device != device:
        yield f"{path} was tuned on {result.constraints.device}, and is compared on {device}"
    if result.status == "partial":
        yield f"{path} is partial: this machine's own config may not be its best"


def _device_here(source: Result, requested: DeviceKind | None, hardware: Hardware) -> DeviceKind:
    """The kind of device to train on; raises a `UsageError` if this machine does not have it."""
    there = source.constraints.device
    if (requested or there) in hardware.devices:
        return requested or there
    if requested is not None:
        raise missing_device(requested, hardware)
    raise UsageError(
        f"the result is of {there} ({source.machine}), but this machine has {', '.join(hardware.devices)}: "
        f"'autotune cross --device {hardware.default_device}' measures its config on another kind of device"
    )


def _disturbance_notes(rounds: Sequence[Round]) -> Iterable[str]:
    """A note on what disturbed the measurements, if anything did."""
    measured = [measurement for measurements in rounds for measurement in measurements.values()]
    disturbed = [m.telemetry.disturbance for m in measured if m.telemetry is not None and m.telemetry.disturbance]
    if disturbed:
        yield f"{len(disturbed)} of {len(measured)} runs were disturbed, as by the last of them: {disturbed[-1]}"


def _compared(
    source: Result, other: Point | None, ran: tuple[list[Round], list[Burst]], name: str, failure: str | None
) -> tuple[Speedup | None, str | None]:
    """The speed-up over another config, or the reason why there is none."""
    (rounds, failed), theirs = ran, source.best.point
    if other is None:
        return None, "this machine has no result of its own; tune here, or name one with --against"
    if other == theirs:
        return None, f"it is {name}"
    if failure is not None:
        return None, failure
    if (broken := breakdown(other, failed)) is not None:
        return None, f"{name} {broken.ending}"
    speedup = Rounds(rounds, source.objective).speedup(other, theirs)
    return speedup, None if speedup is not None else "no round of both ended well"


def _pooled(point: Point, rounds: Sequence[Round]) -> Measurement | None:
    """All measurements of a point, pooled."""
    measured = [measurements[point] for measurements in rounds if point in measurements]
    return pool(measured) if measured else None


def _own_side(own: NamedResult, rounds: Sequence[Round]) -> OwnSide:
    path, result = own
    point = result.best.point
    measured = _pooled(point, rounds)
    return OwnSide(
        path=path, created=result.created, config=point.config, parameters=point.parameters, measurement=measured
    )
