"""Does a result still hold here? Its baseline and its config once more, interleaved, for a minute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from autotune.bursts.isolation import Isolation
from autotune.bursts.runner import Runner, look_at_machine, make_runner
from autotune.commands.opening import opened
from autotune.commands.options import require_energy
from autotune.errors import UsageError
from autotune.hardware import Hardware, probe_host
from autotune.knobs import WorkloadFacts
from autotune.measuring import FEWEST_PAIRS, SAMPLES_PER_SECOND, Burst, Objective, Outcome, Point
from autotune.results.check import Check
from autotune.results.result import Result
from autotune.scripts import Script
from autotune.search.interrupts import Stop
from autotune.search.progress import Progress
from autotune.search.rounds import Round, confirm, scored, speedup_of
from autotune.search.stopping import Budget, burst_deadline, plan_for, predicted_seconds, round_plan
from autotune.search.trials import Trial
from autotune.search.turns import Turns

STATUS = {"holds": 0, "drifted": 1, "no longer fits": 3}
DRIFT = 0.05
"""A ratio that is lower by more than this share has drifted, if the intervals do not overlap. Chosen."""
PROBE_SECONDS = 20.0
"""For looking at the machine, at most. Chosen, not measured."""
FIRST_BURST_SHARE = 0.7
"""Of what remains, for the first burst: should it hang, there is time left to see how the others end."""


def check_result(
    result: Result, target: str | Script, budget: Budget, progress: Progress, interrupts: Stop | None = None
) -> Check:
    """Trains both sides of a result in interleaved bursts.

    Args:
        result: What was claimed.
        target: The workload or the script, as it is found from here.
        budget: For everything.
        progress: Who is told.
        interrupts: The signals that end it.

    Raises:
        UsageError: This machine does not have the device that the result is of.
        TargetError, WorkloadError: The workload cannot be trained here at all.
        Interrupted: Asked to end.
    """
    objective = result.objective  # one that this version does not know is refused before anything runs
    if result.ignored is not None:
        progress.note(result.ignored)
    if isinstance(target, Script):
        progress.note(f"the command that runs: {target.text}")
    on_gpu = result.best.config.ranks == 1  # several ranks train on all of them
    with opened(target, budget, progress, interrupts, progress.note, on_gpu=on_gpu) as isolation:
        device = result.constraints.device
        progress.stage("probing")
        hardware = _look(isolation, result, min(PROBE_SECONDS, budget.preparing_seconds))
        require_energy(objective.name, hardware.device(device), result.best.config.ranks)
        runner = make_runner(isolation, hardware, device, memory_target=result.constraints.memory_target)
        progress.stage("checking the workload")
        facts = runner.check(budget.preparing_seconds, result.best.parameters)
        progress.stage("baseline and tuned in turn")
        baseline, best = points_of(result)
        others = [best] if best != baseline else []
        ran = run_in_turn(baseline, others, runner, budget, progress, objective)
        return judge_check(result, target, differences_of(result, facts), ran)


def _look(isolation: Isolation, result: Result, seconds: float) -> Hardware:
    """The machine; torch is asked for what is on it where the result is of a GPU."""
    device = result.constraints.device
    if device == "cpu":
        return probe_host()
    hardware = look_at_machine(isolation, seconds)
    if device not in hardware.devices:
        raise UsageError(
            f"the result is of {device} ({result.machine}), but this machine has {', '.join(hardware.devices)}: check "
            "it on a machine of that kind; what its config does here, autotune cross tells"
        )
    return hardware


def run_in_turn(
    reference: Point,
    others: Sequence[Point],
    runner: Runner,
    budget: Budget,
    progress: Progress,
    objective: Objective = SAMPLES_PER_SECOND,
) -> tuple[list[Round], list[Burst]]:
    """Rounds of a reference and what is compared with it, in turn, while there is time.

    Args:
        reference: When it fails, nothing more is run; without others it runs once.
        others: One that fails is left out of the rounds that follow.
        runner: Runs them side by side.
        budget: For all of them.
        progress: Who is told.
        objective: By which the rounds are judged.

    Returns:
        What was measured in each round, and the bursts that failed.
    """
    plan = round_plan(plan_for(budget.seconds, objective), budget.seconds)
    turns = Turns(runner, progress.note)
    trials: list[Trial] = []
    failed: list[Burst] = []
    rounds: list[Round] = []

    def deadline(point: Point) -> float:
        available = budget.remaining * (1 if trials else FIRST_BURST_SHARE)
        return burst_deadline(point.config, trials, plan, available)

    def play(points: Sequence[Point], number: int) -> list[Burst]:
        bursts = turns.play(points, plan, deadline, budget.remaining)
        trials.extend(Trial(burst, "in turn", f"round {number + 1}") for burst in bursts)
        failed.extend(burst for burst in bursts if not burst.ok)
        rounds.append({b.point: b.measurement for b in bursts if scored(b, objective) and b.measurement is not None})
        for burst in bursts:
            progress.burst(burst, None, budget.remaining)
        return bursts

    def affords(points: Sequence[Point]) -> bool:
        if any(burst.point == reference for burst in failed):
            return False
        return sum(predicted_seconds(point.config, trials, plan) for point in points) <= budget.remaining

    if others:
        confirm(reference, others, play, affords=affords, objective=objective)
    else:
        play([reference], 0)
    return [measured for measured in rounds if measured], failed


def judge_check(
    result: Result, target: str | Script, differences: Sequence[str], ran: tuple[list[Round], list[Burst]]
) -> Check:
    """The verdict on what ran.

    Raises:
        UsageError: Both sides train here, but too few rounds ended well to compare them.
    """
    rounds, failed = ran
    baseline, best = points_of(result)
    found = speedup_of(best, baseline, rounds, result.objective) if best != baseline else None

    def check(verdict: Literal["holds", "drifted", "no longer fits"], reason: str) -> Check:
        return Check(
            target=str(target), verdict=verdict, reason=reason, claimed=result.speedup, found=found,
            differences=tuple(differences),
        )  # fmt: skip

    for name, point in (("tuned config", best), ("baseline", baseline)):
        if (broken := breakdown(point, failed)) is not None:
            return check("no longer fits", f"the {name} {broken.ending}")
    if best == baseline:
        if rounds:
            verdict: Literal["holds", "no longer fits"] = "holds"
            why = "it trains"
        else:
            ended = failed[0].ending if failed else "gave no figure"
            verdict, why = "no longer fits", f"it {ended}"
        return check(verdict, f"the file recommends the baseline, and {why}")
    if not rounds and failed:
        return check("no longer fits", f"it {failed[0].ending}")
    if found is None or found.pairs < FEWEST_PAIRS:
        raise UsageError(
            f"expected at least {FEWEST_PAIRS} interleaved rounds that end well, got fewer; give a longer --budget"
        )
    claimed = result.speedup
    if claimed is not None and found.ratio < (1 - DRIFT) * claimed.ratio and found.ci95.high < claimed.ci95.low:
        return check("drifted", "the tuned config gains less than the file says")
    if found.ci95.high < 1:
        return check("drifted", "the tuned config is slower than the baseline here")
    return check("holds", "the tuned config gains what the file says, as far as so few rounds can tell")


def breakdown(point: Point, failed: Sequence[Burst]) -> Burst | None:
    """The burst of a point that failed; one that was only too slow for the time there was does not count."""
    return next((burst for burst in failed if burst.point == point and burst.outcome is not Outcome.TIMEOUT), None)


def points_of(result: Result) -> tuple[Point, Point]:
    """Baseline and best."""
    return result.baseline.point, result.best.point


def differences_of(result: Result, facts: WorkloadFacts) -> list[str]:
    """What is not as it was where the result was measured."""
    if facts.fingerprint == result.workload.fingerprint:
        return []
    return [
        f"the workload is not the one that was tuned (fingerprint {facts.fingerprint} here, "
        f"{result.workload.fingerprint} there)"
    ]
