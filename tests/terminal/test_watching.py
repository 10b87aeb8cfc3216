"""The display of a training that is tuned while it runs, from its log."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from autotune.results.live import Story
from autotune.terminal.live import display, follow
from tests.inside import run_inside

FACTS = {"device": "cpu", "cpus": 2, "threads": 2, "loader": None, "step_seconds": 0.1, "wait_share": 0.5}
EVENTS: list[dict[str, Any]] = [
    {"event": "started", "command": "python train.py", "host": "elsewhere", "pid": 1},
    {"event": "began", **FACTS},
    {"event": "planned", "candidates": {"num_threads=1": {"num_threads": 1}, "optimizer_impl=fused": {}},
     "left": {"num_workers": "the data set is iterable"}},
    {"event": "pace", "t": 60.0, "steps": 600, "steps_per_second": 12.5, "wait_share": 0.25, "memory_bytes": 2**30},
    {"event": "decided", "name": "num_threads=1", "verdict": "won", "ratio": 1.25, "low": 1.1, "high": 1.42},
    {"event": "playing", "name": "optimizer_impl=fused"},
    {"event": "pair", "name": "optimizer_impl=fused", "ratio": 0.9, "low": 0.5, "high": 1.6, "pairs": 1},
    {"event": "pace", "steps_per_second": "fast"},
    {"nothing": "of ours"},
]  # fmt: skip
SHOWN = {
    "python train.py, 1 m 00 s, 600 steps", "12.5 steps/s, 1.25× that of the first steps (claimed: 1.25×)",
    "25 % of the time, for data", "1.00 GiB", "plays optimizer_impl=fused", "1.10 – 1.42", "won", "is played",
    "your setting of num_workers stays: the data set is iterable",
}  # fmt: skip


def console_of(*, is_terminal: bool) -> Console:
    """A console that keeps what it prints."""
    return Console(file=io.StringIO(), force_terminal=is_terminal, width=200, color_system=None)


def test_a_training_that_runs_is_shown() -> None:
    """Its speed, the setting that is played, and each candidate."""
    story, console = Story(), console_of(is_terminal=False)
    for event in EVENTS:
        story.add(event)
    console.print(display(story))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert [text for text in SHOWN if text not in shown] == []


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_log_is_read_to_the_end_of_the_training(is_terminal: bool, tmp_path: Path) -> None:
    """Also after the training; lines that are no event, or cut off, are skipped."""
    log, ending, console = (
        tmp_path / "result.live.jsonl",
        {"event": "exited", "status": 3},
        console_of(is_terminal=is_terminal),
    )
    lines = [json.dumps(event) for event in EVENTS]
    log.write_text("\n".join([*lines, "[1]", '{"half": ', json.dumps(ending), '{"event": "pa']))
    follow(log, console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "1 m 00 s, 600 steps, ended with exit status 3" in shown
    assert "12.5 steps/s, 1.25× that of the first steps (claimed: 1.25×)" in shown
    assert ("interval so far" in shown) is is_terminal


def test_lines_come_while_the_training_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes them into a file or a pipe sees them at once."""
    log, console, shown = tmp_path / "result.live.jsonl", console_of(is_terminal=False), []
    log.write_text("".join(f"{json.dumps(event)}\n" for event in EVENTS))

    def ends(_: float) -> None:
        shown.append(console.file.getvalue())  # type: ignore[attr-defined]
        with log.open("a") as file:
            file.write('{"event": "exited", "status": 0}\n')

    monkeypatch.setattr(time, "sleep", ends)
    follow(log, console)
    assert "12.5 steps/s" in shown[1]


@pytest.mark.parametrize("place", [".", "", "/", "nowhere"])
def test_a_place_without_a_log_is_told(place: str, tmp_path: Path) -> None:
    """A folder too, whose name has no ending to replace."""
    done = run_inside(["watch", place], tmp_path)
    assert (done.status, done.err.startswith("error: expected the log of a training at ")) == (2, True)


def test_a_partial_result_names_its_log(tmp_path: Path) -> None:
    """The log is that of the file which the command named."""
    ended = {"event": "exited", "status": 0}
    (tmp_path / "train.live.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in [*EVENTS, ended]))
    done = run_inside(["watch", "train-partial.json"], tmp_path)
    assert (done.status, "12.5 steps/s" in done.out) == (0, True), done.err


def test_figures_that_are_none_are_skipped() -> None:
    """A log may come from anywhere."""
    story, console = Story(), console_of(is_terminal=False)
    for line in (
        '{"event": "pace", "steps": Infinity}',
        '{"event": "pace", "t": Infinity}',
        '{"event": "pace", "t": NaN}',
    ):
        story.add(json.loads(line))
    console.print(display(story))
    assert (story.seconds, story.steps) == (0.0, 0)
