"""What a result says, wherever it is said: the rows and sentences that the terminal and the report share."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.knobs.config import TrainConfig
from autotune.measuring.speedup import Speedup
from autotune.measuring.statistics import Interval
from autotune.measuring.telemetry_summary import TelemetrySummary
from autotune.results.result import Side
from autotune.results.summary import changes, duet_text, figures, knob_text, ratios, too_few_pairs, unfinished, verdict
from tests.factories import make_measurement, make_result
from tests.report.samples import trial


def test_an_interval_names_the_row_that_it_belongs_to() -> None:
    """So that a reader of one row knows of what it is."""
    rows = [(row.label, row.of) for row in figures(make_result(samples=50_000))]
    assert rows[:4] == [
        ("rate", ""),
        ("95 % interval", "rate"),
        ("epoch of 50,000", ""),
        ("95 % interval", "epoch of 50,000"),
    ]


def test_operations_are_told_as_a_share_of_the_fastest_product_measured() -> None:
    """One peak for both sides, so that their shares differ as their rates do; without a count there is no row."""

    def shares(flops_per_sample: float | None) -> list[tuple[str, str]]:
        rows = figures(make_result(flops_per_sample=flops_per_sample))
        return [(row.before, row.after) for row in rows if row.label == "of the peak FLOP/s"]

    assert shares(1.84e7) == [("10 % (18.36 GFLOP/s)", "15 % (27.61 GFLOP/s)")]
    assert shares(None) == []


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


@pytest.mark.parametrize(("low", "confirmed"), [(1.04, True), (1.01, False), (0.99, False)])
def test_a_gain_is_confirmed_when_1_is_well_below_the_interval(low: float, confirmed: bool) -> None:
    """Else the words say no."""
    found = verdict(make_result(speedup=Speedup(ratio=1.1, ci95=Interval(low, 1.2), pairs=3)))
    assert found.confirmed is confirmed
    assert found.words == ("confirmed speed-up" if confirmed else "no confirmed speed-up")


FEW = Speedup(ratio=1.4, ci95=Interval(1.2, 1.6), pairs=2)


def test_two_pairs_are_no_finding() -> None:
    """However narrow their interval is: it is not even shown."""
    found = verdict(make_result(speedup=FEW))
    assert not found.confirmed
    assert found.words == "no confirmed speed-up"
    assert found.reason == "1.40× (2 pairs: too few to tell)"


def test_what_a_change_was_worth_in_two_pairs_is_not_shown_as_a_finding() -> None:
    """Its ratio is shown, its interval is not."""
    row = make_result().ablation[0]
    for pairs, worth in ((2, "2 pairs: too few to tell"), (3, "1.27 – 1.35")):
        told = changes(make_result(ablation=(row.model_copy(update={"pairs": pairs}),)))
        assert {change.knob: change.worth for change in told}["precision"] == f"1.31× ({worth})"


@pytest.mark.parametrize(("pairs", "words"), [(0, "0 pairs"), (1, "1 pair"), (2, "2 pairs"), (3, None), (8, None)])
def test_fewer_than_three_pairs_are_too_few(pairs: int, words: str | None) -> None:
    """And the words say how many there were."""
    assert too_few_pairs(pairs) == (words and f"{words}: too few to tell")


@pytest.mark.parametrize(("partner", "over"), [({}, "the baseline"), ({"precision": "bf16"}, "the best so far")])
def test_a_duet_is_told_with_its_interval_and_partner(partner: dict[str, Any], over: str) -> None:
    """In few words."""
    assert (
        duet_text(trial(partner=partner, ratio=1.12, ci95=Interval(1.08, 1.16))) == f"1.12× (1.080 – 1.16) over {over}"
    )


def test_a_burst_alone_has_no_duet() -> None:
    """Nothing trained beside it."""
    assert duet_text(trial()) is None


def test_without_pairs_the_reason_is_told() -> None:
    """The file's own, or that there were none."""
    assert verdict(make_result(speedup=None, speedup_reason="too short")).reason == "too short"
    assert verdict(make_result(speedup=None)).reason == "it was not measured in pairs"


@pytest.mark.parametrize(("foreign", "told"), [(0.04, False), (0.46, True)])
def test_a_gain_beside_other_programs_is_told_as_that(foreign: float, told: bool) -> None:
    """Both sides suffer, but not alike: two threads beside a busy processor may train ten times slower, and one not."""
    beside = TelemetrySummary(seconds=10.0, foreign_cpu_fraction=foreign, idle_cpu_fraction=0.0)
    side = make_measurement(1500.0).model_copy(update={"telemetry": beside})
    found = verdict(make_result(best=Side(config=TrainConfig(), measurement=side)))
    assert found.confirmed
    assert ("beside others, who took 46 % of the CPUs: alone it may gain more or less" in found.reason) is told


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
