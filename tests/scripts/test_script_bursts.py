"""Bursts of scripts: forked from their loop or started again, they train blocks, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from autotune.measuring.records import Outcome
from autotune.scripts import ScriptIsolation
from tests.example_scripts import START_SECONDS, alone, played, script


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Scripts write into the working directory; no process of theirs is left, beside those of tests before."""
    monkeypatch.chdir(tmp_path)
    before = set(psutil.Process().children(recursive=True))
    yield
    assert not set(psutil.Process().children(recursive=True)) - before


def test_sides_of_a_script_train_as_many_samples_block_by_block(tmp_path: Path) -> None:
    """A duet of the script as it is and with a worker; what it writes is gone in the end, and no process is left."""
    notes: list[str] = []
    (tmp_path / "log.txt").write_text("mine\n")
    with ScriptIsolation(script("plain"), notes.append) as isolation:
        isolation.start(START_SECONDS)
        bursts = played(isolation, {"num_workers": 1})
    assert [burst.outcome for burst in bursts] == [Outcome.OK, Outcome.OK]
    first, second = (burst.measurement for burst in bursts)
    assert first is not None
    assert second is not None
    assert [block.samples for block in first.blocks] == [block.samples for block in second.blocks]
    assert (tmp_path / "log.txt").read_text() == "mine\n"
    assert [path.name for path in tmp_path.iterdir()] == ["log.txt"]


def test_changes_outside_the_loader_come_into_effect() -> None:
    """Half precision, a fused optimizer, threads and the allocator: none ends as unsupported."""
    with ScriptIsolation(script("plain")) as isolation:
        isolation.start(START_SECONDS)
        burst = alone(isolation, precision="bf16", optimizer_impl="fused", num_threads=1, allocator="tuned")
    assert burst.outcome is Outcome.OK, burst.reason


@pytest.mark.slow
def test_a_script_without_a_loader_trains_in_turn() -> None:
    """The gate is the end of a step."""
    with ScriptIsolation(script("without_loader")) as isolation:
        isolation.start(START_SECONDS)
        bursts = played(isolation, {"optimizer_impl": "fused"})
    assert [burst.outcome for burst in bursts] == [Outcome.OK, Outcome.OK]


@pytest.mark.slow
def test_a_script_that_cannot_be_forked_is_started_again_for_each_burst() -> None:
    """Its thread would be missing in a fork; the reason is told."""
    notes: list[str] = []
    with ScriptIsolation(script("threaded"), notes.append) as isolation:
        isolation.start(START_SECONDS)
        bursts = played(isolation, {"num_threads": 1})
    assert [burst.outcome for burst in bursts] == [Outcome.OK, Outcome.OK]
    assert "each burst starts the script again: the script runs threads" in notes[0]


@pytest.mark.parametrize(
    ("how", "outcome", "told"),
    [
        ("raise", Outcome.CRASHED, "ValueError: no such luck"),
        ("memory", Outcome.OOM, "MemoryError: all of it"),
        ("exit", Outcome.CRASHED, "the script ended while it was training"),
        ("die", Outcome.CRASHED, "SIGABRT"),
        ("nan", Outcome.INVALID, "the loss became nan"),
    ],
)
@pytest.mark.slow
def test_how_a_script_fails_is_its_outcome(how: str, outcome: Outcome, told: str) -> None:
    """What it raised, exited or died of stands in the reason, and nothing is left of it."""
    with ScriptIsolation(script("failing", how)) as isolation:
        isolation.start(START_SECONDS)
        burst = alone(isolation)
    assert burst.outcome is outcome, burst.reason
    assert told in (burst.reason or "")


@pytest.mark.slow
def test_a_script_that_hangs_is_ended_at_the_deadline() -> None:
    """The deadline is the burst's own."""
    with ScriptIsolation(script("failing", "hang")) as isolation:
        isolation.start(START_SECONDS)
        burst = alone(isolation, 12.0)
    assert burst.outcome is Outcome.TIMEOUT
