"""A comparison as Markdown and as CSV: readable, complete, and harmless whatever a file calls itself."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest

from autotune.knobs.config import KNOB_NAMES, TrainConfig
from autotune.measuring.speedup import Speedup
from autotune.measuring.statistics import Interval
from autotune.measuring.telemetry_summary import TelemetrySummary
from autotune.results.check import Check
from autotune.results.compare_formats import CSV_COLUMNS, check_markdown, to_csv, to_markdown
from autotune.results.result import Result, Side
from tests.crosses import compared, make_cross, on_gpu
from tests.factories import make_hardware, make_measurement, make_result

HOSTILE = "a|b <script>alert(1)</script> `c` [d](http://e) *f* _g_ \x1b[2J"


def rows_of(*results: Result) -> list[dict[str, str]]:
    """The CSV read back."""
    return list(csv.DictReader(io.StringIO(to_csv(compared(*results)))))


def cells(line: str) -> list[str]:
    """Cells of a line of a table, as GitHub splits it."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def table(text: str) -> list[list[str]]:
    """Cells of the lines of a document that belong to tables."""
    return [cells(line) for line in text.splitlines() if line.startswith("|")]


FEW = Speedup(ratio=1.5, ci95=Interval(1.4, 1.6), pairs=2)


# Markdown.


def test_markdown_has_a_table_for_each_workload() -> None:
    """Under a heading; each line with as many cells as the first."""
    text = to_markdown(compared(on_gpu(), make_result(), make_result(name="other", fingerprint="f2")))
    assert [line for line in text.splitlines() if line.startswith("## ")][:2] == ["## digits", "## other"]
    lines = table(text)
    assert len(lines) == 2 * 2 + 3
    assert {len(line) for line in lines} == {7}
    assert set(lines[1]) <= {"---", "---:"}


def test_markdown_shows_the_figures_with_their_intervals() -> None:
    """And nothing confirmed that is not."""
    best = Side(config=TrainConfig(batch_size=32), measurement=make_measurement(1500, seed=2))
    speedup = Speedup(ratio=1.5, ci95=Interval(0.9, 2.1), pairs=4)
    sure, unsure = table(to_markdown(compared(make_result(best=best), on_gpu(1, speedup=speedup))))[2:]
    assert sure[2:5] == ["1,500<br>1,490 – 1,510", "**1.50×**<br>1.47 – 1.53", "2.00 GiB<br>host"]
    assert sure[5] == "batch_size 64 → 32"
    assert unsure[3] == "1.50×, not confirmed<br>0.900 – 2.10"


def test_a_gain_in_energy_is_no_speed_up() -> None:
    """A file that maximised samples per joule says so, in each format."""
    constraints = make_result().constraints.model_copy(update={"objective": "samples_per_joule"})
    result = make_result(constraints=constraints)
    heading, _, line = table(to_markdown(compared(result)))
    assert (heading[3], line[3]) == ("gain", "**1.50×**<br>1.47 – 1.53 in samples/J")
    assert [row["objective"] for row in rows_of(result, on_gpu())] == ["samples_per_second", "samples_per_joule"]
    assert {row["speedup_confirmed"] for row in rows_of(result)} == {"True"}
    check = Check(
        target="t:build",
        objective="samples_per_joule",
        verdict="holds",
        reason="so",
        claimed=result.speedup,
        found=None,
    )
    assert "| | gain in samples per joule | how certain |" in check_markdown(check)


def test_markdown_shows_samples_per_joule_where_they_are_known() -> None:
    """A column more; a machine that does not tell has a dash in it."""
    telemetry = TelemetrySummary(seconds=4.0, energy_joules=800.0)
    best = Side(config=TrainConfig(), measurement=make_measurement(1000, spread=0, telemetry=telemetry))
    lines = table(to_markdown(compared(on_gpu(best=best), make_result())))
    assert lines[0][5] == "per joule"
    assert {line[5] for line in lines[2:]} == {"5", "–"}


def test_markdown_links_to_the_files_from_its_own_folder() -> None:
    """results/README.md stands beside the folders of the machines."""
    text = to_markdown(compared(make_result()), relative_to=Path("results"))
    assert "[2026-11-20](../0.json)" in text
    assert "](" not in to_markdown(compared(make_result()))


def test_markdown_names_shared_and_particular_knobs_crosses_warnings_and_problems() -> None:
    """All that the terminal shows."""
    best = [TrainConfig(batch_size=64, precision="bf16", num_workers=workers) for workers in (8, 2)]
    sides = [Side(config=config, measurement=make_measurement(2000 - n)) for n, config in enumerate(best)]
    results = [on_gpu(best=sides[0]), make_result(best=sides[1])]
    text = to_markdown(
        compared(*results, crosses=[make_cross(*results)], warnings=["be careful"], problems=["x.json is broken"])
    )
    assert "**Shared by both machines:** precision=bf16, prefetch_factor=2" in text
    assert "- num_workers: 8 on NVIDIA GeForce RTX 4070, 2 CPUs; 2 on Intel(R) Xeon(R) Gold 6338, 2 CPUs" in text
    assert "- Intel(R) Xeon(R) Gold 6338, 2 CPUs loses 17 % (13 – 21 %) with the config of NVIDIA" in text
    assert "## Warnings\n\n- be careful" in text
    assert "## Left out\n\n- x.json is broken" in text


