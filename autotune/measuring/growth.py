"""Detects growth during training: memory, shared memory, open files; and a GPU clock that falls.

A training that is watched for seconds may run for days. The rules for growth keep false alarms rare: each process of
the proof starts small, and first fills its caches, its loader's queue and its heap.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from autotune.measuring.statistics import Interval, KnownInterval, student_t
from autotune.stored import Figure, Seconds, Stored, Whole

SideName = Literal["baseline", "best"]
Held = Literal["host memory", "shared memory", "open files", "GPU memory", "GPU clock"]
_FIELDS: dict[Held, str] = {
    "host memory": "host_bytes",
    "shared memory": "shm_bytes",
    "open files": "open_files",
    "GPU memory": "device_bytes",
    "GPU clock": "clock_mhz",
}
FEWEST_PROCESSES, MOST = 3, 0.75
"""Growth is reported when at least this number and this share of processes grow in both of their halves."""
FEWEST_LOOKS = 3
"""Looks that a process needs: its halves share the middle one."""
STEADY = 0.8
"""Least ratio of the second halves' median slope to that of the first halves: a warm-up slows down. A cache that half
fills in the watched time has a ratio of 0.6, and so has a buffer that grows with the largest random batch so far."""
ALARM_TAIL = 0.005
"""Significance level of Student's t over the processes' slopes: by chance, they seldom grow in all halves."""
LEAST_BYTES = 2**19
"""Memory must grow by this many bytes a second. A small network that keeps nothing grows by 41 bytes a step in a plain
loop. In processes of 2 s it grew by 0.03 to 0.2 MB/s: autotune's record of each block, and pages that a fork copies."""
DAY_SECONDS = 86_400.0


class Look(Stored):
    """What a training held at one moment; null where the system does not report it or has no such device."""

    process: Whole = Field(default=0, description="number of the process among those pooled")
    samples: Whole = Field(description="samples trained since the warm-up")
    seconds: Seconds = Field(description="seconds that they took")
    host_bytes: Whole | None = Field(default=None, description="of the process tree, without pages of files")
    shm_bytes: Whole | None = Field(default=None, description="used in /dev/shm, by all processes")
    open_files: Whole | None = Field(default=None, description="of the process with the most")
    device_bytes: Whole | None = Field(default=None, description="of tensors on the GPU")
    clock_mhz: Figure | None = Field(default=None, description="of the GPU")


class Growth(Stored):
    """Something that grew steadily in the processes of a side, and when it runs out."""

    side: SideName
    what: Held
    per_second: Figure = Field(description="bytes, files, or the MHz by which the GPU's clock falls")
    ci95: KnownInterval
    free: Figure | None = Field(default=None, description="left of it, beyond what training took; null: not known")
    epoch_seconds: Seconds | None = Field(default=None, description="at the measured rate; null: endless")
    within_epoch: bool = Field(description="whether no process reached the end of its first epoch")

    @property
    def per_epoch(self) -> float | None:
        """How much it grows in an epoch."""
        return self.per_second * self.epoch_seconds if self.epoch_seconds is not None else None

    @property
    def per_day(self) -> float:
        """How much it grows in a day."""
        return self.per_second * DAY_SECONDS

    @property
    def full_seconds(self) -> float | None:
        """Seconds until none is left; None where that is not known."""
        return self.free / self.per_second if self.free is not None and self.per_second else None


def slope(looks: Sequence[Look], what: Held, rate: float) -> tuple[float, Interval] | None:
    """Growth per second, with a 95 % interval; None where no growth is certain.

    The slope of a process is the median slope between any two of its looks (Theil and Sen), which a single step does
    not move. The result is the mean over processes of the slopes in their second halves. A leak grows with each step,
    however fast steps are, so slopes are per sample; that of the clock is per second. Growth is certain where

    - most processes, and `FEWEST_PROCESSES` at least, grow in both halves,
    - the second halves grow nearly as fast as the first (`STEADY`),
    - Student's t leaves `ALARM_TAIL` to chance, and
    - memory grows by `LEAST_BYTES` a second.

    Args:
        looks: Looks of several processes.
        what: The quantity to check.
        rate: Samples per second.
    """
    of_clock, field = what == "GPU clock", _FIELDS[what]
    early, late = [], []
    for _, group in itertools.groupby(looks, key=lambda look: look.process):
        readings = [(look, value) for look in group if (value := getattr(look, field)) is not None]
        if len(readings) >= FEWEST_LOOKS:
            series = [(look.seconds, -value) if of_clock else (look.samples / rate, value) for look, value in readings]
            early.append(_theil_sen(series[: len(series) // 2 + 1]))
            late.append(_theil_sen(series[len(series) // 2 :]))
    growing = sum(min(both) > 0 for both in zip(early, late, strict=True))
    if growing < max(FEWEST_PROCESSES, MOST * len(late)):
        return None
    mean, error = statistics.fmean(late), statistics.stdev(late) / math.sqrt(len(late))
    steady = statistics.median(late) >= STEADY * statistics.median(early)
    least = LEAST_BYTES if field.endswith("_bytes") else 0.0
    if not steady or mean < least or mean <= student_t(len(late) - 1, ALARM_TAIL) * error:
        return None
    half = student_t(len(late) - 1) * error
    return mean, Interval(max(0.0, mean - half), mean + half)


def _theil_sen(series: Sequence[tuple[float, float]]) -> float:
    """The median slope between any two points; 0 where all have the same position."""
    slopes = [
        (above - below) / (later - sooner)
        for (sooner, below), (later, above) in itertools.combinations(series, 2)
        if later > sooner
    ]
    return statistics.median(slopes) if slopes else 0.0
