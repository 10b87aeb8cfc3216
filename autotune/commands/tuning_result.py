"""The result that a tuning comes to, made of what is known however the search ended."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone

from autotune import __version__
from autotune.commands.options import Options
from autotune.errors import NothingFeasibleError
from autotune.hardware import DeviceKind, Hardware
from autotune.knobs import WorkloadFacts
from autotune.measuring import Burst, Measurement, Numerics, Outcome, Point, Profile, SideName, Speedup
from autotune.results.result import (
    Constraints,
    Evaluation,
    Result,
    Scaling,
    ScriptRecord,
    SearchRecord,
    Side,
    TrialRecord,
    WorkloadRecord,
)
from autotune.results.sites import SourceRecord
from autotune.results.summary import spread_text, too_few_pairs
from autotune.scripts.facts import loop_of
from autotune.scripts.seen import SeenScript
from autotune.search.diagnosis import Evidence, copy_ceiling, diagnose
from autotune.search.driver import Search, StoppedBy
from autotune.search.proposal import CONFIRM
from autotune.search.stopping import sufficient_budget
from autotune.search.trials import Trial
from autotune.search.warm_start import Candidate, records
from autotune.search.watched import growths, peak_shares
from autotune.units import format_seconds
from autotune.wording import ratio_text

LONGER = "give a longer --budget, or --resume"


@dataclass(frozen=True)
class Setting:
    """What is tuned, where, and as it was asked for.

    Attributes:
        options: What the person asked for.
        hardware: The machine.
        device: What is trained on.
        facts: The workload.
        checked_seconds: What the look at the workload took.
        prepared_seconds: What all took that came before the first burst.
        seen: Of a script: what a look at it has seen.
        source: Of a script: by which it can be changed.
    """

    options: Options
    hardware: Hardware
    device: DeviceKind
    facts: WorkloadFacts
    checked_seconds: float = 0.0
    prepared_seconds: float = 0.0
    seen: SeenScript | None = None
    source: SourceRecord | None = None

    @property
    def memory_limit_bytes(self) -> int | None:
        """What a burst may take of the device's memory; None where it is not known."""
        return self.hardware.memory_limit_bytes(self.device, self.options.memory_target)

    @property
    def searches_ranks(self) -> bool:
        """Whether fewer ranks could be told to train: a script's own launcher says how many there are."""
        return self.seen is None and self.facts.baseline.ranks > 1

    @property
    def script(self) -> ScriptRecord | None:
        """The script, where one is tuned."""
        if self.seen is None or self.source is None:
            return None
        return ScriptRecord(command=self.options.script, loop=loop_of(self.seen), source=self.source)

    @property
    def effective_batch(self) -> int | None:
        """Samples of an optimizer step that every candidate holds; None when free."""
        wanted = self.options.effective_batch
        if wanted is None:
            return self.facts.baseline.effective_batch
        return wanted if isinstance(wanted, int) else None


@dataclass
class Findings:
    """How a search ended, and what was found after it, as far as it came.

    Attributes:
        stopped_by: Why it ended; interrupted, until all is found.
        profiles: Of the baseline and the answer, as far as there was time.
        evaluation: The batch to evaluate with.
        scaling: How many ranks pay.
    """

    stopped_by: StoppedBy = "interrupted"
    profiles: dict[Point, Profile] = field(default_factory=dict)
    evaluation: Evaluation | None = None
    scaling: Scaling | None = None


def make_result(
    search: Search,
    setting: Setting,
    findings: Findings,
    *,
    tried: Sequence[Candidate],
    notes: Sequence[str],
    seconds: float,
) -> Result:
    """The result of what is known, however the search ended.

    Args:
        search: What was run.
        setting: What was tuned.
        findings: How it ended, and what was found after it.
        tried: What other machines' results suggested.
        notes: What a person was told meanwhile.
        seconds: That all of it took.

    Raises:
        NothingFeasibleError: Nothing could be trained.
    """
    trials, facts, hardware = search.log.trials, setting.facts, setting.hardware
    stopped_by, profiles = findings.stopped_by, findings.profiles
    if stopped_by != "interrupted" and search.log.incumbent() is None:
        raise NothingFeasibleError(_why_nothing(search, setting))
    best, speedup, reason = judge(search)
    before, after = _sides(search, best, speedup)
    sides: dict[SideName, Side] = {"baseline": before, "best": after} if best != search.baseline else {"best": after}
    machine = hardware, setting.device
    return Result(
        status="partial" if stopped_by == "interrupted" else "complete",
        created=datetime.now(timezone.utc),
        workload=WorkloadRecord(
            target=facts.target,
            name=facts.name,
            parameters=best.parameters,
            samples=facts.samples,
            fingerprint=facts.fingerprint,
            model=facts.model,
            flops_per_sample=facts.flops_per_sample,
            padding_fraction=facts.padding_fraction,
            script=setting.script,
        ),
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
            notes=tuple(notes),
            warm_start=records(tried, trials, best, search.baseline),
        ),
        trials=tuple(trial_record(trial, search.baseline) for trial in trials),
        diagnosis=diagnose(
            _evidence(search, after, setting, profiles.get(best)),
            profiles.get(search.baseline),
            search.headroom,
            (one for name, side in sides.items() for one in growths(name, side.measurement, *machine, facts.samples)),
            (
                one
                for name, side in sides.items()
                for one in peak_shares(name, side, *machine, facts, search.ceilings.of(side.point))
            ),
        ),
        evaluation=findings.evaluation,
        scaling=findings.scaling,
    )


