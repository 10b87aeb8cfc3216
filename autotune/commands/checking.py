"""Does a result still hold here? `autotune cross` of a result with its own baseline, and a verdict on that."""

from __future__ import annotations

from typing import Literal

from autotune.commands.crossing import cross_result, differences_of
from autotune.errors import UsageError
from autotune.measuring import FEWEST_PAIRS
from autotune.results.check import Check
from autotune.results.cross_file import Cross
from autotune.results.result import Result
from autotune.scripts import Script
from autotune.search.interrupts import Stop
from autotune.search.progress import Progress
from autotune.search.stopping import Budget

STATUS = {"holds": 0, "drifted": 1, "no longer fits": 3}
DRIFT = 0.05
"""A ratio that is lower by more than this share has drifted, if the intervals do not overlap. Not tuned."""


def check_result(
    result: Result, target: str | Script, budget: Budget, progress: Progress, interrupts: Stop | None = None
) -> Check:
    """Trains both sides of a result in interleaved bursts.

    The arguments are those of `cross_result`, and so are the errors.
    """
    cross = cross_result(result, target, budget, progress, interrupts, results=None)
    return judge_check(result, str(target), cross)


def judge_check(result: Result, target: str, cross: Cross) -> Check:
    """The verdict on a result whose own config was measured beside its baseline.

    Raises:
        UsageError: Both sides train here, but too few rounds ended well to compare them.
    """
    claimed, found = result.speedup, cross.over_baseline

    def check(verdict: Literal["holds", "drifted", "no longer fits"], reason: str) -> Check:
        differences = tuple(differences_of(result, cross.workload.fingerprint))
        return Check(
            target=target, verdict=verdict, reason=reason, claimed=claimed, found=found, differences=differences
        )

    if cross.failure is not None:
        return check("no longer fits", f"with the tuned config {cross.failure}")
    if not result.changed_knobs:
        trains = cross.theirs.measurement is not None
        why = f"the file recommends the baseline, and it {'trains' if trains else 'gave no figure'}"
        return check("holds" if trains else "no longer fits", why)
    if found is None:
        return check("no longer fits", cross.over_baseline_reason or "the baseline gave no figure")
    if found.pairs < FEWEST_PAIRS:
        raise UsageError(
            f"expected at least {FEWEST_PAIRS} interleaved rounds that end well, got fewer; give a longer --budget"
        )
    if claimed is not None and found.ratio < (1 - DRIFT) * claimed.ratio and found.ci95.high < claimed.ci95.low:
        return check("drifted", "the tuned config gains less than the file says")
    if found.ci95.high < 1:
        return check("drifted", "the tuned config is slower than the baseline here")
    return check("holds", "the tuned config gains what the file says, within the error of a few rounds")
