"""The answer of `autotune check`: whether a result still holds."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from autotune.measuring import ObjectiveName, Speedup

Standing = Literal["holds", "undecided", "drifted", "no longer fits"]


class Check(BaseModel):
    """The verdict on a result."""

    model_config = ConfigDict(frozen=True)

    target: str
    objective: ObjectiveName  # of the gains
    verdict: Standing  # decides the exit status of `autotune check`
    reason: str
    claimed: Speedup | None  # in the file; None when it recommends the baseline, or the baseline did not train
    found: Speedup | None  # now; None when a side failed or there is nothing to compare
    differences: tuple[str, ...] = ()  # between the workload and the one that was tuned
    trainings: str | None = None  # rates of recent ones on this machine, in a sentence
