"""Ablation: which configs are compared with the winner, in what rounds, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Burst, Outcome, Point
from autotune.search.ablation import MAX_ROUNDS, ablate, ablation_rows, reverted
from tests.factories import make_measurement

BASELINE = Point(config=TrainConfig(batch_size=64))


def winner(**knobs: object) -> Point:
    """The baseline with some knobs changed."""
    return Point(config=BASELINE.config.replace(**knobs))


def test_each_changed_knob_is_reverted_alone_in_the_guides_order() -> None:
    """Whatever has not changed is left out."""
    best = winner(allocator="tuned", precision="bf16", memory_format="channels_last")
    found = reverted(best, BASELINE)
    assert list(found) == ["precision", "memory_format", "allocator"]
    assert found["precision"].config == best.config.replace(precision="fp32")


def test_the_effective_batch_stays() -> None:
    """The accumulation goes with the batch size."""
    best = winner(batch_size=16, accumulation_steps=4)
    assert reverted(best, BASELINE) == {"batch_size": BASELINE}


def test_what_has_no_effect_is_left_out() -> None:
    """A prefetch factor of 2 is torch's own; without workers nothing persists."""
    assert list(reverted(winner(num_workers=2, persistent_workers=True), BASELINE)) == [
        "num_workers",
        "persistent_workers",
    ]


def test_arguments_of_build_are_reverted_too() -> None:
    """To the baseline's value, or to build's own."""
    best = Point(config=BASELINE.config, parameters={"width": 32, "depth": 2})
    before = Point(config=BASELINE.config, parameters={"width": 64})
    assert {name: dict(point.parameters) for name, point in reverted(best, before).items()} == {
        "depth": {"width": 32},
        "width": {"width": 64, "depth": 2},
    }


class Machine:
    """Runs bursts of known rates, for so many bursts."""

    def __init__(self, rates: dict[Point, float | None], bursts: int = 1000) -> None:
        self.rates = rates
        self.left = bursts
        self.ran: list[tuple[int, Point]] = []

    def play(self, points: Sequence[Point], number: int) -> list[Burst]:
        """A round."""
        return [self._run(point, number) for point in points]

    def _run(self, point: Point, number: int) -> Burst:
        """A burst; without a rate it crashes."""
        self.left -= 1
        self.ran.append((number, point))
        rate = self.rates[point]
        if rate is None:
            return Burst(point=point, outcome=Outcome.CRASHED, reason="it broke", seconds=1.0)
        measured = make_measurement(rate, seed=len(self.ran))
        return Burst(point=point, outcome=Outcome.OK, measurement=measured, seconds=1.0)

    def affords(self, points: Sequence[Point], rounds: int) -> bool:
        """Whether so many bursts are left."""
        return rounds * len(points) <= self.left


def test_the_worth_of_each_knob_is_found() -> None:
    """The winner's rate over its rate without that change."""
    best = winner(precision="bf16", allocator="tuned")
    variants = reverted(best, BASELINE)
    machine = Machine({best: 2000.0, variants["precision"]: 1250.0, variants["allocator"]: 2000.0})
    rounds = ablate(best, list(variants.values()), machine.play, affords=machine.affords)
    precision, allocator = ablation_rows(best, BASELINE, variants, rounds)
    assert (precision.knob, precision.before, precision.after) == ("precision", "fp32", "bf16")
    assert precision.ratio == pytest.approx(1.6, rel=0.02)
    assert allocator.ci95.low <= 1 <= allocator.ci95.high


def test_rounds_are_interleaved() -> None:
    """Each holds the winner and all variants once."""
    best = winner(precision="bf16", allocator="tuned")
    variants = list(reverted(best, BASELINE).values())
    machine = Machine(dict.fromkeys([best, *variants], 1000.0))
    ablate(best, variants, machine.play, affords=machine.affords)
    assert {number for number, _ in machine.ran} == set(range(MAX_ROUNDS))
    for number in range(MAX_ROUNDS):
        assert sorted(map(repr, (p for n, p in machine.ran if n == number))) == sorted(map(repr, [best, *variants]))


def test_a_single_round_is_not_begun() -> None:
    """One has no spread to judge by, and would be lost."""
    best = winner(precision="bf16")
    variants = reverted(best, BASELINE)
    machine = Machine({best: 1000.0, variants["precision"]: 800.0}, bursts=3)
    assert ablate(best, list(variants.values()), machine.play, affords=machine.affords) == []
    assert not machine.ran


def test_a_variant_that_fails_drops_out() -> None:
    """The others are told."""
    best = winner(precision="bf16", allocator="tuned")
    variants = reverted(best, BASELINE)
    machine = Machine({best: 1000.0, variants["precision"]: None, variants["allocator"]: 900.0})
    rounds = ablate(best, list(variants.values()), machine.play, affords=machine.affords)
    assert [row.knob for row in ablation_rows(best, BASELINE, variants, rounds)] == ["allocator"]
