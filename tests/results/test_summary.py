"""What a result says, wherever it is said: the rows and sentences that the terminal and the report share."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.knobs.config import TrainConfig
from autotune.measuring.speedup import Speedup
from autotune.measuring.statistics import Interval
from autotune.results.result import Side
from autotune.results.summary import changes, figures, knob_text, ratios, unfinished, verdict
from tests.factories import make_measurement, make_result


def test_an_interval_names_the_row_that_it_belongs_to() -> None:
    """So that a reader of one row knows of what it is."""
    rows = [(row.label, row.of) for row in figures(make_result(samples=50_000))]
    assert rows[:4] == [
        ("rate", ""),
        ("95 % interval", "rate"),
        ("epoch of 50,000", ""),
        ("95 % interval", "epoch of 50,000"),
    ]


@pytest.mark.parametrize(
    ("knob", "value", "words"),
    [
        ("compile_mode", None, "none"),
        ("pin_memory", True, "true"),
        ("max_len", None, "build's own"),
        ("max_len", [1, 2], "[1, 2]"),
    ],
)
def test_values_are_worded_as_they_are_typed(knob: str, value: Any, words: str) -> None:
    """None is a value of a knob, and the default of an argument."""
    assert knob_text(knob, value) == words


def test_changes_have_their_worth_where_it_is_known() -> None:
    """From the ablation, with its interval."""
    found = {change.knob: change.worth for change in changes(make_result())}
    assert found["precision"] == "1.31× (1.27 – 1.35)"
    assert found["num_workers"] == ""


@pytest.mark.parametrize(("low", "confirmed"), [(1.001, True), (1.0, False), (0.99, False)])
def test_a_gain_is_confirmed_when_the_whole_interval_is_above_1(low: float, confirmed: bool) -> None:
    """Else the words say no."""
    found = verdict(make_result(speedup=Speedup(ratio=1.1, ci95=Interval(low, 1.2), pairs=3)))
    assert found.confirmed is confirmed
    assert found.words == ("confirmed speed-up" if confirmed else "no confirmed speed-up")


def test_without_pairs_the_reason_is_told() -> None:
    """The file's own, or that there were none."""
    assert verdict(make_result(speedup=None, speedup_reason="too short")).reason == "too short"
    assert verdict(make_result(speedup=None)).reason == "it was not measured in pairs"


def test_only_a_partial_result_is_unfinished() -> None:
    """And says why."""
    assert unfinished(make_result()) is None
    assert unfinished(make_result(status="partial", stopped_by="interrupted")) == (
        "tuning was interrupted; what follows was known by then"
    )


def test_ratios_show_the_digits_that_decide() -> None:
    """One more beside 1."""
    assert ratios(Interval(0.9914, 1.526)) == "0.991 – 1.53"


def test_one_block_has_no_interval() -> None:
    """A spread of one value is not shown as a narrow one."""
    side = Side(config=TrainConfig(), measurement=make_measurement(1000, blocks=1))
    interval = next(row for row in figures(make_result(baseline=side)) if row.label == "95 % interval")
    assert interval.before == "none"
