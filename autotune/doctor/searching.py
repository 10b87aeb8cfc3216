"""Checks the pace of a search: candidates must be decided soon enough to find something within a short budget."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.runner import ProcessRunner
from autotune.doctor.context import DEADLINE_SECONDS, Clinic, point
from autotune.doctor.findings import Finding
from autotune.measuring import Burst, Pair, Point
from autotune.sandbox.system import WINDOWS

MERGED = 4
"""Micro-batches of a step that become one."""
PACE_SECONDS, SCRIPT_PACE_SECONDS = 240 / 25, 240 / 15
"""Seconds for a candidate: 25 of a `build()`, or 15 of a script, in a budget of four minutes."""
SECONDS = 1.0
"""For which a challenge times each side, as in a search on a GPU."""


def launches(clinic: Clinic) -> Iterator[Finding]:
    """Candidates of a model that waits for launches are decided, and one micro-batch is faster than several."""
    merged = point("launching")
    baseline = point("launching", batch_size=merged.config.batch_size // MERGED, accumulation_steps=MERGED)
    others = [side.changed({"optimizer_impl": "fused"}) for side in (merged, baseline)]
    with contextlib.closing(clinic.runner()) as runner:
        (first, *_), finding = _decided("candidates", runner, baseline, [merged, *others], PACE_SECONDS)
    pair = first[1]
    gain = f"; one micro-batch instead of {MERGED}: {pair.ratio:.2f}×" if pair is not None else ""
    holds = finding.status == "ok" and pair is not None and pair.verdict == "faster"
    yield Finding.of(finding.name, holds=holds, found=finding.found + gain, remedy=REMEDY)


def scripts(clinic: Clinic) -> Iterator[Finding]:
    """Candidates of a script are decided."""
    name = "candidates of a script"
    if WINDOWS:
        yield Finding.none(name, "scripts are refused on Windows")
        return
    with contextlib.closing(clinic.script_runner()) as runner:
        baseline = Point(config=runner.check(DEADLINE_SECONDS).baseline)
        candidates = [baseline.changed(changes) for changes in ({"optimizer_impl": "foreach"}, {"num_workers": 1})]
        yield _decided(name, runner, baseline, candidates, SCRIPT_PACE_SECONDS)[1]


REMEDY = "give tunings a longer budget here; see which check above takes long"


def _decided(
    name: str, runner: ProcessRunner, baseline: Point, candidates: Sequence[Point], pace_seconds: float
) -> tuple[list[tuple[Burst, Pair | None]], Finding]:
    """Plays candidates against a baseline that lives already, and counts those that are decided in time."""
    plan = BurstPlan(measure_seconds=SECONDS)
    runner.challenge(None, [baseline], plan, DEADLINE_SECONDS, lambda *_: None)
    began = time.monotonic()
    played = runner.challenge(baseline, candidates, plan, DEADLINE_SECONDS, lambda *_: None)
    seconds = time.monotonic() - began
    decided = sum(burst.ok and pair is not None and not pair.too_few for burst, pair in played)
    text = f"{decided} of {len(candidates)} decided in {seconds:.1f} s"
    if lost := [burst.reason for burst, _ in played if burst.reason]:
        text += f" ({lost[0]})"
    holds = decided == len(candidates) and seconds <= decided * pace_seconds
    return played, Finding.of(name, holds=holds, found=text, remedy=REMEDY)
