"""The distributions that a sampler draws from, in Optuna's terms, and whether a study begun elsewhere accepts them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    IntDistribution,
    check_distribution_compatibility,
)

from autotune.knobs import KNOBS, Scalar, Space

PARAMETER_PREFIX = "build."


def make_distributions(space: Space) -> dict[str, BaseDistribution]:
    """Integer scales for ordered knobs, categories for the rest; both include the baseline's values."""
    distributions: dict[str, BaseDistribution] = {}
    for knob, choices in space.choices.items():
        values = list(choices.values)
        own = getattr(space.baseline, knob)
        numbers = whole_numbers([*values, own])
        scale = KNOBS[knob].scale
        if scale is not None and None not in values:
            distributions[knob] = IntDistribution(min(numbers), max(numbers), log=scale == "logarithmic")
        else:
            distributions[knob] = CategoricalDistribution(values if own in values else [*values, own])
    for name, arguments in space.parameters.items():
        distributions[PARAMETER_PREFIX + name] = CategoricalDistribution(arguments)
    return distributions


def nearest(value: int, choices: Sequence[Scalar], *, logarithmic: bool) -> Scalar:
    """The choice nearest to a number: by ratio on a logarithmic scale, where 0 counts as 0.5, else by difference."""

    def scaled(number: int) -> float:
        return math.log(max(number, 0.5)) if logarithmic else number

    return min(whole_numbers(choices), key=lambda choice: abs(scaled(choice) - scaled(value)))


def whole_numbers(values: Iterable[Scalar]) -> list[int]:
    """Those of some values that are whole numbers; true and false are none."""
    return [value for value in values if isinstance(value, int) and not isinstance(value, bool)]


def holds(distribution: BaseDistribution, value: Any) -> bool:
    """Whether a value may be drawn."""
    if isinstance(distribution, IntDistribution):
        return isinstance(value, int) and distribution.low <= value <= distribution.high
    return isinstance(distribution, CategoricalDistribution) and value in distribution.choices


def differing(theirs: Mapping[str, BaseDistribution], ours: Mapping[str, BaseDistribution]) -> list[str]:
    """The names whose distributions a study with `theirs` would not accept: it keeps its first categories.

    A longer budget, or more free memory, offers others.
    """
    return [name for name in ours if name in theirs and not _alike(theirs[name], ours[name])]


def _alike(theirs: BaseDistribution, ours: BaseDistribution) -> bool:
    try:
        check_distribution_compatibility(theirs, ours)
    except ValueError:
        return False
    return True
