"""Progress as it is told: quiet, line by line, and live; and that no lost terminal ends a tuning."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from autotune.measuring.progress import Progress
from autotune.measuring.records import Burst, Outcome
from autotune.terminal.console import lasting
from autotune.terminal.progress import Lines, Live, make_progress
from tests.factories import make_burst, make_pair
from tests.terminal.screens import Clock, Terminal, live_at

HOSTILE = "[bold]x[/bold] [/] \x1b[2J"

SHOW_ON_STDERR = """
import time
from autotune.terminal.console import make_console
from autotune.terminal.progress import make_progress
from tests.factories import make_burst, make_pair

console = make_console()
with make_progress(console, quiet=False) as progress:
    print(type(progress).__name__, flush=True)
    for number in range(30):
        progress.stage("TPE")
        progress.burst(make_burst(1000.0 + number), None, make_burst(1000.0), 60.0)
        progress.note("still here")
        time.sleep(0.02)
console.print("the end")
print("finished")
"""


class Gone(io.StringIO):
    """A terminal that was closed: every write fails."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error
        self.attempts = 0

    def write(self, text: str) -> int:
        """Fails."""
        self.attempts += 1
        raise self.error

    def flush(self) -> None:
        """Fails."""
        raise self.error

    def isatty(self) -> bool:
        """Still claims to be one."""
        return True


def lines_of(*bursts: tuple[Burst, Burst | None, float], stage: str = "TPE") -> list[str]:
    """What `Lines` prints of bursts, each with the best so far and the seconds left."""
    console = Console(file=io.StringIO(), width=80)
    with Lines(console) as progress:
        progress.stage(stage)
        for burst, best, remaining in bursts:
            progress.burst(burst, None, best, remaining)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def show_in_a_child(stderr: int) -> subprocess.Popen[str]:
    """A program that shows progress for about a second, and says on stdout how far it came."""
    return subprocess.Popen(
        [sys.executable, "-c", SHOW_ON_STDERR],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TERM": "xterm"},
    )


def test_every_kind_can_be_told_everything() -> None:
    """The search knows only the protocol."""
    kinds: list[Progress] = [Progress(), Lines(Console(file=io.StringIO())), live_at(Clock())]
    for progress in kinds:
        with progress as entered:
            entered.stage("baseline")
            entered.note("a note")
            entered.duet(make_burst(1100).point, make_pair(make_burst(1000), 1.1))
            entered.burst(make_burst(1000), None, None, 10.0)
            assert entered is progress


def test_quiet_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """Quiet means quiet, on stderr too."""
    with make_progress(Console(stderr=True), quiet=True) as progress:
        progress.stage("baseline")
        progress.note("a note")
        progress.duet(make_burst(1100).point, make_pair(make_burst(1000), 1.1))
        progress.burst(make_burst(1000), None, None, 10.0)
    assert capfd.readouterr() == ("", "")


def test_a_pipe_gets_lines_and_a_terminal_the_live_display(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forced colours do not make a pipe a terminal: a cursor cannot be moved there."""
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(make_progress(Console(file=io.StringIO()), quiet=False), Lines)
    assert isinstance(make_progress(Console(file=io.StringIO(), force_terminal=True), quiet=False), Lines)
    assert isinstance(make_progress(Console(file=Terminal()), quiet=False), Live)


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Editors and some build servers cannot redraw."""
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_progress(Console(file=Terminal()), quiet=False), Lines)


def test_the_line_of_the_baseline_has_its_rate_with_spread_and_the_time_left() -> None:
    """The first burst that goes well is what all others are compared with."""
    baseline = make_burst(1000)
    first, second = lines_of((baseline, baseline, 575.0), stage="baseline")
    assert first == "baseline …"
    assert second.startswith("baseline: 997 samples/s ±")
    assert second.endswith(" %, baseline | 9 m 35 s left")


def test_a_line_has_the_changed_knobs_and_the_ratio_to_the_baseline() -> None:
    """Only what differs from the baseline is named, build's own parameters included."""
    baseline = make_burst(1000, num_threads=2)
    faster = make_burst(1500, num_threads=2, precision="bf16", parameters={"max_len": 256})
    line = lines_of((baseline, baseline, 60.0), (faster, faster, 50.0))[-1]
    assert line.startswith("TPE: 1,500 samples/s ±")
    assert line.endswith(" % (1.50×), precision=bf16 max_len=256 | 50 s left")


def test_a_line_has_the_pair_of_its_burst() -> None:
    """What was measured in the end, not what was shown meanwhile."""
    baseline, faster, other = make_burst(1000), make_burst(1500, precision="bf16"), make_burst(900, num_workers=1)
    console = Console(file=io.StringIO())
    with Lines(console) as progress:
        progress.burst(baseline, None, baseline, 60.0)
        progress.duet(faster.point, make_pair(baseline, 2.0))
        progress.burst(faster, make_pair(baseline, 1.4, 0.14), faster, 50.0, 1.4)
        progress.burst(other, None, faster, 40.0, 1.37)
    _, second, third = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert ": 1.40× (1.26 – 1.54) over the baseline, precision=bf16 | 50 s left" in second
    assert "over the" not in third
    assert "best 1,500 samples/s ±0.5 % (1.37×)" in third  # as all pairs so far estimate it


