"""Memory against batch size, fitted to the bursts so far: predicts the largest batch that stays under the target.

Memory grows about linearly with the batch: weights, optimizer and context do not depend on it, activations are in
proportion to it. Heaps and libraries take scratch memory of their own, so larger batches, nearer to the largest that
fits, weigh more. Each combination of the other knobs that change memory has its own line. On the CPU, the device's
memory is that of the whole process tree, so the number of loader workers is part of the combination.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from autotune.hardware import DeviceKind
from autotune.knobs import Scalar, affecting, buying_memory
from autotune.measuring.records import Burst, Outcome, Point

MIN_MARGIN, MAX_MARGIN = 0.02, 0.2
"""Limits of the share kept free, of the memory that the target leaves for samples. A batch that may reach into the last
fifth counts as near the target: of five workloads, the line through two small batches missed the largest batch by more
than that once (benchmarks/memory_model.py)."""
RESIDUAL_MARGIN = 2.0
"""Ratio of the margin to the residual: most larger batches lie that near to the line."""
Group = tuple[Scalar | tuple[tuple[str, Scalar], ...], ...]


@dataclass(frozen=True)
class Line:
    """Memory of a combination of knobs, as ``base_bytes + sample_bytes × batch``."""

    base_bytes: float  # does not depend on the batch
    sample_bytes: float  # per sample of the micro-batch
    margin: float  # share to keep free between the base and a limit
    # largest batch to try after one that was expected to fit ran out of memory; None where none did
    most: int | None = None

    def bytes_at(self, batch_size: int) -> float:
        """The memory that a batch is expected to take."""
        return self.base_bytes + self.sample_bytes * batch_size

    def largest_batch(self, limit_bytes: float) -> int | None:
        """The largest batch that stays under a limit, margin included; None when memory does not grow with it."""
        if self.sample_bytes <= 0:
            return None
        room = (1 - self.margin) * (limit_bytes - self.base_bytes)
        fits = max(0, math.floor(room / self.sample_bytes))
        return fits if self.most is None else min(fits, self.most)


class MemoryModel:
    """Lines for all combinations of knobs that have run with two batch sizes.

    Args:
        bursts: All so far. Those that ended well are points. One that ran out of memory is censored: it took the
            limit or more. A line that expects less there is raised to the limit. It is then trusted up to the geometric
            mean of that batch and the largest that fitted.
    """

    def __init__(self, bursts: Iterable[Burst], limit_bytes: int, device: DeviceKind) -> None:
        self.limit_bytes = limit_bytes
        self._knobs = (*affecting("memory"), *(affecting("host memory") if device == "cpu" else ()))
        # On a CPU both memories are one, and the kernel may be faster than the target.
        ran_out = {Outcome.OOM, Outcome.HOST_OOM} if device == "cpu" else {Outcome.OOM}
        taken: dict[Group, dict[int, float]] = {}
        ran: dict[Group, int] = {}
        censored: dict[Group, int] = {}
        for burst in bursts:
            group, batch = self._group(burst.point), burst.point.config.batch_size
            measured = burst.measurement.device_memory_bytes if burst.measurement is not None else None
            if burst.ok:
                ran[group] = max(batch, ran.get(group, 0))
            if burst.ok and measured is not None:
                points = taken.setdefault(group, {})
                points[batch] = max(points.get(batch, 0.0), float(measured))
            elif burst.outcome in ran_out:
                censored[group] = min(batch, censored.get(group, batch))
        self._taken, self._ran = taken, ran
        self._lines = {
            group: fit(points, censored.get(group), limit_bytes) for group, points in taken.items() if len(points) >= 2
        }

    def line(self, point: Point) -> Line | None:
        """The line of a point's combination, if it is known."""
        return self._lines.get(self._group(point))

    def shortage(self, point: Point) -> float | None:
        """The bytes that a point is expected to take, when they are more than the target.

        Where the point's own combination has no line, that of the most similar one serves: smaller batches can still
        teach its own line. The two must have the same values of the knobs that buy memory.
        """
        similar = self._buying_alike(point, self._lines)
        if not similar:
            return None
        expected = self._lines[self._most_like(point, similar)].bytes_at(point.config.batch_size)
        return expected if expected > self.limit_bytes else None

    def largest_batch(self, point: Point) -> int | None:
        """The largest batch that is expected to stay under the target with a point's other knobs."""
        line = self.line(point)
        return line.largest_batch(self.limit_bytes) if line is not None else None

    def is_near_limit(self, point: Point) -> bool:
        """Whether a point may come near the target or pass it, and no similar point has trained as large a batch.

        Its own line predicts that, else the line of the most similar combination. Where there is no line, memory is
        assumed to grow in proportion to the batch.
        """
        group, batch = self._group(point), point.config.batch_size
        alike = [group] if group in self._lines else self._buying_alike(point, self._ran) or self._ran
        if not self._taken or batch <= max(self._ran[similar] for similar in alike):
            return False
        closest = self._most_like(point, self._taken)
        largest = max(self._taken[closest])
        line = self._lines.get(closest) or Line(0.0, self._taken[closest][largest] / largest, MAX_MARGIN)
        return line.sample_bytes * batch > (1 - MAX_MARGIN) * (self.limit_bytes - line.base_bytes)

    def _buying_alike(self, point: Point, groups: Iterable[Group]) -> list[Group]:
        """The groups with a point's values of the knobs that buy memory."""
        group, buying = self._group(point), [self._knobs.index(knob) for knob in buying_memory()]
        return [other for other in groups if all(other[index] == group[index] for index in buying)]

    def _most_like(self, point: Point, groups: Iterable[Group]) -> Group:
        """The group that agrees most with a point's own, which wins where it is among them."""
        group = self._group(point)
        return max(groups, key=lambda other: sum(a == b for a, b in zip(group, other, strict=True)))

    def _group(self, point: Point) -> Group:
        return (*point.config.pick(self._knobs), tuple(sorted(point.parameters.items())))


