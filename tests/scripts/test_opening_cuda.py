"""A script that opens CUDA on its way to the loop is forked just before that; what each job makes goes with it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from autotune.measuring.records import Outcome
from autotune.recorder.runner import before_cuda
from autotune.scripts import ScriptIsolation
from tests.example_scripts import START_SECONDS, alone, played, script


def test_the_moment_comes_before_cuda_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time, with torch's own opener at hand; what that returns is returned."""
    told: list[str] = []
    monkeypatch.setattr(torch._C, "_cuda_init", lambda: told.append("opened") or 7, raising=False)
    before_cuda(lambda own: told.append(f"before {own is not torch._C._cuda_init}"))
    assert torch._C._cuda_init() == 7
    assert told == ["before True", "opened"]


@pytest.mark.slow
def test_a_burst_goes_on_from_where_cuda_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It neither imports nor prepares again; the models, made before the fork, are found and changed after it."""
    monkeypatch.chdir(tmp_path)
    trace = tmp_path / "trace"
    trace.touch()
    with ScriptIsolation(dataclasses.replace(script("prepares"), writable=(trace,))) as isolation:
        isolation.start(START_SECONDS)
        trace.write_text("")
        isolation._seen = dataclasses.replace(isolation.seen, cuda_opened=True)  # what a look sees where there is a GPU
        burst = alone(isolation, precision="bf16", num_threads=1)
        bursts = played(isolation, {"num_workers": 1})
    assert isolation.fork_unsafe_reason is None
    assert burst.outcome is Outcome.OK, burst.reason
    assert trace.read_text() == "prepared opened opened opened "
    assert [one.outcome for one in bursts] == [Outcome.OK, Outcome.OK]  # side by side they make the same folder
    assert [*tmp_path.iterdir()] == [trace]
