"""Chooses a machine to train on: the fastest, the cheapest, and the time and cost of a whole training on each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from autotune.measuring import SECONDS_PER_HOUR
from autotune.results.summary import knob_text
from autotune.units import format_rate, format_seconds, rounded
from autotune.wording import ratio_text

if TYPE_CHECKING:
    from autotune.results.compare import Row

MOST_LISTED = 8
"""Machines that get a sentence with the cost of the training; the table has the rates of all."""


def choices(rows: Sequence[Row], samples: int | None = None, at_least: float | None = None) -> Iterator[str]:
    """Sentences on where to train; none with fewer than two machines.

    Args:
        rows: One per machine.
        samples: Samples of a whole training, epochs included; None: not known.
        at_least: The share of the fastest machine's rate that the cheapest and the most frugal must reach; None: any.
    """
    measured = [row for row in rows if row.after_samples_per_second]
    if len(measured) > 1:
        rates = {row.label: row.after_samples_per_second or 0.0 for row in measured}
        yield _best("fastest", measured, rates, format_rate)
        least = (at_least or 0.0) * max(rates.values())
        fast = [row for row in measured if rates[row.label] >= least]
        among = f" of those that reach {100 * at_least:g} % of the fastest" if at_least else ""
        dollars = {row.label: value for row in fast if (value := row.samples_per_dollar)}
        priced = ", where the price is known" if among and len(dollars) < len(fast) else ""
        if len(dollars) > 1 or (dollars and among):
            yield _best(
                f"cheapest{among}{priced}", measured, dollars, lambda value: f"{rounded(value)} samples a dollar"
            )
        joules: dict[str, dict[str, float]] = {}
        for row in fast:  # by device: a GPU's joules are those of the whole card, a CPU's leave out memory and board
            if row.samples_per_joule:
                joules.setdefault(row.device, {})[row.label] = row.samples_per_joule
        for device, values in joules.items():
            if len(values) > 1 or among:
                kind = f", {device} alone" if len(joules) > 1 else ""
                yield _best(f"most frugal{among}{kind}", measured, values, lambda value: f"{value:.3g} samples a joule")
    if samples is not None:
        yield from _whole_trainings(measured, samples)


def standing(rows: Sequence[Row]) -> Iterator[str]:
    """How your result stands among those of the same processor; nothing where no row is yours.

    Args:
        rows: All rows of a workload, with those marked that are yours or like yours.
    """
    mine = next((row for row in rows if row.kin == "yours"), None)
    if mine is None or not (rate := mine.after_samples_per_second):
        return
    others = [(row, other) for row in rows if row.kin == "like yours" and (other := row.after_samples_per_second)]
    if not others:
        yield f"yours: {format_rate(rate)}; no other result of this workload comes from {mine.processor}"
        return
    place = 1 + sum(other > rate for _, other in others)
    yield f"yours: {format_rate(rate)}, number {place} of {len(others) + 1} with {mine.processor}"
    low, high = (rate * end for end in _relative(mine))
    for row, other in others[:MOST_LISTED]:
        least, most = (other * end for end in _relative(row))
        sure = ", no certain difference" if low <= most and least <= high else ""
        differing = [f"{knob}={knob_text(knob, to)}" for knob, to in row.knobs.items() if to != mine.knobs.get(knob)]
        knobs = f"; it has {', '.join(differing)}" if differing else "; it has the same knobs"
        yield f"yours runs at {ratio_text(rate / other)} of {row.label} ({row.path}){sure}{knobs}"


def _best(word: str, rows: Sequence[Row], values: dict[str, float], words: Callable[[float], str]) -> str:
    """The best machine by one figure, and those within its uncertainty: all figures follow from the rate."""
    first = max(values, key=lambda label: values[label])
    spread = {row.label: _relative(row) for row in rows}
    low = values[first] * spread[first][0]
    ties = [label for label in values if label != first and values[label] * spread[label][1] >= low]
    tied = f"; no certain difference from {', '.join(ties)}" if ties else ""
    return f"{word}: {first}, {words(values[first])}{tied}"


def _relative(row: Row) -> tuple[float, float]:
    """The ends of the rate's interval, as shares of the rate; without an interval, the rate counts as certain."""
    rate, interval = row.after_samples_per_second, row.after_ci95
    return (interval.low / rate, interval.high / rate) if rate and interval is not None else (1.0, 1.0)


def _whole_trainings(rows: Sequence[Row], samples: int) -> Iterator[str]:
    """Time and cost of a whole training on each machine, the cheapest first, then the fastest."""
    trainings = []
    for row in rows:
        seconds = samples / (row.after_samples_per_second or 1.0)
        price = None if row.dollars_per_hour is None else seconds / SECONDS_PER_HOUR * row.dollars_per_hour
        trainings.append((price is None, price or seconds, row.label, seconds, price))
    for _, _, label, seconds, price in sorted(trainings)[:MOST_LISTED]:
        cost = "" if price is None else f" and costs ${price:,.2f}"
        yield f"{samples:,} samples: {_long(seconds)}{cost} on {label}"
    if len(trainings) > MOST_LISTED:
        yield f"and on {len(trainings) - MOST_LISTED} more machines"


def _long(seconds: float) -> str:
    """A duration; in days from three days on."""
    days = seconds / 86400.0
    return f"{days:,.1f} days" if days >= 3 else format_seconds(seconds)
