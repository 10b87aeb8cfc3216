"""What each part of training could reach alone: cheap bursts of one part decide what whole ones need not try.

``throughput ≈ min(ceilings)``: a loader that is faster than computing by some headroom needs no more workers, and
computing that is not waited for needs no faster loader (the three runs of DS-Analyzer, VLDB 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.bursts.protocol import Part
from autotune.knobs import KNOBS, Scalar
from autotune.measuring import Measurement, Point

PARTS: tuple[Part, ...] = ("compute", "loader")
FEEDING_MARGIN = 1.3
"""The loader should be so many times as fast as computing: its rate varies, and workers take cores as well. Chosen, as
are the next ones."""
NOTABLE_GAIN = 1.1
"""More workers that raise the loader's own rate by less are not worth their memory."""
IDLE_WAIT, LARGE_WAIT = 0.05, 0.5
"""Below the first share of time spent waiting for data, no loader can gain much; above the second, computing hardly."""


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

    def compute(self, point: Point) -> float | None:
        """Samples per second with batches that stay on the device; None when there was no time, or it failed."""
        return self._rate(point, "compute")

    def loader(self, point: Point) -> float | None:
        """Samples per second of the loader alone; None when there was no time, or it failed."""
        return self._rate(point, "loader")

    def learn(self, point: Point, part: Part, rate: float) -> None:
        """Keeps a rate that was measured on another occasion."""
        self._known[_key(point, part)] = rate

    def of(self, point: Point) -> dict[str, float | None]:
        """What is known of a point's parts, without running anything."""
        return {part: self._known.get(_key(point, part)) for part in PARTS}

    def fewest_workers(self, point: Point, counts: Sequence[int]) -> tuple[int, str] | None:
        """Of some counts, the fewest workers that feed a point's computing with headroom, and why; None: not known."""
        compute = self.compute(point)
        if compute is None:
            return None
        best: tuple[int, float] | None = None
        for count in sorted(count for count in counts if count > 0):
            rate = self.loader(with_workers(point, count))
            if rate is None:
                break
            if rate >= FEEDING_MARGIN * compute:
                return count, f"{count} workers alone load {rate / compute:.1f} × what computing takes"
            if best is not None and rate < NOTABLE_GAIN * best[1]:
                break
            best = (count, rate)
        if best is None:
            return None
        return best[0], f"more workers load no faster: {best[1] / compute:.1f} × what computing takes"

    def _rate(self, point: Point, part: Part) -> float | None:
        key = _key(point, part)
        if key not in self._known and self._affords(point):
            self._known[key] = self._run(point, part)
        return self._known.get(key)


def _key(point: Point, part: Part) -> tuple[Point, Part]:
    """Points that only differ in workers are one where computing is concerned."""
    return (point if part == "loader" else with_workers(point, 0)), part


def with_workers(point: Point, count: int) -> Point:
    """The point with some workers, which live on from epoch to epoch."""
    changes: dict[str, Scalar] = {"num_workers": count}
    if point.config.num_workers == 0 and count:
        changes["persistent_workers"] = True  # that start again every epoch are a poor first impression
    return point.model_copy(update={"config": point.config.replace(**changes)})


def workers_needed(workers: int, waits: float) -> float:
    """Workers that would feed training with some headroom, where those that it has let it wait for a share of time."""
    computing = max(1 - waits, 1e-3)
    return FEEDING_MARGIN * (workers / computing if workers else waits / computing)


def unlikely_to_gain(knob: str, measured: Measurement) -> bool:
    """Whether a knob belongs to the part that does not limit: training hardly waits for data, or does little else."""
    part = KNOBS[knob].part if knob in KNOBS else "compute"  # arguments of build() change what is computed
    if part == "both":
        return False
    waits = measured.data_wait_fraction
    if part == "loader":
        return waits + boundary_fraction(measured) < IDLE_WAIT
    return waits > LARGE_WAIT


def boundary_fraction(measured: Measurement) -> float:
    """Share of training that restarting the loader at the end of each epoch takes."""
    if not measured.epoch_samples:
        return 0.0
    return measured.epoch_boundary_seconds * measured.samples_per_second / measured.epoch_samples
