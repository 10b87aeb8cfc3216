"""What grows while training goes on: memory, shared memory, open files; and a GPU's clock that falls.

A training that is watched for seconds is to run for days. A slope is called growth only where false alarms are rare:
each process of the proof begins small, and fills its caches, its loader's queue and its heap first.
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
"""That grow in both of their halves, for a finding, in number and as a share of all."""
FEWEST_LOOKS = 3
"""Of a process: the halves share the one in the middle."""
STEADY = 0.8
"""Of the slope in the first half of the looks, that the second half must have, in the median process: what warms up
slows down. What fills up by half in the watched time has 0.6 of it left, and what grows with the largest of random
batches so far 0.6 too."""
ALARM_TAIL = 0.005
"""Of Student's t over the processes, whose slopes must nearly agree: by chance they seldom grow in all halves."""
LEAST_BYTES = 2**19
"""A second, of memory. A small network that keeps nothing, and grows by 41 bytes a step in a plain loop, grew by 0.03
to 0.2 MB/s in processes of 2 s: what autotune keeps of each block, and pages that a forked process comes to own."""
DAY_SECONDS = 86_400.0


class Look(Stored):
    """What a training held at a moment; null: the system does not tell, or no such device."""

    process: Whole = Field(default=0, description="of those that were pooled, by number")
    samples: Whole = Field(description="that it had trained since it was warm")
    seconds: Seconds = Field(description="that it had taken for them")
    host_bytes: Whole | None = Field(default=None, description="of the process tree, without pages of files")
    shm_bytes: Whole | None = Field(default=None, description="used in /dev/shm, by anybody")
    open_files: Whole | None = Field(default=None, description="of the process that has opened most")
    device_bytes: Whole | None = Field(default=None, description="of tensors on the GPU")
    clock_mhz: Figure | None = Field(default=None, description="of the GPU")


class Growth(Stored):
    """Something that grew steadily in all processes of a side, and when there is no more of it."""

    side: SideName
    what: Held
    per_second: Figure = Field(description="bytes, files, or the MHz by which the GPU's clock falls")
    ci95: KnownInterval
    free: Figure | None = Field(default=None, description="of it, beyond what training took; null: not known")
    epoch_seconds: Seconds | None = Field(default=None, description="at the measured rate; null: endless")
    within_epoch: bool = Field(description="whether no process came to the end of its first epoch")

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
        """After how long there is none left; None where that is not known."""
        return self.free / self.per_second if self.free is not None and self.per_second else None


def slope(looks: Sequence[Look], what: Held, rate: float) -> tuple[float, Interval] | None:
    """What grew a second, steadily and in most processes, with a 95 % interval; None where nothing certainly did.

    The slope of each process is the median of those between any two of its looks (Theil and Sen), which a single step
    does not move; that of all is the mean over processes of the second half of their looks. What leaks does so with
    each step, however fast those are beside others, so that slopes are of samples; that of the clock is of time. It
    counts where

    - most processes grow in both of their halves, and there are `FEWEST_PROCESSES` of them,
    - the second halves grow nearly as fast as the first ones (`STEADY`),
    - Student's t over the processes leaves `ALARM_TAIL` to chance,
    - memory grows by `LEAST_BYTES`.

    Args:
        looks: Of several processes.
        what: That is looked at.
        rate: Samples per second.
    """
    of_clock, field = what == "GPU clock", _FIELDS[what]
    early, late = [], []
    for _, group in itertools.groupby(looks, key=lambda look: look.process):
        known = [(look, value) for look in group if (value := getattr(look, field)) is not None]
        if len(known) >= FEWEST_LOOKS:
            series = [(look.seconds, -value) if of_clock else (look.samples / rate, value) for look, value in known]
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
    """The median slope between any two of some points; flat where none moved on."""
    slopes = [
        (above - below) / (later - sooner)
        for (sooner, below), (later, above) in itertools.combinations(series, 2)
        if later > sooner
    ]
    return statistics.median(slopes) if slopes else 0.0
