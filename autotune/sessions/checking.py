"""Checks whether a result still holds here: by recent trainings, else by measuring it against its own baseline."""

from __future__ import annotations

import platform
from datetime import datetime, timedelta, timezone
from pathlib import Path

from autotune.hardware import DeviceKind, Hardware, probe_host
from autotune.measuring import Progress
from autotune.results.check import Check, Standing
from autotune.results.cross_file import Cross
from autotune.results.result import Result
from autotune.results.trainings import read_trainings
from autotune.scripts import Script
from autotune.search.interrupts import Stop
from autotune.search.stopping import Budget
from autotune.sessions.crossing import cross_result, differences_of
from autotune.wording import percent

STATUS = {"holds": 0, "undecided": 0, "drifted": 1, "no longer fits": 3}
DRIFT = 0.05
"""A ratio that is lower by more than this share has drifted, if the intervals do not overlap. Not tuned."""
RECENT = timedelta(days=7)
"""Trainings that ended longer ago do not count. Not tuned."""
LEAST_SECONDS = 60.0
"""Shorter trainings do not count. Not tuned."""


def check_result(
    result: Result,
    target: str | Script,
    budget: Budget,
    progress: Progress,
    interrupts: Stop | None = None,
    *,
    file: Path | None = None,
) -> Check:
    """Trains both sides of a result in interleaved bursts, unless a recent training has reached the claimed rate.

    Recent trainings are recorded beside the result's `file`; None ignores them. Raises the errors of `cross_result`.
    """
    noted = by_trainings(result, str(target), file) if file is not None else None
    if noted is not None and noted.verdict == "holds":
        return noted
    if noted is not None:
        progress.note(noted.reason)
    cross = cross_result(result, target, budget, progress, interrupts, results=None)
    return judge_check(result, str(target), cross).model_copy(update={"trainings": noted and noted.trainings})


def by_trainings(result: Result, target: str, file: Path) -> Check | None:
    """The verdict by the last of the recent trainings on this machine.

    None if there are none, or if the machine is no longer the one that the result names.
    """
    trainings = read_trainings(result, file)
    since = datetime.now(timezone.utc) - RECENT
    recent = [
        training
        for training in (trainings.alike if trainings is not None else ())
        if training.ended > since and training.seconds >= LEAST_SECONDS and training.hostname == platform.node()
    ]
    if trainings is None or not recent or not is_like(probe_host(), result):
        return None
    ratio, ratios = trainings.ratio(recent[-1]), trainings.ratios_text(recent)
    holds = ratio >= 1 - DRIFT
    reason = (
        "the last training on this machine reached the claimed rate, so nothing was measured; the model's code was not "
        "compared with the code that was tuned"
    )
    return Check(
        target=target,
        objective=result.objective.name,
        verdict="holds" if holds else "drifted",
        reason=reason if holds else f"the last training on this machine fell {percent(1 - ratio)} short of the claim",
        claimed=result.speedup,
        found=None,
        trainings=ratios,
    )


def is_like(here: Hardware, result: Result) -> bool:
    """Whether a machine has a result's torch, CPUs and GPU, as far as they can be read without torch."""
    torch = result.software.torch or ""
    kinds: list[DeviceKind] = ["cpu"]
    if result.constraints.device == "cuda":  # only torch can read GPUs of other makers
        kinds.append("cuda")
    # The metadata of PyPI's wheels name no build, but torch itself does: 2.11.0 and 2.11.0+cu130.
    has_torch = here.software.torch in (torch, torch.partition("+")[0])
    return has_torch and all(here.machine(kind) == result.hardware.machine(kind) for kind in kinds)


def judge_check(result: Result, target: str, cross: Cross) -> Check:
    """The verdict on a result, from a comparison of its config with its baseline."""
    claimed = result.speedup if result.speedup is not None and result.speedup.confirmed else None
    measured = cross.over_baseline
    trains, had_baseline = cross.theirs.measurement is not None, result.baseline.measurement is not None
    lack = cross.over_baseline_reason or "the baseline gave no figure"
    verdict: Standing = "holds"
    if cross.failure is not None:
        verdict, reason = "no longer fits", f"with the tuned config {cross.failure}"
    elif not result.changed_knobs:
        verdict = "holds" if trains else "no longer fits"
        reason = f"the file recommends the baseline, and it {'trains' if trains else 'gave no figure'}"
    elif measured is None and trains and claimed is None and not had_baseline:
        reason = f"the tuned config trains, as in the file, and {lack}"
    elif measured is None:
        verdict, reason = "no longer fits", lack
    elif claimed and measured.ratio < (1 - DRIFT) * claimed.ratio and measured.ci95.high < claimed.ci95.low:
        verdict, reason = "drifted", "the tuned config gains less than the file says"
    elif measured.ci95.high < 1:
        worse = "slower" if result.objective.is_rate else "worse"
        verdict, reason = "drifted", f"the tuned config is {worse} than the baseline here"
    elif claimed is None:
        reason = "the file claims no gain, and the tuned config is no worse than the baseline here"
    elif measured.ci95.low <= 1:
        verdict, reason = "undecided", "the interval includes 1, so there may be no gain"
    else:
        reason = "the tuned config gains what the file says, within the error of a few rounds"
    return Check(
        target=target, objective=result.objective.name, verdict=verdict, reason=reason, claimed=result.speedup,
        found=measured, differences=tuple(differences_of(result, cross.workload.fingerprint)),
    )  # fmt: skip