def _measuring_fraction(trials: Sequence[Trial], seconds: float) -> float:
    """Share of a run's seconds that its bursts spent in warm-up and timed steps."""
    own = [trial for trial in trials if not trial.resumed]
    measured = sum(trial.burst.measuring_seconds for trial in own)
    incumbents: dict[int, float] = {}  # one trains beside all of a turn, each block of theirs once
    for trial in own:
        if trial.turn is not None and trial.pair is not None and trial.burst.measurement is not None:
            trained = trial.pair.ratio * trial.burst.measurement.measure_seconds
            incumbents[trial.turn] = max(trained, incumbents.get(trial.turn, 0.0))
    return min(1.0, (measured + sum(incumbents.values())) / seconds) if seconds > 0 else 0.0


def _numerics(search: Search, best: Point) -> Numerics | None:
    """Whether the answer trains what eager fp32 trains; said too where there was no time to see."""
    known = search.confirmation.verdict(best)
    if known is not None or not search.confirmation.checks:
        return known
    return Numerics(outcome="unchecked", reason=f"there was no time to check it; {LONGER}")


def _how_it_ended(search: Search) -> str:
    """How the baseline ended, where it never trained."""
    failure = _baselines_first(search)
    return failure.ending if failure is not None else "was never run"


def _baselines_first(search: Search) -> Burst | None:
    """The baseline's first burst, if there was one."""
    return next((trial.burst for trial in search.log.trials if trial.burst.point == search.baseline), None)


def _why_nothing(search: Search, setting: Setting) -> str:
    """How the baseline ended, where not even that could be trained; and the budget that would do, if that is why."""
    trials = search.log.trials
    failure = _baselines_first(search)
    why = f"; the baseline {_how_it_ended(search)}" if failure is not None else ""
    if failure is not None and failure.outcome is Outcome.TIMEOUT:
        # The check starts, builds and trains a step, as a burst does before its timed part; a script, its look.
        to_loop, preparing = 0.0, "importing, probing and checking"
        if setting.seen is not None:
            to_loop, preparing = setting.seen.seconds_to_loop, "the look and the checks"
        start_seconds = max(setting.checked_seconds, to_loop, 2 * failure.seconds)
        enough = sufficient_budget(setting.prepared_seconds, start_seconds)
        why += (
            f"; {preparing} took {format_seconds(setting.prepared_seconds)} of the "
            f"{format_seconds(setting.options.budget_seconds)}: if nothing hangs, --budget {enough:.0f}s would do"
        )
    return f"none of {len(trials)} bursts could be trained to its end{why}"


def _evidence(search: Search, best: Side, setting: Setting, profile: Profile | None) -> Evidence | None:
    """All that is known of the answer."""
    if best.measurement is None:
        return None
    copying = copy_ceiling(setting.hardware, setting.device, setting.facts)
    return Evidence(
        config=best.config,
        measured=best.measurement,
        ceilings=search.ceilings.of(best.point) | {"copy": copying},
        device=setting.device,
        cpus=setting.hardware.cpu.budget,
        memory_limit_bytes=setting.memory_limit_bytes,
        padding_fraction=setting.facts.padding_fraction,
        profile=profile,
    )


def _constraints(setting: Setting) -> Constraints:
    own = {
        "device": setting.device, "effective_batch": setting.effective_batch,
        "memory_limit_bytes": setting.memory_limit_bytes,
    }  # fmt: skip
    asked = setting.options.model_dump(include=Constraints.model_fields.keys() - own.keys())
    return Constraints.model_validate(asked | own)


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
    )


