"""What a result says, wherever it is said: the rows and sentences that the terminal and the report share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.knobs.config import TrainConfig
from autotune.measuring.growth import Growth, Held, SideName
from autotune.measuring.records import Outcome
from autotune.measuring.speedup import Speedup
from autotune.measuring.statistics import Interval
from autotune.results.result import (
    Diagnosis,
    PeakShare,
    Result,
    Scaling,
    ScalingStep,
    ScriptRecord,
    Side,
    SourceRecord,
    TrialRecord,
)
from autotune.results.summary import (
    bottleneck_text,
    changes,
    duet_text,
    figures,
    growth_texts,
    how_to_search_longer,
    knob_text,
    peak_texts,
    proof_texts,
    ratios,
    remarks,
    scaling_text,
    unfinished,
    verdict,
    what_next,
)
from tests.factories import make_measurement, make_result
from tests.report.samples import beside_other_load, trial


def test_an_interval_names_the_row_that_it_belongs_to() -> None:
    """So that a reader of one row knows of what it is."""
    rows = [(row.label, row.parent) for row in figures(make_result(samples=50_000))]
    assert rows[:4] == [
        ("rate", ""),
        ("95 % interval", "rate"),
        ("epoch of 50,000", ""),
        ("95 % interval", "epoch of 50,000"),
    ]


def watched_result(**changes: Any) -> Result:
    """A result whose proof has seen shares of the machine's peaks, and growth."""
    return make_result(diagnosis=make_result().diagnosis.model_copy(update=changes))


def test_each_part_whose_peak_is_known_has_a_sentence() -> None:
    """With its share before and after, and what a low or a high one usually means."""
    shares = [
        PeakShare(side="baseline", part="compute", reached=1.84e10, peak=1.84e11, precision="fp32"),
        PeakShare(side="best", part="compute", reached=2.76e10, peak=1.84e11, precision="bf16"),
        PeakShare(side="best", part="memory", reached=1e9, peak=2e9),
        PeakShare(side="best", part="loading", reached=950.0, peak=1000.0),
    ]
    assert peak_texts(watched_result(peak_shares=shares)) == [
        "computing reaches 15 % of the 184 GFLOP/s of bf16 matrix products (before: 10 %): usual where operators are "
        "small, memory is the limit, or training waits",
        "weights, gradients and optimizer need 50 % of the 1.86 GiB/s that memory copies",
        "training takes 95 % of the 1,000 samples/s that the loader alone reaches: loading is the limit",
    ]
    assert peak_texts(make_result()) == []


