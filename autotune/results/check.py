"""The record of `autotune check`: whether a result still holds."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from autotune.measuring import Speedup


class Check(BaseModel):
    """What came of it.

    Attributes:
        verdict: In the words of `autotune check`, which gives each its exit status.
        reason: In one sentence.
        claimed: The speed-up in the file; None when it recommends the baseline.
        found: The speed-up now; None when a side failed, or there is nothing to compare.
        differences: What is not as it was: the workload.
    """

    model_config = ConfigDict(frozen=True)

    target: str
    verdict: Literal["holds", "drifted", "no longer fits"]
    reason: str
    claimed: Speedup | None
    found: Speedup | None
    differences: tuple[str, ...] = ()