def judge(search: Search) -> tuple[Point, Speedup | None, str | None]:
    """The point to recommend, its confirmed speed-up, and the reason when there is none.

    Only a confirmed gain displaces the baseline: else the baseline is the answer.
    """
    better = "faster" if search.log.objective.is_rate else "better"
    answer = search.confirmation.answer()
    if answer != search.baseline and not search.confirmation.baseline_trains:
        why = f"what you train with today {_how_it_ended(search)}: there is nothing to compare the answer with"
        return answer, None, why
    confirmed = search.confirmation.confirmed()
    if confirmed:
        winner = next((one for one in confirmed if one.point == answer), None)
        if winner is not None:
            return winner.point, winner.speedup, None
        top = confirmed[0].speedup
        if (clock := search.confirmation.ran_faster(confirmed[0])) is not None:
            return search.baseline, None, f"what seems {better} ({ratio_text(top.ratio)}, {spread_text(top)}): {clock}"
        if top.confirmed and confirmed[0].point != answer:
            too_slow = f"keeps less of the fastest rate than was asked for; lower --at-least, or {LONGER}"
            return search.baseline, None, f"what is {better} ({ratio_text(top.ratio)}, {spread_text(top)}) {too_slow}"
        remedy = f"; {LONGER}" if too_few_pairs(top.pairs) else ""
        reached = f"the best candidate reached {ratio_text(top.ratio)} ({spread_text(top)}){remedy}"
        return search.baseline, None, f"nothing was {better} than the baseline beyond doubt: {reached}"
    return search.baseline, None, _why_unconfirmed(search, better)


def _why_unconfirmed(search: Search, better: str) -> str:
    """Why there are no confirming rounds, or too few."""
    best = search.log.incumbent()
    found = best is not None and best.burst.point != search.baseline
    why = search.confirmation.why_out(best.burst.point) if best is not None and found else None
    if why is None and (seems := _what_seems(search, better)) is not None:
        return f"{seems}, but there was no time to confirm it; {LONGER}"
    if found:
        return f"the search found a {better} config, but {why or f'there was no time to confirm it; {LONGER}'}"
    others = [trial for trial in search.log.trials if trial.burst.point != search.baseline]
    if not others and (search.space.choices or search.space.parameters):
        return f"there was no time to try anything but the baseline; {LONGER}"
    if others and not any(trial.burst.ok for trial in others):
        return f"nothing that was tried could be trained ({others[0].burst.reason or others[0].burst.outcome.value})"
    if any(trial.pair is not None and trial.pair.too_few for trial in others):
        return f"there was no time to find out whether anything is {better}; {LONGER}"
    return f"nothing was {better} than the baseline"


def _what_seems(search: Search, better: str) -> str | None:
    """What seemed better in confirming rounds that began, and were too few; None where nothing did."""
    rounds: dict[int, dict[Point, float]] = {}
    for trial in search.log.trials:
        if trial.stage == CONFIRM and trial.round is not None and trial.score:
            rounds.setdefault(trial.round, {})[trial.burst.point] = trial.score
    ratios: dict[Point, list[float]] = {}
    for scores in rounds.values():
        if (before := scores.pop(search.baseline, None)) is not None:
            for point, score in scores.items():
                ratios.setdefault(point, []).append(score / before)
    sound = [point for point in ratios if search.confirmation.why_out(point) is None]
    best = max(sound, key=lambda point: statistics.geometric_mean(ratios[point]), default=None)
    if best is None or (ratio := statistics.geometric_mean(ratios[best])) <= 1:
        return None
    pairs = len(ratios[best])
    told = f"{best.changes_text(search.baseline)} seemed {ratio_text(ratio)} {better}"
    return f"{told} in {pairs} pair{'' if pairs == 1 else 's'}"


def _sides(search: Search, best: Point, speedup: Speedup | None) -> tuple[Side, Side]:
    """The baseline and the answer: in the rounds that hold both where there is a speed-up, so that blocks are pairs."""
    points = (search.baseline, best)
    paired = search.confirmation.sides(best) if speedup is not None else None
    measured = paired or tuple(_measured(search, point) for point in points)
    before, after = (
        Side(config=point.config, parameters=point.parameters, measurement=its)
        for point, its in zip(points, measured, strict=True)
    )
    return before, after


def _measured(search: Search, point: Point) -> Measurement | None:
    """What a point was measured to do: beside the others, in turn, if it came to that; else in bursts of its own."""
    return search.log.measurement(point, CONFIRM) or search.log.measurement(point)
