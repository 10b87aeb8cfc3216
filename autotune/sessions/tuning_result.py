"""Makes the result of a tuning, however the search ended."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone

from autotune import __version__
from autotune.bursts.hosts.endings import LONGER
from autotune.errors import AutotuneError, NothingFeasibleError, WorkloadError
from autotune.hardware import DeviceKind, Hardware
from autotune.knobs import WorkloadFacts
from autotune.measuring import Measurement, Numerics, Outcome, Point, Profile, SideName, Speedup
from autotune.measuring.pairs import NORMAL_975
from autotune.measuring.speedup import BEYOND_DOUBT
from autotune.measuring.statistics import Interval
from autotune.results.result import (
    CONFIRM,
    CardState,
    Constraints,
    Diagnosis,
    Evaluation,
    Result,
    Scaling,
    ScriptRecord,
    SearchRecord,
    Side,
    TrialRecord,
    WorkloadRecord,
)
from autotune.results.summary import INTERVAL, ratios, spread_text
from autotune.scripts.seen import SeenScript
from autotune.search.diagnosis import Evidence, advise, copy_ceiling
from autotune.search.driver import Search, StoppedBy
from autotune.search.rounds import MIN_DECIDED_ROUNDS, Confirmed
from autotune.search.stopping import sufficient_budget
from autotune.search.trials import Trial
from autotune.search.warm_start import Candidate, records
from autotune.search.watched import growths, peak_shares
from autotune.sessions.options import Options
from autotune.units import format_seconds
from autotune.wording import ratio_text


@dataclass(frozen=True)
class Setting:
    """The workload, the machine and the options of a tuning."""

    options: Options
    hardware: Hardware
    device: DeviceKind
    facts: WorkloadFacts
    checked_seconds: float = 0.0  # of the workload's check
    prepared_seconds: float = 0.0  # before the first burst
    seen: SeenScript | None = None  # what the look at a script has found; None for a model
    script: ScriptRecord | None = None  # None for a model

    @property
    def memory_limit_bytes(self) -> int | None:
        """The device memory that a burst may use; None if it is unknown."""
        return self.hardware.memory_limit_bytes(self.device, self.options.memory_target)

    @property
    def searches_ranks(self) -> bool:
        """Whether to try fewer ranks; not for a script, whose own launcher sets the number."""
        return self.seen is None and self.facts.baseline.ranks > 1

    @property
    def effective_batch(self) -> int | None:
        """Samples per optimizer step, the same for every candidate; None if it is free."""
        requested = self.options.effective_batch
        if requested is None:
            return self.facts.baseline.effective_batch
        return requested if isinstance(requested, int) else None


@dataclass
class Findings:
    """How a search ended, and the measurements after it, as far as they ran."""

    stopped_by: StoppedBy = "interrupted"  # "interrupted" until all measurements are complete
    # of the baseline and the answer, as far as there was time
    profiles: dict[Point, Profile] = field(default_factory=dict)
    evaluation: Evaluation | None = None  # the batch size for evaluation
    scaling: Scaling | None = None  # of the speed with the number of ranks


def make_result(
    search: Search,
    setting: Setting,
    findings: Findings,
    *,
    tried: Sequence[Candidate],
    notes: Sequence[str],
    seconds: float,
) -> Result:
    """The result of a tuning, however the search ended.

    Raises:
        NothingFeasibleError, WorkloadError: The baseline could not be trained.
    """
    trials, facts, hardware = search.log.trials, setting.facts, setting.hardware
    stopped_by, profiles = findings.stopped_by, findings.profiles
    if stopped_by != "interrupted" and not search.baseline_trains:
        raise _why_nothing(search, setting)
    best, speedup, reason = judge(search, stopped_by)
    before, after = _sides(search, best, speedup)
    sides: dict[SideName, Side] = {"baseline": before, "best": after} if best != search.baseline else {"best": after}
    return Result(
        status="partial" if stopped_by == "interrupted" else "complete",
        created=datetime.now(timezone.utc),
        workload=WorkloadRecord.of(facts, best.parameters, setting.script),
        hardware=hardware,
        machine_name=setting.options.machine_name,
        dollars_per_hour=setting.options.dollars_per_hour,
        software=hardware.software.model_copy(update={"autotune": __version__}),
        baseline=before,
        best=after,
        speedup=speedup,
        speedup_reason=reason,
        ablation=search.confirmation.ablation(),
        numerics=_numerics(search, best),
        constraints=_constraints(setting),
        stopped_by=stopped_by,
        search=SearchRecord(
            seconds=seconds,
            bursts=sum(not trial.resumed for trial in trials),
            outcomes=dict(Counter(trial.burst.outcome.value for trial in trials)),
            measuring_fraction=_measuring_fraction(trials, seconds),
            resumed_bursts=sum(trial.resumed for trial in trials),
            disturbed_bursts=sum(trial.burst.disturbance is not None for trial in trials),
            skipped_knobs=dict(search.space.skipped),
            notes=(*notes, *unmet(search, setting, best, stopped_by)),
            warm_start=records(tried, trials, best, search.baseline),
        ),
        trials=tuple(trial_record(trial, search.baseline) for trial in trials),
        diagnosis=_diagnosis(search, sides, setting, profiles),
        evaluation=findings.evaluation,
        scaling=findings.scaling,
    )


def _measuring_fraction(trials: Sequence[Trial], seconds: float) -> float:
    """Share of a run's duration that its bursts spent in warm-up and timed steps."""
    own = [trial for trial in trials if not trial.resumed]
    measured = sum(trial.burst.measuring_seconds for trial in own)
    incumbents: dict[
        int, float
    ] = {}  # an incumbent trains beside all candidates of a turn, and each of its blocks counts once
    for trial in own:
        if trial.turn is not None and trial.pair is not None and trial.burst.measurement is not None:
            trained = trial.pair.ratio * trial.burst.measurement.measure_seconds
            incumbents[trial.turn] = max(trained, incumbents.get(trial.turn, 0.0))
    return min(1.0, (measured + sum(incumbents.values())) / seconds) if seconds > 0 else 0.0


