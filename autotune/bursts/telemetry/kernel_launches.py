"""Finds out whether a GPU waits for the host: times one training step on both, each without the other.

The device is put to sleep first, so that all kernels of a step wait in its queue. Then the host's time is the cost of
launching, and the device's time is that of the kernels. The longer of the two decides what may help: CUDA graphs for
the host, fewer bits for the device.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter  # by name: the user's module may replace what `time` holds

import torch

REPEATS = 3
SLEEP_FACTOR, LEAST_SLEEP_SECONDS, MOST_SLEEP_SECONDS = 2.0, 0.02, 2.0
"""The device sleeps this many times as long as a whole step takes: longer than launching it can take."""
LONGEST_KERNEL_SECONDS = 0.1
"""Windows resets a display's GPU after a kernel of two seconds, under WSL 2 too, so a long sleep is several kernels."""
CYCLES_PER_SECOND = 2e9
"""Approximate clock rate of a GPU; how long it really sleeps is measured."""


@dataclass(frozen=True)
class Pace:
    """The time of a step.

    Attributes:
        step_seconds: Seconds on host and device together.
        busy_fraction: Share in which the device computes; for the rest it waits for kernels to be launched.
    """

    step_seconds: float
    busy_fraction: float


def pace_of(step: Callable[[], object], device: torch.device) -> Pace | None:
    """Times a step that has run before; None for a device that cannot be put to sleep.

    Args:
        step: Launches one step; time that it waits itself counts as launching.
        device: The device that runs it.
    """
    if device.type != "cuda" or not hasattr(torch.cuda, "_sleep"):
        return None
    seconds = _together(step)
    sleep = min(MOST_SLEEP_SECONDS, max(LEAST_SLEEP_SECONDS, SLEEP_FACTOR * seconds))
    launched, computed = zip(*(_apart(step, sleep) for _ in range(REPEATS)), strict=True)
    device_seconds = statistics.median(computed)
    longest = max(device_seconds, statistics.median(launched))
    return Pace(step_seconds=seconds, busy_fraction=min(1.0, device_seconds / max(longest, 1e-9)))


def _together(step: Callable[[], object]) -> float:
    """Seconds of a step as in training, queued behind others."""
    torch.cuda.synchronize()
    began = perf_counter()
    for _ in range(REPEATS):
        step()
    torch.cuda.synchronize()
    return (perf_counter() - began) / REPEATS


def _apart(step: Callable[[], object], sleep_seconds: float) -> tuple[float, float]:
    """Seconds that the host takes to launch, and the device to compute."""
    asleep, first, last = (torch.cuda.Event(enable_timing=True) for _ in range(3))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    asleep.record()
    for _ in range(math.ceil(sleep_seconds / LONGEST_KERNEL_SECONDS)):
        seconds = min(sleep_seconds, LONGEST_KERNEL_SECONDS)
        torch.cuda._sleep(int(seconds * CYCLES_PER_SECOND))  # type: ignore[no-untyped-call]
    first.record()
    began = perf_counter()
    step()
    launched = perf_counter() - began
    last.record()
    last.synchronize()
    computed, slept = first.elapsed_time(last) / 1e3, asleep.elapsed_time(first) / 1e3
    # Where the host waited, as for a loss's value, it waited for the sleep as well.
    return (launched if launched < slept else launched - slept), computed
