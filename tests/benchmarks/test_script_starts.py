"""What forking a script saves is measured, and a script that does not train is told."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import output, script_starts
from tests.example_scripts import EXAMPLES


@pytest.mark.slow
def test_both_kinds_of_burst_are_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In pairs; a script that sleeps before it trains starts faster where it is forked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(output, "FOLDER", tmp_path / "benchmarks" / "output")
    output.FOLDER.mkdir(parents=True)
    assert script_starts.main(["--rounds", "2", "--", sys.executable, str(EXAMPLES / "prepares.py")]) == 0
    figures = json.loads((output.FOLDER / "script_starts.json").read_text())
    assert max(figures["start_seconds"]["forked"]) < min(figures["start_seconds"]["started"])
    assert figures["ratio"]["ratio"] > 1
    assert "so that a forked one costs less" in capsys.readouterr().out


def test_a_command_that_cannot_be_run_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """With the exit status of a wrong use."""
    assert script_starts.main(["--", "no-such-program"]) == 2
    assert "no-such-program" in capsys.readouterr().err
