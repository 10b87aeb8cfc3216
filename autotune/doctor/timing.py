"""Time: bursts realise what a plain loop does, two of one config are alike, and a busy GPU reads as busy."""

from __future__ import annotations

import itertools
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Iterator

from autotune.bursts.protocol import BurstPlan
from autotune.doctor.clinic import DEADLINE_SECONDS, Clinic, point
from autotune.doctor.findings import Finding
from autotune.errors import WorkloadError
from autotune.measuring import Measurement, Point, block_error

STEPS_MS, FETCH_SHARES = (5.0, 50.0, 150.0), (0.0, 0.4, 1.5)
"""Short and long steps; batches that cost nothing, hide behind the device's work, and do not."""
TOLERANCE, ALIKE = 0.03, 0.03
"""By which bursts may differ from a plain loop, and two runners of one config from each other: claims are told to
the per cent. Chosen."""
SURE = 2.0
"""Standard errors that two runners may differ by on top: blocks beside a neighbour scatter."""
WAITING_LIMIT = 0.05
"""Of the time, that a device which is always busy may be said to have waited for data. Chosen."""
SECONDS = 0.6
"""Of each case, in the plain loop and in the burst."""
PAIR, PAIR_SECONDS = (5.0, 2.0), 2.0
"""A step and a batch, in ms, of the two runners that are compared; and what each of them trains."""
PLAIN_SECONDS = 120.0
BUSY, NOT_BUSY = (0.9, 1.05), 0.7


def truth(clinic: Clinic) -> Iterator[Finding]:
    """Rates are those of a plain loop."""
    cases = [(step, step * share) for step, share in itertools.product(STEPS_MS, FETCH_SHARES)]
    measured = [_measured(clinic, case) for case in cases]
    plain = _plain_rates(clinic, cases)
    apart = [one.samples_per_second / rate - 1 for one, rate in zip(measured, plain, strict=True)]
    for number, case in enumerate(cases):
        if abs(apart[number]) > TOLERANCE:  # a neighbour, perhaps: the median of three times is believed
            again = [_measured(clinic, case).samples_per_second / _plain_rates(clinic, [case])[0] - 1 for _ in range(2)]
            apart[number] = statistics.median([apart[number], *again])
    worst = max(range(len(cases)), key=lambda number: abs(apart[number]))
    step, fetch = cases[worst]
    text = f"{apart[worst]:+.1%} beside a plain loop at worst, with steps of {step:g} ms and batches of {fetch:g} ms"
    yield _believed("rates of bursts", text, holds=abs(apart[worst]) <= TOLERANCE)
    if clinic.device != "cpu":
        fed = [one.data_wait_fraction for one, (step, fetch) in zip(measured, cases, strict=True) if fetch < step]
        yield Finding.of(  # waiting is told only where the device had nothing to do
            "waiting for data",
            holds=max(fed) <= WAITING_LIMIT,
            found=f"{max(fed):.0%} at most where the GPU is always busy",
            remedy="do not believe what is said of the loader here",
        )


def pairs(clinic: Clinic) -> Iterator[Finding]:
    """Two runners of one config are alike."""
    plan = BurstPlan(measure_seconds=PAIR_SECONDS, fastest_wins=False)
    played = clinic.runner().play([_case(*PAIR)] * 2, plan, DEADLINE_SECONDS)
    first, second = (burst.measurement for burst in played)
    if first is None or second is None:
        yield _believed("two runners of one config", "; ".join(burst.reason or "" for burst in played), holds=False)
        return
    off = abs(math.log(first.samples_per_second / second.samples_per_second))
    noise = SURE * (block_error(first, second) or 0.0)
    text = f"differ by {math.expm1(off):.1%}, ± {noise:.1%} by chance"
    yield _believed("two runners of one config", text, holds=off <= ALIKE + noise)


def busy_fraction(clinic: Clinic) -> Iterator[Finding]:
    """A GPU that computes reads as busy, one that waits for the host does not."""
    if clinic.device != "cuda":
        yield Finding.none("busy fraction", "only CUDA tells what its kernels took")
        return
    busy = clinic.runner().profile(point("saturating"), DEADLINE_SECONDS).busy_fraction or 0.0
    waiting = clinic.runner().profile(point("launching"), DEADLINE_SECONDS).busy_fraction or 0.0
    yield Finding.of(
        "busy fraction",
        holds=BUSY[0] <= busy <= BUSY[1] and waiting <= NOT_BUSY,
        found=f"{busy:.0%} for matrix products, {waiting:.0%} for tiny operators",
        remedy="do not believe what profiles say of this GPU",
    )


def _measured(clinic: Clinic, case: tuple[float, float]) -> Measurement:
    """What a burst makes of a case.

    Raises:
        WorkloadError: It did not end well.
    """
    plan = BurstPlan(measure_seconds=SECONDS)
    burst = clinic.runner().run(_case(*case), plan, DEADLINE_SECONDS)
    if burst.measurement is None:
        raise WorkloadError(f"a burst {burst.ending}")
    return burst.measurement


def _case(step_ms: float, fetch_ms: float) -> Point:
    return point("timed", {"step_ms": step_ms, "fetch_ms": fetch_ms})


def _plain_rates(clinic: Clinic, cases: list[tuple[float, float]]) -> list[float]:
    """What a loop without anything of the bursts makes of the same cases, in a process of its own."""
    asked = json.dumps(
        {"device": "cuda" if clinic.device == "rocm" else clinic.device, "seconds": SECONDS, "cases": cases}
    )
    command = [sys.executable, "-m", "autotune.doctor.workloads", asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PLAIN_SECONDS, check=True)
    rates: list[float] = json.loads(done.stdout.splitlines()[-1])
    return rates


def _believed(name: str, found: str, *, holds: bool) -> Finding:
    """Whether rates can be trusted."""
    remedy = "end other work on this machine and try again; if it stays so, do not trust rates that are told here"
    return Finding.of(name, holds=holds, found=found, remedy=remedy, decisive=True)