def test_growth_is_told_with_when_it_ends() -> None:
    """A second, an epoch, a day, and when there is none left; whether tuning is to blame; what an epoch may end."""

    def growth(side: SideName, what: Held, slope: float, **fields: Any) -> Growth:
        ends = {"ci95": Interval(0.9 * slope, 1.1 * slope), "epoch_seconds": 60.0, "within_epoch": False}
        return Growth(side=side, what=what, per_second=slope, **{**ends, **fields})

    growing = (
        growth("best", "open files", 10.0, free=900.0),
        growth("baseline", "open files", 10.0, free=900.0),
        growth("best", "host memory", 2.0**20, free=2.0**33, epoch_seconds=None, within_epoch=True),
        growth("best", "GPU clock", 0.5),
        growth("baseline", "GPU memory", 2.0**20, epoch_seconds=None),
    )
    assert growth_texts(watched_result(growth=growing)) == [
        "the number of open files grows by 10 a second (95 % interval 9 – 11), as before tuning: 600 an epoch, "
        "864,000 a day; if it goes on, none is left after 1 m 30 s",
        "host memory grows by 1.00 MiB a second (95 % interval 922 KiB – 1.10 MiB), seen only after tuning: "
        "84.4 GiB a day; if it goes on, none is left after 2 h 16 m; what is kept of each sample stops with the first "
        "epoch",
        "the GPU's clock falls by 30 MHz a minute while it trains: a long training is slower than what was timed",
        "the GPU's memory fills up by 1.00 MiB a second (95 % interval 922 KiB – 1.10 MiB), seen only before tuning: "
        "84.4 GiB a day",
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


def test_a_change_whose_interval_includes_1_shows_no_figure() -> None:
    """It would look like a gain."""
    row = make_result().ablation[0].model_copy(update={"ratio": 1.057, "ci95": Interval(0.967, 1.16)})
    worth = {change.knob: change.worth for change in changes(make_result(ablation=(row,)))}
    assert worth["precision"] == "unclear (0.967 – 1.16)"


@pytest.mark.parametrize(
    ("wait", "compute", "loader", "copy", "words"),
    [
        (0.02, 1050.0, 4000.0, None, "compute (busy 95 % of the time)"),
        (0.18, 1350.0, 6600.0, None, "compute (busy 74 % of the time)"),  # without workers, parts take turns
        (0.3, 1800.0, 1050.0, None, "loader (busy 95 % of the time)"),
        (0.5, 2500.0, 4000.0, None, "loader (busy 50 % of the time)"),
        (0.02, 3000.0, 4000.0, 1050.0, "copy (busy 95 % of the time)"),
        (0.02, 3000.0, 4000.0, 9000.0, "overhead (neither computing nor waiting for data explains 65 % of the time)"),
        (0.0, 990.0, None, None, "compute (busy 100 % of the time)"),
        (0.6, None, None, None, "loader (busy 60 % of the time)"),
        (0.1, None, None, None, "not found"),
    ],
)
def test_the_bottleneck_is_what_is_busy_longest(
    wait: float, compute: float | None, loader: float | None, copy: float | None, words: str
) -> None:
    """At 1,000 samples/s, by what each part reaches alone: the name never contradicts the figures."""
    ceilings = {"compute": compute, "loader": loader, "copy": copy}
    side = Side(config=TrainConfig(), measurement=make_measurement(1000, spread=0))
    assert (
        bottleneck_text(make_result(best=side, diagnosis=Diagnosis(ceilings=ceilings, data_wait_fraction=wait)))
        == words
    )


def test_without_a_measurement_there_is_no_bottleneck() -> None:
    """Rather than a guess."""
    nothing = make_result(best=Side(config=TrainConfig(), measurement=None))
    assert bottleneck_text(nothing) == "not found"


@pytest.mark.parametrize(("low", "confirmed"), [(1.04, True), (1.01, False), (0.99, False)])
def test_a_gain_is_confirmed_when_1_is_well_below_the_interval(low: float, confirmed: bool) -> None:
    """Else the words say no."""
    found = verdict(make_result(speedup=Speedup(ratio=1.1, ci95=Interval(low, 1.2), pairs=3)))
    assert found.confirmed is confirmed
    assert found.words == ("confirmed speed-up" if confirmed else "no confirmed speed-up")


def test_a_gain_is_named_by_the_objective() -> None:
    """Less energy is no speed-up."""
    constraints = make_result().constraints.model_copy(update={"objective": "samples_per_joule"})
    found = [verdict(make_result(constraints=constraints, **change)).words for change in ({}, {"speedup": None})]
    assert found == ["confirmed gain in samples per joule", "no confirmed gain in samples per joule"]


@pytest.mark.parametrize(
    ("interval", "doubt"),
    [
        ((1.01, 1.2), "the interval comes close to 1, so there may be no gain"),
        ((0.9, 1.2), "the interval includes 1, so there may be no gain"),
        ((0.8, 0.9), "it is slower"),
    ],
)
def test_what_is_not_confirmed_is_in_doubt_or_slower(interval: tuple[float, float], doubt: str) -> None:
    """By where the interval lies."""
    speedup = Speedup(ratio=sum(interval) / 2, ci95=Interval(*interval), pairs=3)
    assert verdict(make_result(speedup=speedup)).reason.endswith(f"; {doubt}")


def test_a_small_share_of_an_epoch_is_not_none() -> None:
    """Rounded, it would be 0 %."""
    speedup = Speedup(ratio=1.5, ci95=Interval(1.4, 1.6), pairs=3, epochs=0.001)
    assert proof_texts(make_result(speedup=speedup)) == [
        "the rounds cover less than 1 % of an epoch, from places all over it"
    ]


def test_ranks_that_failed_are_told_with_their_end() -> None:
    """They were measured, and did not train."""
    steps = [(1, Outcome.OK, 1.0), (2, Outcome.OK, 1.9), (4, Outcome.OOM, None)]
    scaling = Scaling(
        steps=tuple(ScalingStep(ranks=n, outcome=end, ratio=None, speed=speed) for n, end, speed in steps)
    )
    best = Side(config=TrainConfig(ranks=4), measurement=None)
    assert str(scaling_text(make_result(best=best, scaling=scaling))).endswith("; 4 ended as oom")


@pytest.mark.parametrize(("partner", "over"), [({}, "the baseline"), ({"precision": "bf16"}, "the best so far")])
def test_a_duet_is_told_with_its_interval_and_partner(partner: dict[str, Any], over: str) -> None:
    """In few words."""
    assert (
        duet_text(trial(partner=partner, ratio=1.12, ci95=Interval(1.08, 1.16))) == f"1.12× (1.080 – 1.16) over {over}"
    )


def test_an_error_that_several_configs_share_is_told() -> None:
    """It is likely the data's, and not one of theirs: the number of crashes alone does not show that."""

    def crashed(failure: str, **changes: Any) -> TrialRecord:
        return trial(outcome=Outcome.CRASHED, failure=failure, changes=changes)

    alone = crashed("RuntimeError: no such kernel", precision="bf16")
    broken = [crashed("ValueError: broken file", num_workers=count) for count in (1, 2, 2)]
    assert remarks(make_result(trials=(alone, alone, *broken))) == [
        "2 configs crashed alike: ValueError: broken file; if your own code raises this, fix it and tune again"
    ]
    baseline = crashed("ValueError: broken file")
    told = "3 configs crashed alike, the baseline among them: ValueError: broken file; "
    assert remarks(make_result(trials=(*broken, baseline)))[0].startswith(told)
    assert remarks(make_result(trials=(alone, alone))) == []


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
    found = verdict(beside_other_load(foreign))
    assert found.confirmed
    assert ("measured while other load took 46 % of the CPUs: the gain may be larger" in found.reason) is told


NO_MEMORY = {"baseline": Side(config=TrainConfig(), measurement=None), "speedup": None}
IN_DOUBT = Speedup(ratio=1.1, ci95=Interval(0.9, 1.3), pairs=3)


@pytest.mark.parametrize(
    ("changes", "trains", "sentences"),
    [
        ({}, True, []),
        (NO_MEMORY, True, []),
        ({"speedup": None, "stopped_by": "plateau"}, False, ["train as before: no gain is proven"]),
        ({"speedup": IN_DOUBT, "stopped_by": "plateau"}, False, ["train as before: no gain is proven"]),
    ],
)
def test_an_answer_is_to_be_trained_with_where_it_gains_or_trains_alone(
    changes: dict[str, Any], trains: bool, sentences: list[str]
) -> None:
    """The terminal and the report say the same."""
    code, told = what_next(make_result(**changes), Path("a.json"))
    assert (bool(code), told) == (trains, sentences)


def test_a_command_without_its_secret_says_so() -> None:
    """It cannot run as it stands."""
    source = SourceRecord(main="train.py", folder=".")
    script = ScriptRecord(command=("python", "train.py", "--token", "***"), loop={}, source=source)
    workload = make_result().workload.model_copy(update={"script": script})
    code, sentences = what_next(make_result(workload=workload), Path("a.json"))
    assert ("***" in code, sentences) == (True, ["replace *** with your secret"])


def test_only_a_command_has_a_place_before_its_dashes() -> None:
    """A model's options have none."""
    source = SourceRecord(main="train.py", folder=".")
    script = ScriptRecord(command=("python", "train.py"), loop={}, source=source)
    workload = make_result().workload.model_copy(update={"script": script})
    assert "with --budget 1200s, and with" in how_to_search_longer(make_result())
    assert "with --budget 1200s (before --), and with" in how_to_search_longer(make_result(workload=workload))


def test_only_a_partial_result_is_unfinished() -> None:
    """And says why."""
    assert unfinished(make_result()) is None
    assert unfinished(make_result(status="partial", stopped_by="interrupted")) == (
        "tuning was interrupted; this is what was known by then"
    )


def test_ratios_show_the_digits_that_decide() -> None:
    """One more beside 1."""
    assert ratios(Interval(0.9914, 1.526)) == "0.991 – 1.53"


def test_one_block_has_no_interval() -> None:
    """A spread of one value is not shown as a narrow one."""
    side = Side(config=TrainConfig(), measurement=make_measurement(1000, blocks=1))
    interval = next(row for row in figures(make_result(baseline=side)) if row.label == "95 % interval")
    assert interval.before == "none"
