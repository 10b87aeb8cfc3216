"""The answer of `autotune check`: whether a result still holds."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from autotune.measuring import ObjectiveName, Speedup

Standing = Literal["holds", "undecided", "drifted", "no longer fits"]


class Check(BaseModel):
    """The verdict on a result.

    Attributes:
        objective: What the gains compare.
        verdict: Decides the exit status of `autotune check`.
        reason: The reason, in one sentence.
        claimed: The gain in the file. None when it recommends the baseline, or the baseline did not train.
        found: The gain now. None when a side failed or there is nothing to compare.
        differences: How the workload differs from the one that was tuned.
        trainings: Rates of recent trainings on this machine, in a sentence; None without any.
    """

    model_config = ConfigDict(frozen=True)

    target: str
    objective: ObjectiveName
    verdict: Standing
    reason: str
    claimed: Speedup | None
    found: Speedup | None
    differences: tuple[str, ...] = ()
    trainings: str | None = None