def _numerics(search: Search, best: Point) -> Numerics | None:
    """The numerics check of the answer against eager fp32."""
    verdict = search.confirmation.verdict(best)
    if verdict is not None or not search.confirmation.checks:
        return verdict
    return Numerics(outcome="unchecked", reason="an earlier run, or another machine, checked it before its rounds")


def _longer(search: Search) -> str:
    """The remedy where time was too short."""
    return f"{LONGER}, or --resume" if search.log.can_resume else LONGER


def _why_nothing(search: Search, setting: Setting) -> AutotuneError:
    """How a baseline that could not train ended; after a timeout, also the budget that would suffice."""
    trials = search.log.trials
    failure = next((trial.burst for trial in reversed(trials) if trial.burst.point == search.baseline), None)
    if failure is not None and failure.outcome in {Outcome.CRASHED, Outcome.INVALID} and failure.phase != "start":
        return WorkloadError(
            f"your training, unchanged, {failure.ending}; it would fail without autotune too: fix it and run again"
        )
    why = f"; the baseline {failure.ending}" if failure is not None else ""
    if failure is not None and failure.outcome is Outcome.TIMEOUT:
        # Like a burst before its timed part, the check starts, builds and trains a step; for a script, the look does.
        to_loop, preparing = 0.0, "importing, probing and checking"
        if setting.seen is not None:
            to_loop, preparing = setting.seen.seconds_to_loop, "the look and the checks"
        start_seconds = max(setting.checked_seconds, to_loop, 2 * failure.seconds)
        enough = sufficient_budget(setting.prepared_seconds, start_seconds)
        why += (
            f"; {preparing} took {format_seconds(setting.prepared_seconds)} of the "
            f"{format_seconds(setting.options.budget_seconds)}: if nothing hangs, --budget {enough:.0f}s suffices"
        )
    completed = "the only burst did not complete" if len(trials) == 1 else f"none of {len(trials)} bursts completed"
    return NothingFeasibleError(completed + why)


