"""Checks time: bursts reach a plain loop's rates, two runners of one config agree, and a busy GPU reads as busy."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.runner import ProcessRunner
from autotune.doctor.context import DEADLINE_SECONDS, SCRIPT, SURE, Case, Clinic, point
from autotune.doctor.findings import Finding
from autotune.errors import WorkloadError
from autotune.measuring import Measurement, Point, block_error
from autotune.sandbox.system import WINDOWS

Pair = tuple[Measurement, Measurement]

STEPS_MS, FETCH_SHARES = (5.0, 50.0, 150.0), (0.4, 1.5, 0.0)
"""Short and long steps, in ms; and batches that cost less than a step, more, or nothing, as shares of a step. The short
doctor takes each once; a longer one combines them."""
TOLERANCE, ALIKE = 0.03, 0.03
"""The most that bursts may differ from a plain loop, and two runners of one config from each other. Not tuned; results
state gains to the per cent."""
WAITING_LIMIT = 0.05
"""The largest share of time that a device which is always busy may appear to wait for data. Not tuned."""
SECONDS = 0.6
"""Time for each case, in the plain loop and in the burst."""
PAIR, PAIR_SECONDS, SCRIPT_SECONDS = (5.0, 2.0), 1.0, 2.0
"""The step and the batch, in ms, of two runners to compare on a CPU; and how long they and a script train."""
UNINTERRUPTED = 0.01
"""The most that turns may change a rate or a clock."""
BUSY, NOT_BUSY = (0.9, 1.05), 0.7


def truth(clinic: Clinic) -> Iterator[Finding]:
    """Rates agree with a plain loop."""
    each = zip(STEPS_MS, FETCH_SHARES, strict=True)
    combined = itertools.product(STEPS_MS, FETCH_SHARES) if clinic.length > 1 else each
    cases = [(step, step * share) for step, share in combined]
    plan = BurstPlan(measure_seconds=SECONDS)

    def compared(cases: Sequence[Case]) -> tuple[list[Measurement], list[float]]:
        """Bursts of some cases, and how far their rates are from a plain loop's."""
        measured = [_measured(clinic.runner(), _case(*case), plan) for case in cases]
        plain = clinic.plain_rates(cases, SECONDS)
        return measured, [side.samples_per_second / rate - 1 for side, rate in zip(measured, plain, strict=True)]

    measured, apart = compared(cases)
    for number, case in enumerate(cases):
        if abs(apart[number]) > TOLERANCE:  # other load, perhaps: takes the median of three
            again = [off for _ in range(2) for off in compared([case])[1]]
            apart[number] = statistics.median([apart[number], *again])
    worst = max(range(len(cases)), key=lambda number: abs(apart[number]))
    step, fetch = cases[worst]
    text = f"{apart[worst]:+.1%} beside a plain loop at worst, with steps of {step:g} ms and batches of {fetch:g} ms"
    yield _rates_finding("rates of bursts", text, holds=abs(apart[worst]) <= TOLERANCE)
    if clinic.torch_device == "cuda":  # elsewhere the host waits for the step
        fed = [side.data_wait_fraction for side, (step, fetch) in zip(measured, cases, strict=True) if fetch < step]
        yield Finding.of(
            "waiting for data",
            holds=max(fed) <= WAITING_LIMIT,
            found=f"{max(fed):.0%} at most while the GPU is always busy",
            remedy="do not trust statements about the loader here",
        )


def scripts(clinic: Clinic) -> Iterator[Finding]:
    """Rates of a script agree with a plain loop."""
    name = "rates of scripts"
    if WINDOWS:
        yield Finding.none(name, "scripts are refused on Windows")
        return
    runner = clinic.script_runner()
    plan = BurstPlan(measure_seconds=SCRIPT_SECONDS * clinic.length)
    measured = _measured(runner, Point(config=runner.check(DEADLINE_SECONDS).baseline), plan)
    (plain,) = clinic.plain_rates([SCRIPT], SCRIPT_SECONDS * clinic.length)
    apart, waits = measured.samples_per_second / plain - 1, measured.data_wait_fraction
    fed = clinic.torch_device != "cuda" or waits <= WAITING_LIMIT
    step, fetch = SCRIPT
    text = (
        f"{apart:+.1%} beside a plain loop, {waits:.0%} waiting, with steps of {step:g} ms and batches of {fetch:g} ms"
    )
    yield _rates_finding(name, text, holds=abs(apart) <= TOLERANCE and fed)


