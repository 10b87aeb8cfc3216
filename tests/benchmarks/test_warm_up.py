"""Warming up: which blocks a round counts, what they say beside warm ones, and the picture of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from autotune.measuring import Block, Measurement
from benchmarks import output, warm_up
from benchmarks.warm_up_plot import write_plot


def measured(seconds: Sequence[float]) -> Measurement:
    """Blocks of a hundred samples, a second after the start of the process."""
    blocks = tuple(Block(samples=100, seconds=one, data_wait_seconds=0) for one in seconds)
    return Measurement(blocks=blocks, start_seconds=0.1, build_seconds=0.4, warmup_seconds=0.5)


def test_a_cut_is_judged_by_what_is_warm() -> None:
    """The first blocks of one side were slow: without them the ratio is that of the second half."""
    row = warm_up.described([measured([1.0] * 3 + [0.5] * 13), measured([0.5] * 16)], range(3, 8))
    assert (row["cut"], row["end"]) == (3, 8)
    assert row["cut_seconds"] == pytest.approx([4.0, 2.5])
    assert warm_up.off(row, "ratio") == pytest.approx(0)
    assert warm_up.off(row, "ratio_without_cut") == pytest.approx(5.5 / 4 - 1)


def test_the_picture_is_one_of_all_workloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Well-formed, a line a side."""
    folder = tmp_path / "benchmarks" / "output"
    folder.mkdir(parents=True)
    monkeypatch.setattr(output, "FOLDER", folder)
    row = warm_up.described([measured([0.5] * 8)] * 2, range(2, 6))
    assert write_plot({"one": row, "two": row, "three": row}) == Path("benchmarks/output/warm_up.svg")
    root = ElementTree.parse(folder / "warm_up.svg").getroot()  # noqa: S314  our own file
    assert len(root.findall(".//{*}polyline")) == 6


@pytest.mark.slow
def test_a_duet_is_recorded_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides with all their blocks, longer than a round."""
    folder = tmp_path / "benchmarks" / "output"
    folder.mkdir(parents=True)
    monkeypatch.setattr(output, "FOLDER", folder)
    monkeypatch.setattr(warm_up, "WORKLOADS", {"digits": "tests.workloads.tiny:build"})
    monkeypatch.setattr(warm_up, "BUDGET_SECONDS", 10.0)
    assert warm_up.main(["digits", "--seconds", "1.5"]) == 0
    row = json.loads((folder / "warm_up.json").read_text())["workloads"]["digits"]
    assert 0 < row["end"] <= len(row["sides"][0]["rates"]) == len(row["sides"][1]["rates"])
    assert (folder / "warm_up.svg").exists()