def test_markdown_of_nothing_says_so() -> None:
    """And names what was left out."""
    text = to_markdown(compared(problems=["x.json is broken"]))
    assert "No results to compare." in text
    assert "x.json" in text


def test_markdown_shows_hostile_names_as_they_are_written() -> None:
    """Neither a cell nor a tag nor a link comes of them."""
    parameters = {"note": HOSTILE}
    best = Side(config=TrainConfig(), parameters=parameters, measurement=make_measurement(1000))
    machine = make_hardware(cpu=make_hardware().cpu.model_copy(update={"model": HOSTILE}))
    result = make_result(name=HOSTILE, target=HOSTILE, hardware=machine, best=best)
    text = to_markdown(compared(result, on_gpu(best=best), problems=[HOSTILE]))
    assert {len(line) for line in table(text)} == {7}
    outside_code = re.sub(r"`[^`\n]*`", "", text.replace(r"\`", ""))
    assert "<script>" not in outside_code
    assert "](http" not in outside_code.replace(r"\](", "")
    assert r"a\|b &lt;script&gt;alert(1)&lt;/script&gt; \`c\` \[d\](http://e) \*f\* \_g\_" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("# no heading", r"\# no heading"),
        ("1. no list", r"1\. no list"),
        ("- no list", r"\- no list"),
        ("> no quotation", "&gt; no quotation"),
        ("@somebody :smile: AT&amp;T", "&#64;somebody &#58;smile: AT&amp;amp;T"),
        ("batch_size=64, 2.5 GHz @ 2 CPUs", "batch_size=64, 2.5 GHz @ 2 CPUs"),
    ],
)
def test_markdown_escapes_what_would_mean_something_and_nothing_else(text: str, escaped: str) -> None:
    """The source stays readable."""
    assert f"- {escaped}\n" in to_markdown(compared(problems=[text]))


# CSV.


def test_csv_keeps_the_figures_of_two_pairs() -> None:
    """With their number, by which whoever computes with them can judge."""
    (row,) = rows_of(make_result(speedup=FEW))
    assert (float(row["speedup_ci95_low"]), int(row["speedup_pairs"])) == (1.4, 2)


def test_csv_has_a_row_for_each_result_and_a_column_for_each_knob() -> None:
    """Knobs of build's own included; what a config does not give is empty."""
    best = Side(config=TrainConfig(pin_memory=True), parameters={"max_len": 256}, measurement=make_measurement(4000))
    gpu, cpu = rows_of(on_gpu(best=best), make_result())
    assert list(gpu) == [*CSV_COLUMNS, *(f"knob:{knob}" for knob in KNOB_NAMES), "knob:max_len"]
    assert (gpu["knob:pin_memory"], gpu["knob:max_len"], gpu["knob:compile_mode"]) == ("true", "256", "none")
    assert (cpu["knob:pin_memory"], cpu["knob:max_len"], cpu["knob:batch_size"]) == ("false", "", "32")


def test_csv_figures_are_read_back_as_they_are() -> None:
    """No rounding, no thousands, no unit in the cell."""
    result = make_result()
    (row,) = rows_of(result)
    before = result.baseline.measurement
    assert before is not None
    assert float(row["before_samples_per_second"]) == before.samples_per_second
    assert float(row["before_ci95_low"]) == before.ci95_samples_per_second.low
    assert (float(row["speedup"]), int(row["speedup_pairs"])) == (1.498, 5)
    assert (int(row["memory_bytes"]), row["memory_of"]) == (2 * 2**30, "host")


def test_csv_leaves_empty_what_was_not_measured() -> None:
    """Never 0."""
    (row,) = rows_of(make_result(best=Side(config=TrainConfig(), measurement=None), speedup=None))
    names = ("after_samples_per_second", "after_ci95_low", "speedup", "speedup_pairs", "memory_bytes")
    assert [row[name] for name in names] == [""] * len(names)


@pytest.mark.parametrize("start", ["=cmd()", "+1", "-2", "@SUM(A1)", "\t=cmd()", " \n=cmd()"])
def test_csv_text_is_no_formula(start: str) -> None:
    """A spreadsheet would compute it; figures, negative ones too, stay figures."""
    best = Side(config=TrainConfig(), parameters={"scale": -2, "note": start}, measurement=make_measurement(1000))
    (row,) = rows_of(make_result(name=start, target=start, best=best))
    harmless = f"'{start.strip()}"
    assert (row["workload"], row["target"], row["knob:note"]) == (harmless,) * 3
    assert row["knob:scale"] == "-2"


def test_csv_keeps_commas_quotes_and_lines_in_their_cells() -> None:
    """A name of a user is one cell, whatever is in it."""
    name: Any = 'a, "b"; c\r\nd | e\x1b'
    (row,) = rows_of(make_result(name=name))
    assert row["workload"] == r'a, "b"; c\r d | e\x1b'
    assert row["status"] == "complete"
