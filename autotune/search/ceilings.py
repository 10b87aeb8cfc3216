"""The rate that each part of training could reach alone: cheap bursts of one part show what need not be tried.

``throughput ≈ min(ceilings)``: a loader that is clearly faster than computing needs no more workers, and computing that
never waits for data needs no faster loader (the three runs of DS-Analyzer, VLDB 2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Literal

from autotune.bursts.hosts.protocol import Part
from autotune.hardware import DeviceKind
from autotune.knobs import KNOBS
from autotune.measuring import Measurement, Point

PARTS: tuple[Part, ...] = ("compute", "loader")
LEAST_SHARE = 0.02
"""The least share of the time that any speed-up leaves; keeps the bound finite. Not tuned: it lies within the noise of
a measured wait."""


class Ceilings:
    """Rates of parts, each measured once.

    Args:
        run: Runs a part of a point and returns its samples per second; None when it failed.
        affords: Whether there is time for a burst of a point.
    """

    def __init__(self, run: Callable[[Point, Part], float | None], affords: Callable[[Point], bool]) -> None:
        self._run = run
        self._affords = affords
        self._known: dict[tuple[Point, Part], float | None] = {}

    def rate(self, point: Point, part: Part) -> float | None:
        """Samples per second of a part alone; None if there was no time or the burst failed."""
        key = _key(point, part)
        if key not in self._known and self._affords(point):
            self._known[key] = self._run(point, part)
        return self._known.get(key)

    def learn(self, point: Point, part: Part, rate: float) -> None:
        """Records a rate that was measured elsewhere."""
        self._known[_key(point, part)] = rate

    def of(self, point: Point) -> dict[str, float | None]:
        """The known rates of a point's parts; runs nothing."""
        return {part: self._known.get(_key(point, part)) for part in PARTS}


def _key(point: Point, part: Part) -> tuple[Point, Part]:
    """The cache key; points that differ only in workers share one for computing."""
    return (point if part == "loader" else point.changed({"num_workers": 0})), part


def most_gain(changed: Iterable[str], measured: Measurement, device: DeviceKind = "cpu") -> float:
    """The most that changing some knobs can gain, as a logarithm: all the time of the part that they make faster.

    Args:
        changed: Names of knobs and arguments of `build()`.
        measured: The measurement of the config to change.
        device: The kind of device.
    """
    parts = {_part(name, device) for name in changed}
    if len(parts) != 1 or parts == {"both"}:
        return math.inf
    waits = measured.data_wait_fraction
    spared = waits + boundary_fraction(measured) if parts == {"loader"} else 1 - waits
    return -math.log(max(1 - spared, LEAST_SHARE))


def _part(name: str, device: DeviceKind) -> Literal["compute", "loader", "both"]:
    """The part of training that a knob or an argument makes faster.

    A loader's knob that has no effect on a CPU makes copies to the device faster, and no wait for data contains these.
    """
    knob = KNOBS.get(name)
    if knob is None:
        return "compute"  # arguments change what is computed
    copies = knob.part == "loader" and "cpu" not in knob.devices
    return "both" if copies and device != "cpu" else knob.part


def boundary_fraction(measured: Measurement) -> float:
    """The share of training that restarting the loader after each epoch takes."""
    if not measured.epoch_samples:
        return 0.0
    return measured.epoch_boundary_seconds * measured.samples_per_second / measured.epoch_samples
