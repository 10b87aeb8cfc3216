"""What counts as growth, of looks at several processes that are made up to the second."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from autotune.measuring.growth import Look, slope

RATE = 1000.0
MB = 1e6


def looks(
    held: Callable[[float], float], *, noise: float = 0.0, processes: int = 5, seconds: float = 2.0, seed: int = 0
) -> list[Look]:
    """Eight looks at each of some processes that hold so many bytes after so many seconds."""
    rng = random.Random(seed)
    return [
        Look(
            process=process,
            samples=round(RATE * at),
            seconds=at,
            host_bytes=round(1000 * MB + held(at) + rng.gauss(0, noise)),
            clock_mhz=1800 - held(at) / MB,
        )
        for process in range(processes)
        for at in (seconds * (1 + number) / 8 for number in range(8))
    ]


def test_a_leak_has_its_slope() -> None:
    """Three megabytes a second, seen through noise of 50 kB a look, with an interval that holds it."""
    found = slope(looks(lambda at: 3 * MB * at, noise=0.05 * MB), "host memory", RATE)
    assert found is not None
    assert found[0] == pytest.approx(3 * MB, rel=0.1)
    assert found[1].low < 3 * MB < found[1].high


@pytest.mark.parametrize(
    "held",
    [
        lambda _: 0.0,
        lambda at: 20 * MB * (1 - math.exp(-at)),  # caches that fill within the watched time
        lambda at: 20 * MB * math.log(1 + at),  # the largest of random batches so far
        lambda at: 50 * MB * (at > 1.2),  # one step, wherever it comes
        lambda at: 50 * MB * (at > 0.4),
        lambda at: 30 * MB * math.sin(8 * at),
        lambda at: 0.2 * MB * at,  # what autotune itself keeps
        lambda at: -3 * MB * at,
    ],
    ids=["flat", "fills up", "largest so far", "late step", "early step", "waves", "ours", "shrinks"],
)
def test_what_ends_by_itself_is_no_leak(held: Callable[[float], float]) -> None:
    """Whatever warms up, steps or swings in all processes alike says nothing about a day."""
    assert slope(looks(held, noise=0.01 * MB), "host memory", RATE) is None


def test_chance_is_no_leak() -> None:
    """Of a thousand trainings whose memory wanders at random, one in two hundred at most is called a leak."""

    def wandering(seed: int) -> list[Look]:
        rng, held, found = random.Random(seed), 0.0, []
        for look in looks(lambda _: 0.0, processes=rng.choice((3, 4, 6)), seed=seed):
            held = rng.gauss(held, 5 * MB)
            found.append(look.model_copy(update={"host_bytes": round(1000 * MB + held)}))
        return found

    assert sum(slope(wandering(seed), "host memory", RATE) is not None for seed in range(1000)) <= 5


@pytest.mark.parametrize(("processes", "kept"), [(2, 8), (5, 2)], ids=["two processes", "two looks each"])
def test_too_little_is_no_leak(processes: int, kept: int) -> None:
    """A slope of few looks or processes has no spread to judge by."""
    few = [look for look in looks(lambda at: 3 * MB * at, processes=processes) if look.samples <= RATE * kept / 4]
    assert slope(few, "host memory", RATE) is None


def test_a_leak_of_steps_is_seen_through_a_busy_machine() -> None:
    """Processes that train at a tenth to all of the speed keep as much of each step: the slope is of samples."""
    rng = random.Random(0)
    slowed = [
        look.model_copy(update={"seconds": look.seconds * (1 + 9 * rng.random())})
        for look in looks(lambda at: 3 * MB * at)
    ]
    found = slope(slowed, "host memory", RATE)
    assert found is not None
    assert found[0] == pytest.approx(3 * MB)


def test_a_clock_that_falls_has_a_slope_in_time() -> None:
    """So many megahertz a second, downwards; one that rises is no news."""
    falling = slope(looks(lambda at: 5 * MB * at), "GPU clock", RATE)
    assert falling is not None
    assert falling[0] == pytest.approx(5.0)
    assert slope(looks(lambda at: -5 * MB * at), "GPU clock", RATE) is None