def _diagnosis(
    search: Search, sides: Mapping[SideName, Side], setting: Setting, profiles: Mapping[Point, Profile]
) -> Diagnosis:
    """What limits the answer, and what its author can change."""
    best, facts, machine = sides["best"], setting.facts, (setting.hardware, setting.device)
    if best.measurement is None:
        return Diagnosis(data_wait_fraction=None, headroom=search.headroom)
    ceilings, profile = search.ceilings.of(best.point), profiles.get(best.point)
    evidence = Evidence(
        config=best.config,
        measured=best.measurement,
        ceilings=ceilings | {"copy": copy_ceiling(*machine, facts, best.config.ranks)},
        device=setting.device,
        cpus=setting.hardware.cpu.budget,
        memory_limit_bytes=setting.memory_limit_bytes,
        facts=facts,
        memory=search.memory_line(best.point),
        batch_is_free=setting.effective_batch is None,
        profile=profile,
        throttled=search.confirmation.throttled(best.point),
    )
    growth = [growths(name, side.measurement, *machine, facts.samples) for name, side in sides.items()]
    shares = [peak_shares(name, side, *machine, facts, search.ceilings.of(side.point)) for name, side in sides.items()]
    return Diagnosis(
        ceilings=dict(evidence.ceilings),
        data_wait_fraction=best.measurement.data_wait_fraction,
        headroom=search.headroom,
        advice=advise(evidence),
        growth=tuple(itertools.chain(*growth)),
        peak_shares=tuple(itertools.chain(*shares)),
        before=profiles.get(search.baseline),
        after=profile,
    )


def _constraints(setting: Setting) -> Constraints:
    own = {
        "device": setting.device, "effective_batch": setting.effective_batch,
        "memory_limit_bytes": setting.memory_limit_bytes,
    }  # fmt: skip
    requested = setting.options.model_dump(include=Constraints.model_fields.keys() - own.keys())
    return Constraints.model_validate(requested | own)


def trial_record(trial: Trial, baseline: Point) -> TrialRecord:
    """A trial as the result file keeps it."""
    burst, pair = trial.burst, trial.pair
    measured = burst.measurement
    return TrialRecord(
        stage=trial.stage,
        turn=trial.turn,
        reason=trial.reason,
        changes=burst.point.new_values(baseline),
        outcome=burst.outcome,
        failure=burst.reason,
        samples_per_second=burst.rate,
        score=None if trial.objective.is_rate and pair is None else trial.score,
        partner=pair.partner.new_values(baseline) if pair is not None else None,
        ratio=pair.ratio if pair is not None else None,
        ci95=pair.ci95 if pair is not None else None,
        seconds=burst.seconds,
        compile_seconds=measured.compile_seconds if measured else None,
        memory_bytes=measured.device_memory_bytes if measured else None,
        disturbance=burst.disturbance,
        card=_card_of(measured) if trial.round is not None else None,
    )


def _card_of(measured: Measurement | None) -> CardState | None:
    """The GPU's state in a round; None if nothing was read."""
    telemetry = measured.telemetry if measured is not None else None
    if telemetry is None or telemetry.sm_clock_mhz is None:
        return None
    return CardState.model_validate(telemetry.model_dump(include=set(CardState.model_fields)))


def unmet(search: Search, setting: Setting, best: Point, stopped_by: StoppedBy) -> list[str]:
    """What the options asked for and the answer `best` does not have: a sentence each."""
    notes, asked, own = list[str](), setting.effective_batch, best.config.effective_batch
    if asked not in {None, own}:  # only the baseline may lack it
        notes.append(
            f"--effective-batch {asked} is not what this result has: it keeps your {own}, since nothing with {asked} "
            f"is proven faster; to train with {asked}, set it in your code and tune again"
        )
    tried = {name for trial in search.log.trials for name in trial.burst.point.parameters}
    untried = (name for name in search.space.parameters if name not in tried)
    why = _why_no_more(search, stopped_by)
    return [*notes, *(f"--explore {name}: none of its values was tried, since {why}" for name in untried)]


def _why_no_more(search: Search, stopped_by: StoppedBy) -> str:
    """Why the search tried no more than it did."""
    reasons = {
        "exhausted": "what was left could not run: memory is short, or something like it had failed",
        "plateau": "nothing was expected to gain enough for its time",
        "interrupted": "you interrupted it",
        "target": "the utilization target was reached before",
    }
    return reasons.get(stopped_by, f"there was no time; {_longer(search)}")


