"""The picture of the proof: pairs of blocks, the rounds that they belong to, and the ratio with its interval."""

from __future__ import annotations

import re
from typing import Any

import pytest

from autotune.measuring.records import Block, Measurement
from autotune.measuring.speedup import Speedup
from autotune.measuring.statistics import Interval
from autotune.report import pairs
from autotune.report.blocks import Picture, Table, Text
from autotune.report.pairs import confirmation, rounds_of
from autotune.results.result import Result
from tests.factories import make_measurement
from tests.report.samples import full_result


def measured(seconds: list[float]) -> Measurement:
    """Blocks of 100 samples that took so long."""
    blocks = tuple(Block(samples=100, seconds=one, data_wait_seconds=0.0) for one in seconds)
    return make_measurement().model_copy(update={"blocks": blocks})


def result_of(before: list[float], after: list[float], blocks: tuple[int, ...], **changes: Any) -> Result:
    """A result whose sides took so long for each block; the ratio is said to be 2."""
    whole = full_result()
    speedup = Speedup(ratio=2.0, ci95=changes.pop("ci95", Interval(1.9, 2.1)), pairs=len(blocks), blocks=blocks)
    return full_result(
        baseline=whole.baseline.model_copy(update={"measurement": measured(before)}),
        best=whole.best.model_copy(update={"measurement": measured(after)}),
        speedup=speedup,
        **changes,
    )


PROVEN = result_of([2.0, 2.0, 4.0, 2.0, 2.0, 2.0], [1.0, 1.0, 2.0, 1.0, 1.0, 4.0], (3, 2, 1))


def table_of(result: Result) -> Table:
    """The rounds in figures."""
    pair = confirmation(result)[-1]
    assert isinstance(pair[1], Table)
    return pair[1]


def picture_of(result: Result) -> Picture:
    """The picture."""
    pair = confirmation(result)[-1]
    assert isinstance(pair[0], Picture)
    return pair[0]


def words_of(result: Result) -> list[str]:
    """What is written in the picture."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", picture_of(result).svg)


def test_blocks_are_paired_in_their_order_within_each_round() -> None:
    """The borders are those that the speed-up tells."""
    rounds = rounds_of(PROVEN)
    assert [len(one.pairs) for one in rounds] == [3, 2, 1]
    assert [pair.ratio for one in rounds for pair in one.pairs] == pytest.approx([2, 2, 2, 2, 2, 0.5])


def test_rounds_lie_one_after_the_other() -> None:
    """Within the picture."""
    rounds = rounds_of(PROVEN)
    across = [pair.across for one in rounds for pair in one.pairs]
    assert across == sorted(across)
    assert 0 < across[0] < across[-1] < 1


def test_a_round_has_all_its_samples_over_all_its_seconds() -> None:
    """As the speed-up is made: 300 in 8 s, and 300 in 4 s."""
    assert table_of(PROVEN).rows[0] == ("1", "3", "37.5", "75", "2.00×")


def test_epoch_boundaries_are_in_the_rates() -> None:
    """A share of them belongs to each block."""
    result = PROVEN.model_copy(deep=True)
    before = measured([2.0] * 6).model_copy(update={"epoch_samples": 100, "epoch_boundary_seconds": 2.0})
    slow = result.model_copy(update={"baseline": result.baseline.model_copy(update={"measurement": before})})
    assert rounds_of(slow)[0].before == pytest.approx(25.0)


def test_the_finding_is_said_in_words() -> None:
    """To those who cannot see the picture, and above it."""
    finding = "The tuned side was ahead in 5 of 6 pairs of blocks; over all 2.00× (95 % interval 1.90 – 2.10, 3 "
    assert picture_of(PROVEN).finding.startswith(finding)
    assert Text(picture_of(PROVEN).finding) in confirmation(PROVEN)


def test_the_picture_names_its_rounds_and_ratios() -> None:
    """Rates above, ratios below, rounds at the bottom."""
    words = words_of(PROVEN)
    assert {"1", "2", "3", "round", "100", "2×"} <= {*words}


def test_one_pair_far_out_does_not_set_the_scale() -> None:
    """It is drawn at the edge, and the legend says what that means."""
    struck = result_of([2.0] * 60, [1.0, 1.1] * 29 + [1.0, 40.0], (20, 20, 20))
    even = result_of([2.0] * 60, [1.0, 1.1] * 30, (20, 20, 20))
    assert words_of(struck) == words_of(even)
    assert picture_of(struck).legend.endswith("; triangle: beyond the scale")
    assert "triangle" not in picture_of(even).legend


def test_an_interval_of_any_width_can_be_drawn() -> None:
    """It is cut off at the picture's edge."""
    assert "<svg" in picture_of(result_of([2.0] * 3, [1.0] * 3, (1, 1, 1), ci95=Interval(1e-9, 1e9))).svg


def test_many_pairs_and_rounds_stay_light() -> None:
    """Every n-th is drawn, and named."""
    count = 40 * 50
    many = result_of([2.0] * count, [1.0] * count, (50,) * 40)
    assert picture_of(many).svg.count("<use") < 3 * pairs.MOST_PAIRS + 200
    assert words_of(many).count("round") == 1
    assert len([word for word in words_of(many) if word.isdigit() and int(word) <= 40]) <= pairs.MOST_ROUNDS_NAMED + 4


def test_a_rate_beyond_any_machines_has_no_picture() -> None:
    """A broken file may hold anything."""
    assert confirmation(result_of([2.0] * 3, [1e-9, 1.0, 1.0], (1, 1, 1))) != []
    fast = make_measurement().model_copy(update={"blocks": (Block(samples=2**53, seconds=1e-9, data_wait_seconds=0),)})
    whole = result_of([2.0], [1.0], (1,))
    assert confirmation(whole.model_copy(update={"best": whole.best.model_copy(update={"measurement": fast})})) == []
