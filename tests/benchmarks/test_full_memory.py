"""Intervals beside a memory that is nearly full."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import full_memory, output


@pytest.mark.slow
def test_both_shares_are_measured_and_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One challenge each, in real processes, long enough for three blocks on a slow machine."""
    folder = tmp_path / "benchmarks" / "output"
    folder.mkdir(parents=True)
    monkeypatch.setattr(output, "FOLDER", folder)
    full_memory.main(["--pairs", "1", "--seconds", "1"])
    document = json.loads((folder / "full_memory.json").read_text())
    assert list(document["shares"]) == ["90%", "30%"]
    assert all(found["width"] > 0 and len(found["ratios"]) == 1 for found in document["shares"].values())
    assert document["ratio_of_widths"] > 0
