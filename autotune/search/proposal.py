"""A proposal of the next point to run, and the names of the search's stages."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.measuring import Point

BASELINE, FIT, HEADROOM, ALLOCATOR, WARM = "baseline", "fitting into memory", "headroom", "allocator", "warm start"
BUNDLE, ELIMINATION, GAIN, LARGEST = "bundle", "elimination", "expected gain", "largest batch"
SIMPLER = "fewer changes"


@dataclass(frozen=True)
class Proposal:
    """A point to run, the stage of the search that proposes it, and why, in one sentence."""

    point: Point
    stage: str
    reason: str
