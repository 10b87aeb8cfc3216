"""What a person sees of several machines, and of another machine's config measured here."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Outcome
from autotune.measuring.telemetry_summary import TelemetrySummary
from autotune.results.result import Side
from autotune.terminal.comparison import comparison_table, cross_lines, remarks
from tests.crosses import compared, make_cross, on_gpu
from tests.factories import make_measurement, make_result

HOSTILE = "[bold]x[/bold] [/] \x1b[2J :smile:"


def shown(renderable: Any, *, width: int = 100, words_only: bool = True) -> str:
    """What is printed at a width; words apart by single spaces unless the layout is looked at."""
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(renderable)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return " ".join(text.split()) if words_only else text


def test_comparison_shows_each_machine_with_its_spread() -> None:
    """Rates and speed-ups keep their intervals; what was not confirmed says so, and so does a partial result."""
    best = Side(config=TrainConfig(batch_size=32), measurement=make_measurement(1500, seed=2))
    words = shown(comparison_table(compared(on_gpu(best=best), make_result(speedup=None, status="partial"))))
    assert "digits (train:build), samples/s" in words
    assert "1,500 1.50× 3.00 GiB" in words
    assert "1,490 – 1,510 1.47 – 1.53 device" in words
    assert "batch_size 64 → 32" in words
    assert "not" in words.split("Gold 6338")[1]
    assert "partial" in words


def test_comparison_shows_what_is_shared_and_what_is_particular() -> None:
    """Every machine's value of a knob in which they differ."""
    best = [TrainConfig(batch_size=64, precision="bf16", num_workers=workers) for workers in (8, 2)]
    sides = [Side(config=config, measurement=make_measurement(2000 - n)) for n, config in enumerate(best)]
    words = shown(comparison_table(compared(on_gpu(best=sides[0]), make_result(best=sides[1]))), width=140)
    assert "shared by both machines: precision=bf16, prefetch_factor=2" in words
    assert "num_workers: 8 on NVIDIA GeForce RTX 4070, 2 CPUs; 2 on Intel(R) Xeon(R) Gold 6338, 2 CPUs" in words


def test_one_machine_alone_shares_and_loses_nothing() -> None:
    """No empty headings."""
    words = shown(comparison_table(compared(make_result())))
    assert "shared" not in words
    assert "particular" not in words
    assert "another machine" not in words


def test_samples_per_joule_have_a_column_where_a_machine_tells_them() -> None:
    """And none where no machine does."""
    telemetry = TelemetrySummary(seconds=4.0, energy_joules=800.0)
    best = Side(config=TrainConfig(), measurement=make_measurement(1000, spread=0, telemetry=telemetry))
    assert "per joule" in shown(comparison_table(compared(on_gpu(best=best), make_result())))
    assert "per joule" not in shown(comparison_table(compared(on_gpu(), make_result())))


def test_comparison_shows_what_a_machine_loses_with_anothers_config() -> None:
    """And what is to be doubted about it."""
    comparison = compared(on_gpu(), make_result(), crosses=[make_cross(notes=("own.json is partial",))])
    words = shown(comparison_table(comparison), width=200)
    assert (
        "Xeon(R) Gold 6338, 2 CPUs loses 17 % (13 – 21 %) with the config of NVIDIA GeForce RTX 4070, 2 CPUs: " in words
    )
    assert "warning: own.json is partial" in words


def test_comparison_shows_warnings_and_problems() -> None:
    """What makes rows incomparable, and what was left out, stands below the tables."""
    results = [make_result(), make_result(fingerprint="ffff")]
    text = shown(comparison_table(compared(*results, problems=["x.json is broken"])), width=200)
    assert "warning: train:build stands for 2 workloads (fingerprints a1b2c3, ffff)" in text
    assert "left out: x.json is broken" in text


def test_remarks_stand_alone_beside_a_format_that_has_none() -> None:
    """As CSV is; where all is well there are none."""
    assert shown(remarks(compared(make_result(), problems=["x.json is broken"]))) == "left out: x.json is broken"
    assert shown(remarks(compared(make_result()))) == ""


def test_comparison_of_nothing_says_so() -> None:
    """An empty folder gives a sentence, not an empty screen."""
    assert "no results to compare" in shown(comparison_table(compared()))


def test_comparison_fits_a_terminal_of_80_columns() -> None:
    """Cells wrap, and neither a knob nor a figure is cut off."""
    telemetry = TelemetrySummary(seconds=4.0, energy_joules=800.0)
    config = TrainConfig(compile_mode="max-autotune-no-cudagraphs")
    fast = Side(config=config, measurement=make_measurement(1_234_567, telemetry=telemetry))
    comparison = compared(on_gpu(best=fast), make_result(), crosses=[make_cross()])
    text = shown(comparison_table(comparison), width=80, words_only=False)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "1,230,000" in text
    assert "max-autotune-no-cudagraphs" in text


@pytest.mark.parametrize("field", ["name", "target"])
def test_names_of_users_are_neither_markup_nor_control_characters(field: str) -> None:
    """A workload named in markup is shown as it is written, and cannot steer the terminal."""
    result = make_result(**{field: HOSTILE})
    cross = make_cross(on_gpu(**{field: HOSTILE}))
    for text in (shown(comparison_table(compared(result)), width=300), shown(cross_lines(cross), width=300)):
        assert r"[bold]x[/bold] [/] \x1b[2J :smile:" in text
        assert "\x1b" not in text


def test_cross_shows_the_three_configs_and_the_ratio() -> None:
    """The other machine's, this one's and the baseline, with the knobs in which they differ."""
    words = shown(cross_lines(make_cross()), width=200)
    assert "here it reaches 0.830× (0.790 – 0.870) of this machine's own config: it loses 17 % (13 – 21 %)" in words
    assert "over the baseline it is 1.20× (1.10 – 1.30)" in words
    assert "batch_size=32, accumulation_steps=2, precision=bf16, num_workers=2" in words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"outcome": Outcome.OOM, "failure": "it ended as oom: too large"}, "cannot train here: it ended as oom"),
        ({"own": None, "over_own": None, "over_own_reason": "none yet"}, "this machine's own config: none yet"),
        ({"over_baseline": None, "over_baseline_reason": "it is the baseline"}, "the baseline: it is the baseline"),
        ({"notes": ("the workload differs",)}, "warning: the workload differs"),
    ],
)
def test_cross_says_what_could_not_be_compared(changes: dict[str, Any], words: str) -> None:
    """With the reason."""
    assert words in shown(cross_lines(make_cross(**changes)), width=200)


def test_cross_says_that_both_machines_have_one_config() -> None:
    """Nothing is lost, and nothing was measured twice."""
    cross = make_cross(own=make_result(best=on_gpu().best), over_own=None)
    assert "this machine's own config is the same" in shown(cross_lines(cross))


def test_cross_fits_a_terminal_of_80_columns() -> None:
    """Cells wrap."""
    text = shown(cross_lines(make_cross()), width=80, words_only=False)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
