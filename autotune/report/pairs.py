"""The pairs behind the headline: each block of the confirmation with its partner, and the ratio of each pair."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from autotune.measuring import Measurement, Speedup
from autotune.report.blocks import Block, Pair, Picture, Table, Text
from autotune.report.drawing import AFTER, BEFORE, INK, MUTED, SURFACE, compact, draw_panels, drawable, steps
from autotune.report.scatters import BOTTOM, LEFT, from_zero, number_lines, thinned
from autotune.results.result import Result
from autotune.results.summary import INTERVAL, bare_rate, spread_text
from autotune.wording import ratio_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RATES, RATIOS, BETWEEN = 130.0, 130.0, 16.0
"""Heights of the two axes, and the room between them."""
MOST_PAIRS = 600
"""Most pairs that are drawn; of more, every n-th is drawn. Not tuned."""
CENTRAL = 0.9
"""Share of the pairs whose ratios set the scale, which is widened on both sides by their spread. Ratios beyond it are
drawn at the edge. Not tuned."""
MOST_ROUNDS_NAMED = 12


class Paired(NamedTuple):
    """A pair of blocks: rates before and after, and the position in the picture, from 0 to 1."""

    across: float
    before: float
    after: float

    @property
    def ratio(self) -> float:
        """Rate after over rate before."""
        return self.after / self.before


class Round(NamedTuple):
    """A pair of processes: its pairs of blocks, and both rates."""

    pairs: list[Paired]
    before: float
    after: float


def confirmation(result: Result) -> list[Block]:
    """The section on the pairs of blocks; empty if whole bursts alternated."""
    rounds, speedup = rounds_of(result), result.speedup
    if not rounds or speedup is None:
        return []
    pairs = [pair for played in rounds for pair in played.pairs]
    finding = f"{ahead_text(rounds)}; over all {ratio_text(speedup.ratio)} ({spread_text(speedup)})."
    legend = (
        "above: samples/s of each block; hollow squares: before; dots: after; below: the ratio of each pair; "
        f"line: over all; band: its {INTERVAL}; 1×: as fast"
    )
    if _beyond(thinned(pairs, MOST_PAIRS), speedup):
        legend += "; triangle: beyond the scale"
    rows = tuple(
        (
            str(number),
            f"{len(played.pairs):,}",
            bare_rate(played.before),
            bare_rate(played.after),
            ratio_text(played.after / played.before),
        )
        for number, played in enumerate(rounds, 1)
    )
    headings = ("round", "pairs", "before", "after", "ratio")
    return [
        Text(
            "Each round has a fresh process for each side. Both trained the same samples block by block, in turn, so "
            "that a disturbance slowed both sides, and cancels in the ratio."
        ),
        Text(finding),
        Pair(
            Picture(pairs_picture(rounds, speedup), finding, legend),
            Table("Round by round, samples/s", headings, rows, numeric=frozenset(range(1, 5))),
        ),
    ]


def ahead_text(rounds: Sequence[Round]) -> str:
    """How often the tuned side was the faster one: ``The tuned side was ahead in 108 of 114 pairs of blocks``."""
    faster = [pair.ratio > 1 for played in rounds for pair in played.pairs]
    return f"The tuned side was ahead in {sum(faster):,} of {len(faster):,} pairs of blocks"


def rounds_of(result: Result) -> list[Round]:
    """The rounds, if both sides were measured in pairs of blocks; empty for an inconsistent file."""
    before, after, speedup = result.baseline.measurement, result.best.measurement, result.speedup
    if before is None or after is None or speedup is None or not result.objective.is_rate:
        return []
    blocks = speedup.blocks
    count = sum(blocks)
    if 0 in blocks or not count or not count == len(before.blocks) == len(after.blocks):
        return []
    old, new = before.block_rates, after.block_rates
    if not all(map(drawable, (*old, *new, speedup.ratio))):
        return []
    rounds = []
    for number, end in enumerate(accumulate(blocks)):
        own = slice(end - blocks[number], end)
        across = [(index + 0.5) / count for index in range(own.start, own.stop)]
        pairs = list(map(Paired, across, old[own], new[own]))
        rounds.append(Round(pairs, _rate(before, own), _rate(after, own)))
    return rounds


def _rate(side: Measurement, own: slice) -> float:
    """Rate of a side over some of its blocks: all samples over all seconds."""
    return sum(block.samples for block in side.blocks[own]) / math.fsum(side.block_seconds[own])


def pairs_picture(rounds: Sequence[Round], speedup: Speedup) -> str:
    """Above the rates of both sides, below the ratio of each pair with the overall ratio and its interval."""
    pairs = thinned([pair for played in rounds for pair in played.pairs], MOST_PAIRS)

    def paint(panels: Sequence[Axes]) -> None:
        rates, ratios = panels
        for side, colour, mark, face in (("before", BEFORE, "s", SURFACE), ("after", AFTER, "o", AFTER)):
            places = [pair.across for pair in pairs]
            heights = [getattr(pair, side) for pair in pairs]
            rates.plot(places, heights, mark, ms=4, mfc=face, mec=colour, mew=1, clip_on=False)
        from_zero(rates, max(max(pair.before, pair.after) for pair in pairs))
        _paint_ratios(ratios, pairs, speedup)
        for axes in panels:
            axes.set_xlim(0, 1)
            for first, second in pairwise(rounds):
                axes.axvline((first.pairs[-1].across + second.pairs[0].across) / 2, color=MUTED, lw=0.6, ls=":")
        rates.set_xticks([])
        named = thinned(list(enumerate(rounds, 1)), MOST_ROUNDS_NAMED)
        middles = [(played.pairs[0].across + played.pairs[-1].across) / 2 for _, played in named]
        ratios.set_xticks(middles, [str(number) for number, _ in named])
        ratios.set_xlabel("round")

    return draw_panels("pairs", [RATES, RATIOS], paint, beside=LEFT, below=BOTTOM, between=BETWEEN)


def _paint_ratios(axes: Axes, pairs: Sequence[Paired], speedup: Speedup) -> None:
    low, high = _scale(pairs, speedup)
    axes.set_ylim(low, high)
    ticks = [tick for tick in steps(low, high) if low <= tick <= high]
    number_lines(axes, ticks, lambda ratio: f"{compact(ratio)}×")
    axes.axhspan(*(min(max(end, low), high) for end in speedup.ci95), color=AFTER, alpha=0.25, lw=0)
    axes.axhline(1, color=INK, lw=1)
    axes.axhline(speedup.ratio, color=AFTER, lw=1.4)
    inside = [pair for pair in pairs if low <= pair.ratio <= high]
    axes.plot([pair.across for pair in inside], [pair.ratio for pair in inside], "o", ms=4, color=INK, mew=0, alpha=0.6)
    below = [pair.across for pair in pairs if pair.ratio < low]
    above = [pair.across for pair in pairs if pair.ratio > high]
    for places, edge, mark in ((below, low, "v"), (above, high, "^")):
        axes.plot(places, [edge] * len(places), mark, ms=7, color=INK, mew=0, clip_on=False)


def _scale(pairs: Sequence[Paired], speedup: Speedup) -> tuple[float, float]:
    """The lowest and highest ratio of the axis: it includes 1, the interval, and all pairs except outliers."""
    ordered = sorted(pair.ratio for pair in pairs)
    outside = math.floor((1 - CENTRAL) / 2 * len(ordered))
    low, high = ordered[outside], ordered[-1 - outside]
    ratios = [1.0, speedup.ratio, max(ordered[0], low - (high - low)), min(ordered[-1], high + (high - low))]
    ratios += [end for end in speedup.ci95 if speedup.ratio / 3 < end < 3 * speedup.ratio]
    room = 0.06 * (max(ratios) - min(ratios)) or 0.05
    return min(ratios) - room, max(ratios) + room


def _beyond(pairs: Sequence[Paired], speedup: Speedup) -> bool:
    low, high = _scale(pairs, speedup)
    return any(not low <= pair.ratio <= high for pair in pairs)
