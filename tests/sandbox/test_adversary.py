"""No command changes a person's files in any row of protection, whatever it runs; see `adversary` for the cases."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune.sandbox.protection import find_offer
from tests.sandbox import adversary

ROOT = Path(__file__).parents[2]
ROWS = {"overlay": "none", "overlay of a user": "root", "landlock": "namespaces"}
"""What is denied, so that a row is the best one."""
CASES = [*adversary.SHELL, *adversary.PYTHON, *adversary.TORCH]
_answers: dict[str, Any] = {}


def answers(row: str, place: Path) -> Any:
    """What all cases did in a row; they run once."""
    if row not in _answers:
        denied = [sys.executable, str(ROOT / "tests/sandbox/denied.py"), ROWS[row]]
        command = [*denied, sys.executable, "-m", "tests.sandbox.adversary", str(place)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=280)
        _answers[row] = json.loads(done.stdout)
    return _answers[row]


@pytest.mark.parametrize("row", ROWS)
def test_nothing_changes(row: str, tmp_path: Path) -> None:
    """Bytes, kinds, modes, owners, times, links and attributes, in the project and beside it."""
    if find_offer().row != "overlay":
        pytest.skip(f"the kernel offers no private view here: {find_offer().sentence}")
    found = answers(row, tmp_path)
    assert found["row"] == row.partition(" ")[0]
    assert {name: one["changed"] for name, one in found["cases"].items() if one["changed"]} == {}
    assert [*found["cases"]] == CASES
    assert len(CASES) >= 40


def succeeded(found: Mapping[str, Any]) -> set[str]:
    """The cases that ended as if nothing had been denied."""
    return {name for name, one in found["cases"].items() if one["status"] == 0}


@pytest.mark.parametrize("row", ["overlay", "overlay of a user"])
def test_a_view_denies_nothing_that_a_script_does_in_its_folder(row: str, tmp_path: Path) -> None:
    """All but what leads out of the view, and what only root may do."""
    if find_offer().row != "overlay":
        pytest.skip(f"the kernel offers no private view here: {find_offer().sentence}")
    leads_out = {"by way of the root of process 1", "by way of its parent's root", "enters other namespaces"}
    needs_root = {"changes owners", "fchown", "makes a device"} if row != "overlay" else set()
    assert {*CASES} - succeeded(answers(row, tmp_path)) <= leads_out | needs_root
