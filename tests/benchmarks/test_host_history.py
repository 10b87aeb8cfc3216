"""What a host has played before: several workloads in one command, and those of another command stay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import host_history, output

TINY = "tests.workloads.tiny:build"


@pytest.mark.slow
def test_workloads_are_merged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One value of each, in real hosts and fresh processes."""
    folder = tmp_path / "benchmarks" / "output"
    folder.mkdir(parents=True)
    monkeypatch.setattr(output, "FOLDER", folder)
    monkeypatch.setattr(host_history, "WORKLOADS", {"one": TINY, "two": TINY, "three": TINY})
    monkeypatch.setattr(host_history, "PAIRS", 2)
    options = ["--seconds", "0.2", "--values", "optimizer_impl=fused"]
    host_history.main(["one", "two", *options])
    host_history.main(["three", *options])
    workloads = json.loads((folder / "host_history.json").read_text())["workloads"]
    assert list(workloads) == ["one", "two", "three"]
    for found in workloads.values():
        (row,) = found["values"]
        assert row["one_host"]["ratio"] > 0
        assert len(row["fresh_processes"]) == 2