def pairs(clinic: Clinic) -> Iterator[Finding]:
    """Two runners of one config agree, with each other and with training without interruption."""
    plan = BurstPlan(measure_seconds=PAIR_SECONDS * clinic.length, fastest_wins=False)
    config = _case(*PAIR) if clinic.gpu is None else point("saturating")
    before = _measured(clinic.runner(), config, plan)
    played = clinic.runner().play([config] * 2, plan, DEADLINE_SECONDS)
    first, second = (burst.measurement for burst in played)
    if first is None or second is None:
        reasons = "; ".join(burst.reason or "" for burst in played)
        yield _rates_finding("two runners of one config", reasons, holds=False)
        return
    off = abs(math.log(first.samples_per_second / second.samples_per_second))
    noise = SURE * (block_error(first, second) or 0.0)
    text = f"differ by {math.expm1(off):.1%}, ± {noise:.1%} by chance"
    yield _rates_finding("two runners of one config", text, holds=off <= ALIKE + noise)
    alone = (before, _measured(clinic.runner(), config, plan))  # before and after: a drift cancels
    yield _uninterrupted(alone, (first, second), noise)


def _uninterrupted(alone: Pair, turns: Pair, noise: float) -> Finding:
    """Compares training without interruption with training in turns."""
    rates = [_mean(side.samples_per_second for side in pair) for pair in (alone, turns)]
    clocks = [_mean(side.seen.sm_clock_mhz for side in pair) for pair in (alone, turns)]
    off = (rates[1] or 0.0) / (rates[0] or 1.0) - 1
    text = f"{off:+.1%} beside training without interruption, ± {noise:.1%} by chance"
    holds = abs(off) <= UNINTERRUPTED + noise
    if clocks[0] is not None and clocks[1] is not None:
        text += f"; {clocks[1]:.0f} MHz beside {clocks[0]:.0f}"
        holds &= abs(clocks[1] / clocks[0] - 1) <= UNINTERRUPTED
    return _rates_finding("rates of turns", text, holds=holds)


def _mean(figures: Iterable[float | None]) -> float | None:
    readings = [figure for figure in figures if figure is not None]
    return statistics.fmean(readings) if readings else None


def busy_fraction(clinic: Clinic) -> Iterator[Finding]:
    """A GPU that computes reads as busy, and one that waits for the host does not."""
    if clinic.device != "cuda":
        yield Finding.none("busy fraction", "only CUDA reports how long its kernels took")
        return
    busy = clinic.runner().profile(point("saturating"), DEADLINE_SECONDS).busy_fraction or 0.0
    waiting = clinic.runner().profile(point("launching"), DEADLINE_SECONDS).busy_fraction or 0.0
    yield Finding.of(
        "busy fraction",
        holds=BUSY[0] <= busy <= BUSY[1] and waiting <= NOT_BUSY,
        found=f"{busy:.0%} for matrix products, {waiting:.0%} for tiny operators",
        remedy="do not trust profiles of this GPU",
    )


def _measured(runner: ProcessRunner, config: Point, plan: BurstPlan) -> Measurement:
    """A burst's measurement of a config.

    Raises:
        WorkloadError: The burst did not end well.
    """
    burst = runner.run(config, plan, DEADLINE_SECONDS)
    if burst.measurement is None:
        raise WorkloadError(f"a burst {burst.ending}")
    return burst.measurement


def _case(step_ms: float, fetch_ms: float) -> Point:
    return point("timed", {"step_ms": step_ms, "fetch_ms": fetch_ms})


def _rates_finding(name: str, text: str, *, holds: bool) -> Finding:
    remedy = "end other work on this machine and try again; if it fails again, do not trust rates measured here"
    return Finding.of(name, holds=holds, found=text, remedy=remedy, decisive=True)