def fit(points: dict[int, float], censored: int | None, limit_bytes: int) -> Line:
    """Fits a line by least squares, relative to the batch, and not below the limit where memory ran out.

    Args:
        points: Bytes by batch size, at least two.
        censored: The smallest batch that ran out of memory.
        limit_bytes: The memory that it ran out of.
    """
    fit_points = dict(points)
    most = None
    if censored is not None and _line_through(fit_points).bytes_at(censored) < limit_bytes:
        fit_points[censored] = float(limit_bytes)
        # The excess is not known: a batch between the two teaches the line again, and seldom runs out.
        fitted = max((batch for batch in points if batch < censored), default=0)
        most = math.isqrt(fitted * censored)
    line = _line_through(fit_points)
    weights = _weights(fit_points)
    squares = (weights[batch] * (line.bytes_at(batch) - taken) ** 2 for batch, taken in fit_points.items())
    residual = math.sqrt(sum(squares))
    growth = line.sample_bytes * max(fit_points)
    margin = min(MAX_MARGIN, max(MIN_MARGIN, RESIDUAL_MARGIN * residual / growth)) if growth else MAX_MARGIN
    return Line(line.base_bytes, line.sample_bytes, margin, most)


def _line_through(points: dict[int, float]) -> Line:
    weights = _weights(points)
    centre = sum(weights[batch] * batch for batch in points)
    mean = sum(weights[batch] * taken for batch, taken in points.items())
    spread = sum(weights[batch] * (batch - centre) ** 2 for batch in points)
    slope = sum(weights[batch] * (batch - centre) * (taken - mean) for batch, taken in points.items()) / spread
    slope = max(0.0, slope)  # noise of a model with tiny activations
    return Line(mean - slope * centre, slope, MIN_MARGIN)


def _weights(batches: Collection[int]) -> dict[int, float]:
    """Weights of the batches, by which residuals count relative to the batch."""
    return {batch: batch**2 / sum(other**2 for other in batches) for batch in batches}
