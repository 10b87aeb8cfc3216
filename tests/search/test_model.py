"""The model of effects: what it makes of noisy pairs, and of what is believed before."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from autotune.knobs import Choices
from autotune.knobs.config import TrainConfig
from autotune.measuring.pairs import Pair
from autotune.measuring.records import Point
from autotune.measuring.statistics import Interval
from autotune.search.choice import expected_gain
from autotune.search.model import Design, Effects
from tests.search.surface import make_space

BASELINE = Point(config=TrainConfig(batch_size=64))
NOISE = 0.03
LEVELS = {
    "precision": ("fp32", "bf16"), "memory_format": ("contiguous", "channels_last"), "num_workers": (0, 1, 2),
    "num_threads": (None, 1), "optimizer_impl": ("default", "fused"),
}  # fmt: skip


def truth(config: TrainConfig) -> float:
    """Effects, and one of two settings together."""
    both = config.precision == "bf16" and config.memory_format == "channels_last"
    return (
        0.3 * (config.precision == "bf16") + 0.05 * (config.memory_format == "channels_last") + 0.15 * both
        - 0.2 * (config.num_threads == 1) + 0.1 * config.num_workers
    )  # fmt: skip


def pairs(count: int) -> list[tuple[Point, Pair]]:
    """Random points beside the baseline."""
    rng, found = random.Random(0), []
    for _ in range(count):
        values = {knob: rng.choice(levels) for knob, levels in LEVELS.items()}
        point = Point(config=make_space().changed(BASELINE.config, values))  # type: ignore[arg-type]
        gain = truth(point.config) + rng.gauss(0, NOISE)
        ends = Interval(math.exp(gain - 3 * NOISE), math.exp(gain + 3 * NOISE))
        found.append((point, Pair(partner=BASELINE, ratio=math.exp(gain), ci95=ends, blocks=9)))
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bf16"},
        {"precision": "bf16", "memory_format": "channels_last"},
        {"num_workers": 2, "num_threads": 1},
        {"optimizer_impl": "fused"},
    ],
)
def test_effects_and_interactions_are_recovered(changes: dict[str, str | int]) -> None:
    """From two dozen noisy pairs of settings all mixed, within the doubt that the model itself has."""
    effects = Effects(Design(make_space()), pairs(24))
    point = Point(config=make_space().changed(BASELINE.config, changes))
    beliefs = effects.beside([point], BASELINE)
    assert abs(beliefs.mean[0] - truth(point.config)) < 3 * beliefs.deviation[0]
    assert beliefs.deviation[0] < 0.08


def test_worths_are_the_products_of_rows_and_effects() -> None:
    """Those of settings that meet among them."""
    design, points = Design(make_space()), [point for point, _ in pairs(24)]
    effects = np.random.default_rng(0).normal(size=len(design.mean))
    assert design.worth(effects)(points) == pytest.approx(design.rows(points) @ effects)


def test_what_the_knobs_prefer_is_expected_to_gain() -> None:
    """Before anything has played."""
    space = make_space()
    point = Point(config=space.suggested()[0])
    assert Effects(Design(space), []).beside([point], BASELINE).mean[0] > 0.1


def test_neighbours_on_a_scale_share_what_is_known() -> None:
    """Two workers that lose say something of more."""
    space, two = make_space(), Point(config=make_space().changed(BASELINE.config, {"num_workers": 2}))
    four = Point(config=space.changed(BASELINE.config, {"num_workers": 4}))
    lost = Pair(partner=BASELINE, ratio=0.5, ci95=Interval(0.49, 0.51), blocks=20)
    before, after = (Effects(Design(space), seen).beside([four], BASELINE) for seen in ([], [(two, lost)]))
    assert after.mean[0] < before.mean[0] - 0.2


def test_a_default_is_a_level_of_its_own() -> None:
    """On a logarithmic scale 1 lies at 0: torch's own bucket is another one."""
    space = make_space()
    choices = {"ddp_bucket_cap_mb": Choices((None, 1), "")}
    smaller = Point(config=BASELINE.config.replace(ddp_bucket_cap_mb=1))
    assert Effects(Design(replace(space, choices=choices)), []).beside([smaller], BASELINE).deviation[0] > 0.01


def test_expected_gain_rewards_doubt() -> None:
    """Of two that are expected to lose as much, the one that is known less may still gain."""
    assert expected_gain(-0.05, 0.1) > expected_gain(-0.05, 0.02) >= 0
    assert expected_gain(0.2, 0.001) == pytest.approx(0.2)
