"""Which of several machines to train on: the fastest, the cheapest, and what so many samples take and cost on each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from autotune.measuring import SECONDS_PER_HOUR
from autotune.units import format_rate, format_seconds, rounded

if TYPE_CHECKING:
    from autotune.results.compare import Row

MOST_TOLD = 8
"""Machines of which a sentence each tells what the training costs there; the table has the rates of all."""


def choices(rows: Sequence[Row], samples: int | None = None, at_least: float | None = None) -> Iterator[str]:
    """Sentences on where to train; none where there are not two machines to choose from.

    Args:
        rows: One a machine.
        samples: What is to be trained in all, epochs included; None: not known.
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
        for row in fast:  # a GPU's joules are all of the card's, processors' leave out the memory and the board
            if row.samples_per_joule:
                joules.setdefault(row.device, {})[row.label] = row.samples_per_joule
        for device, values in joules.items():
            if len(values) > 1 or among:
                kind = f", {device} alone" if len(joules) > 1 else ""
                yield _best(f"most frugal{among}{kind}", measured, values, lambda value: f"{value:.3g} samples a joule")
    if samples is not None:
        yield from _whole_trainings(measured, samples)


def _best(word: str, rows: Sequence[Row], values: dict[str, float], words: Callable[[float], str]) -> str:
    """The best machine by one figure; with those that cannot be told from it, since all follow from the rate."""
    first = max(values, key=lambda label: values[label])
    spread = {row.label: _relative(row) for row in rows}
    low = values[first] * spread[first][0]
    ties = [label for label in values if label != first and values[label] * spread[label][1] >= low]
    tied = f"; {', '.join(ties)} cannot be told from it" if ties else ""
    return f"{word}: {first}, {words(values[first])}{tied}"


def _relative(row: Row) -> tuple[float, float]:
    """The ends of the rate's interval, as shares of it; none known is taken as sure."""
    rate, interval = row.after_samples_per_second, row.after_ci95
    return (interval.low / rate, interval.high / rate) if rate and interval is not None else (1.0, 1.0)


def _whole_trainings(rows: Sequence[Row], samples: int) -> Iterator[str]:
    """What a training of so many samples takes on each machine, the cheapest first, then the fastest."""
    found = []
    for row in rows:
        seconds = samples / (row.after_samples_per_second or 1.0)
        price = None if row.dollars_per_hour is None else seconds / SECONDS_PER_HOUR * row.dollars_per_hour
        found.append((price is None, price or seconds, row.label, seconds, price))
    for _, _, label, seconds, price in sorted(found)[:MOST_TOLD]:
        cost = "" if price is None else f" and costs ${price:,.2f}"
        yield f"{samples:,} samples: {_long(seconds)}{cost} on {label}"
    if len(found) > MOST_TOLD:
        yield f"and on {len(found) - MOST_TOLD} more machines"


def _long(seconds: float) -> str:
    """Hours, or days where they are many."""
    days = seconds / 86400.0
    return f"{days:,.1f} days" if days >= 3 else format_seconds(seconds)