def judge(search: Search, stopped_by: StoppedBy) -> tuple[Point, Speedup | None, str | None]:
    """The point to recommend, its confirmed speed-up, and the reason when there is none.

    Only a confirmed gain displaces the baseline; otherwise the baseline is the answer.
    """
    better = "faster" if search.log.objective.is_rate else "better"
    answer, confirmed = search.confirmation.answer(), search.confirmation.confirmed()
    winner = next((finalist for finalist in confirmed if finalist.point == answer), None)
    if winner is not None:
        return winner.point, winner.speedup, None
    why = _why_refused(search, confirmed[0], better) if confirmed else _why_unconfirmed(search, better, stopped_by)
    return search.baseline, None, why


def _why_refused(search: Search, fastest: Confirmed, better: str) -> str:
    """Why the fastest finalist is not the answer."""
    confirmation, speedup = search.confirmation, fastest.speedup
    figures = f"{ratio_text(speedup.ratio)} ({spread_text(speedup)})"
    if (why := confirmation.ran_faster(fastest) or confirmation.why_out(fastest.point)) is not None:
        return f"what seems {better}, {figures}: {why}"
    if speedup.confirmed:
        too_slow = f"keeps less of the fastest rate than was asked for; lower --at-least, or {_longer(search)}"
        return f"what is {better}, {figures}, {too_slow}"
    remedy = f"; {_longer(search)}" if speedup.pairs < MIN_DECIDED_ROUNDS else ""
    if speedup.ci95.high < 1:
        worse = "slower" if search.log.objective.is_rate else "worse"
        return f"all candidates that were measured again were {worse}: at best {figures}{remedy}"
    bar = f"; a gain counts only if its interval, made {BEYOND_DOUBT:g} times as wide, still excludes 1"
    bar = bar if speedup.ci95.low > 1 else ""
    reached = f"the best candidate reached {figures}{bar}{remedy}"
    return f"no candidate was significantly {better} than the baseline: {reached}"


def _why_unconfirmed(search: Search, better: str, stopped_by: StoppedBy) -> str:
    """Why there are no confirmation rounds."""
    best = search.log.incumbent()
    candidate = best.burst.point if best is not None and best.burst.point != search.baseline else None
    why = search.confirmation.why_out(candidate) if candidate is not None else None
    if candidate is not None:
        standings = {standing.point: standing for standing in search.log.standings()}
        seems = "trained"
        if (before := standings.get(search.baseline)) is not None:  # its error is that beside the first, the candidate
            ratio, wide = standings[candidate].score / before.score, math.exp(NORMAL_975 * before.error)
            seems = f"seemed {ratio_text(ratio)} {better} ({INTERVAL} {ratios(Interval(ratio / wide, ratio * wide))})"
        ending = why or f"there was no time to confirm it; {_longer(search)}"
        return f"{candidate.changes_text(search.baseline)} {seems} in the search, but {ending}"
    others = [trial for trial in search.log.trials if trial.burst.point != search.baseline]
    if not others and search.space.is_empty:
        return "nothing was left to search"
    if not others:
        return f"only the baseline was tried, since {_why_no_more(search, stopped_by)}"
    failed = [] if any(trial.burst.ok for trial in others) else [trial.burst for trial in others]
    if broken := [burst for burst in failed if burst.outcome is not Outcome.TIMEOUT]:
        return f"nothing that was tried could be trained ({broken[0].reason or broken[0].outcome.value})"
    if failed or any(trial.pair is not None and trial.pair.too_few for trial in others):
        return f"there was no time to find out whether anything is {better}; {_longer(search)}"
    return f"nothing was {better} than the baseline"


def _sides(search: Search, best: Point, speedup: Speedup | None) -> tuple[Side, Side]:
    """The baseline and the answer; with a speed-up, from rounds that hold both, so that their blocks form pairs."""
    points = (search.baseline, best)
    paired = search.confirmation.sides(best) if speedup is not None else None
    measured = paired or tuple(_measured(search, point) for point in points)
    before, after = map(Side.of, points, measured)
    return before, after


def _measured(search: Search, point: Point) -> Measurement | None:
    """The measurement of a point: from the confirmation rounds if it took part in any, else from its own bursts."""
    return search.log.measurement(point, CONFIRM) or search.log.measurement(point)
