"""No command changes a person's files in any row of protection, whatever it runs; see `adversary` for the cases."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.sandbox.protection import find_offer
from tests.sandbox import adversary

ROOT = Path(__file__).parents[2]
CASES = [*adversary.SHELL, *adversary.PYTHON]
LEADS_OUT = {"by way of the root of process 1", "by way of its parent's root", "enters other namespaces"}
STACKED = {"copy_file_range"}  # between the two file systems below a job's overlay
NEEDS_ROOT = {"changes owners", "fchown", "makes a device"}
ROWS = {
    "overlay": ("none", LEADS_OUT | STACKED),
    "overlay of a user": ("root", LEADS_OUT | STACKED | NEEDS_ROOT),
    "landlock": ("namespaces", {*CASES}),
}
"""What is denied, so that a row is the best one; and which cases may fail there, since the kernel refuses them."""


# The kernel keeps all of them; what Landlock alone keeps is the row with the fewest features, and the quickest to try.
@pytest.mark.parametrize(
    "row", [pytest.param(row, marks=() if row == "landlock" else pytest.mark.slow) for row in ROWS]
)
def test_nothing_changes(row: str, tmp_path: Path) -> None:
    """Bytes, kinds, modes, owners, times, links and attributes; and what a view allows goes on as outside."""
    if find_offer().row != "overlay":
        pytest.skip(f"the kernel offers no private view here: {find_offer().sentence}")
    denied, may_fail = ROWS[row]
    command = [sys.executable, str(ROOT / "tests/sandbox/denied.py"), denied, sys.executable, "-m"]
    done = subprocess.run(
        [*command, "tests.sandbox.adversary", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["row"] == row.partition(" ")[0]
    assert [*answer["cases"]] == CASES
    assert {name: one["changed"] for name, one in answer["cases"].items() if one["changed"]} == {}
    assert {name for name, one in answer["cases"].items() if one["status"] != 0} <= may_fail