def test_a_line_of_a_slower_burst_names_the_best_so_far() -> None:
    """Whoever looks at the last line of a log sees where the search stands."""
    baseline, slower = make_burst(1000), make_burst(500, precision="bf16")
    line = lines_of((baseline, baseline, 60.0), (slower, baseline, 50.0))[-1]
    assert " (0.500×), precision=bf16 | best 997 samples/s ±" in line


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.OK])
def test_a_line_of_a_failed_burst_has_its_outcome_and_reason(outcome: Outcome) -> None:
    """How a burst ended is told in the words of the result file."""
    baseline = make_burst(1000)
    failed = make_burst(None, outcome=outcome, reason="it did\nnot go\twell", batch_size=64)
    line = lines_of((baseline, baseline, 60.0), (failed, baseline, 50.0))[-1]
    assert line.startswith(f"TPE: {outcome.value}, batch_size=64: it did not go well | best 997 samples/s")


def test_a_long_reason_is_cut_to_keep_the_line_short() -> None:
    """The whole reason is in the journal."""
    failed = make_burst(None, outcome=Outcome.CRASHED, reason="word " * 1000)
    line = lines_of((failed, None, 60.0))[-1]
    assert len(line) < 250
    assert "…" in line


def test_until_one_goes_well_knobs_are_compared_with_the_first() -> None:
    """A baseline that fails is still what the others change."""
    failed, also_failed = (make_burst(None, outcome=Outcome.OOM, batch_size=size) for size in (32, 16))
    smaller = make_burst(1000, batch_size=8)
    lines = lines_of((failed, None, 60.0), (also_failed, None, 50.0), (smaller, smaller, 40.0))
    assert lines[1].startswith("TPE: oom, baseline")
    assert lines[2].startswith("TPE: oom, batch_size=16")
    assert "×" not in lines[3]


def test_a_burst_before_the_baselines_is_told_with_its_changes() -> None:
    """A resumed run does not measure the baseline again, and a check begins with the tuned config."""
    console, baseline, faster = Console(file=io.StringIO()), make_burst(1000), make_burst(1500, precision="bf16")
    with Lines(console) as progress:
        progress.baseline = baseline.point
        progress.burst(faster, None, faster, 60.0)
        progress.burst(baseline, None, faster, 50.0, 1.5)
    first, second = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert "samples/s" in first
    assert "×" not in first  # as long as the baseline's own score is not known
    assert "%, precision=bf16 | " in first
    assert "%, baseline | best 1,500 samples/s" in second


def test_no_time_left_is_not_negative() -> None:
    """The last burst may end after the deadline."""
    assert lines_of((make_burst(1000), None, -3.0))[-1].endswith("| 0 s left")


def test_lines_are_not_wrapped_and_user_text_is_not_interpreted() -> None:
    """One burst, one line, however long; markup and escape characters are shown, not obeyed."""
    burst = make_burst(1000, parameters={"name": HOSTILE * 10})
    console = Console(file=io.StringIO(), width=80)
    progress = Lines(console)
    progress.note(HOSTILE)
    progress.burst(make_burst(900), None, None, 9.0)
    progress.burst(burst, None, None, 9.0)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0] == r"note: [bold]x[/bold] [/] \x1b[2J"
    assert lines[2].count(r"[bold]x[/bold] [/] \x1b[2J") == 10


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), BrokenPipeError(32, "Broken pipe")])
@pytest.mark.parametrize("kind", [Lines, Live])
def test_a_terminal_that_goes_away_does_not_end_the_tuning(kind: Any, error: Exception) -> None:
    """Whatever fails to be written is dropped, without an exception and without SystemExit."""
    gone = Gone(error)
    with kind(Console(file=gone)) as progress:
        progress.stage("TPE")
        progress.note("a note")
        progress.burst(make_burst(1000), None, None, 10.0)
    assert gone.attempts > 0


@pytest.mark.parametrize("kind", [Lines, Live])
def test_a_stream_that_was_closed_does_not_end_the_tuning(kind: Any) -> None:
    """Python answers with another error when it closed the stream itself."""
    stream = Terminal()
    with kind(Console(file=stream)) as progress:
        progress.stage("TPE")
        stream.close()
        progress.note("a note")
        progress.burst(make_burst(1000), None, None, 10.0)


def test_an_error_that_is_no_lost_terminal_is_not_hidden() -> None:
    """The guard is narrow: a bug in what is printed still shows."""
    console = lasting(Console(file=Gone(ValueError("a bug"))))
    with pytest.raises(ValueError, match="a bug"):
        console.print("text")


def test_lasting_twice_is_lasting_once() -> None:
    """The console may pass through several hands."""
    console = Console(file=io.StringIO())
    stream = lasting(console).file
    assert lasting(console).file is stream


@pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals are those of POSIX")
def test_a_real_terminal_that_is_closed_leaves_the_program_running() -> None:
    """The whole program goes on to its end when the window is closed half-way."""
    import pty

    ours, theirs = pty.openpty()
    child = show_in_a_child(stderr=theirs)
    os.close(theirs)
    assert child.stdout is not None
    assert child.stdout.readline() == "Live\n"
    os.read(ours, 100)
    os.close(ours)
    rest, _ = child.communicate(timeout=60)
    assert (rest, child.returncode) == ("finished\n", 0)


@pytest.mark.skipif(os.name != "posix", reason="SIGPIPE and its error are those of POSIX")
def test_a_reader_that_stops_reading_leaves_the_program_running() -> None:
    """`autotune … 2>&1 | head -1` does not end the tuning."""
    child = show_in_a_child(stderr=subprocess.PIPE)
    assert child.stderr is not None
    assert child.stdout is not None
    assert child.stderr.readline() == "TPE …\n"
    child.stderr.close()
    assert child.stdout.read() == "Lines\nfinished\n"
    assert child.wait(60) == 0
