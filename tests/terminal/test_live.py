"""The live display: what it shows, that it ticks, fits, costs nothing, and goes when it is done."""

from __future__ import annotations

import re

import pytest

from autotune.measuring.records import Outcome
from tests.factories import make_burst, make_pair
from tests.terminal.screens import Clock, drawn, live_at, live_in_a_duet, on_screen

HOSTILE = "[bold]x[/bold] [/] \x1b[2J"


def test_live_display_shows_stage_counts_best_and_last() -> None:
    """All that one wants to know while waiting, failures by their own words."""
    live = live_at(Clock())
    baseline, best = make_burst(1000), make_burst(1500, precision="bf16")
    live.stage("TPE")
    live.burst(baseline, None, baseline, 60.0)
    live.burst(best, make_pair(baseline, 1.5), best, 50.0)
    live.burst(make_burst(None, outcome=Outcome.OOM, batch_size=512), None, best, 40.0)
    text = on_screen(live)
    assert text.startswith("stage TPE decided 2, 1 oom best 1,500 samples/s ±")
    assert "(1.50×), precision=bf16 last oom, batch_size=512 time" in text


def test_live_display_ticks_by_itself_between_bursts() -> None:
    """The time left goes down while a long burst runs, and never below nothing."""
    clock = Clock()
    live = live_at(clock)
    with live:
        assert on_screen(live).endswith("time 0 s elapsed")
        clock.now += 10
        live.burst(make_burst(1000), None, None, 50.0)
        assert on_screen(live).endswith("time 50 s left")
        clock.now += 30
        assert on_screen(live).endswith("time 20 s left")
        clock.now += 100
        assert on_screen(live).endswith("time 0 s left")


def test_the_time_left_is_known_before_the_first_burst_where_the_budget_is() -> None:
    """A large model takes its time to be imported."""
    clock = Clock()
    with live_at(clock, 60.0) as live:
        clock.now += 10
        assert on_screen(live).endswith("time 50 s left")


def test_stages_so_far_are_named_with_their_time_the_present_one_first() -> None:
    """As far as there is room."""
    first = drawn(live_in_a_duet(), 100).splitlines()[0]
    names = ["one knob at a time", "baseline", "checking the workload", "importing"]
    assert [*map(first.index, names)] == sorted(map(first.index, names))
    assert re.search(r"baseline \d+(\.\d+)? s  checking", first)


def test_a_stage_that_comes_back_goes_on_with_its_time() -> None:
    """One knob at a time is interrupted by races again and again."""
    clock = Clock()
    live = live_at(clock, 100.0)
    for stage in ("one", "again", "one"):
        live.stage(stage)
        clock.now += 10
    assert live._seconds_by_stage() == {"starting": 0.0, "one": 20.0, "again": 10.0}


def test_the_running_duet_is_shown_with_its_interval() -> None:
    """What the candidate changes from the incumbent, and how sure its ratio is by now."""
    live = live_in_a_duet()
    assert "playing num_workers=2 prefetch_factor=4 1.12× (0.970 – 1.27) time" in on_screen(live)


def test_a_duet_that_is_over_is_no_longer_shown() -> None:
    """Its burst has it, or the next stage has begun."""
    live = live_in_a_duet()
    live.stage("confirm")
    assert "playing" not in on_screen(live)


def test_a_burst_is_told_with_the_duet_that_it_was_one_side_of() -> None:
    """Over the best so far; the gain of the best over the baseline is that of all pairs."""
    live = live_in_a_duet()
    assert live.playing is not None
    point, pair = live.playing
    candidate = make_burst(1650).model_copy(update={"point": point})
    live.burst(candidate, pair, candidate, 150.0, 1.6)
    text = on_screen(live)
    assert "last 1.12× (0.970 – 1.27) over the best so far, precision=bf16 num_workers=2" in text
    assert text.count("(1.60×), precision=bf16 num_workers=2") == 1  # the best


def test_live_display_keeps_markup_of_users_as_text() -> None:
    """A stage, a reason and a parameter are shown as they are written."""
    live = live_at(Clock())
    live.stage(HOSTILE)
    live.burst(make_burst(1000), None, None, 50.0)
    live.burst(make_burst(None, outcome=Outcome.CRASHED, reason=HOSTILE, parameters={"a": HOSTILE}), None, None, 9.0)
    assert on_screen(live).count(r"[bold]x[/bold] [/] \x1b[2J") == 3


def test_live_display_leaves_stdout_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json another program reads stdout: nothing is drawn into it or taken from it."""
    with live_at(Clock()) as live:
        live.stage("TPE")
        print("{}")
    assert capsys.readouterr().out == "{}\n"


@pytest.mark.parametrize("fails", [True, False])
def test_live_display_is_cleared_unless_tuning_failed(fails: bool) -> None:
    """The result table says it better; after an error the last state is all there is."""
    live = live_at(Clock())
    error = RuntimeError() if fails else None
    live.__enter__()
    live.__exit__(type(error) if error else None, error, None)
    ended = live._console.file.getvalue()
    assert ended.endswith("\x1b[?25h") == fails  # clearing comes after the cursor is shown again
    assert "\x1b[?25h" in ended


@pytest.mark.parametrize("width", [20, 40, 60, 200])
def test_a_narrow_terminal_shows_every_row_and_none_too_wide(width: int) -> None:
    """A line that is too wide would be broken by the terminal, and the display redrawn in the wrong place."""
    lines = drawn(live_in_a_duet(), width).splitlines()
    assert max(map(len, lines)) <= width
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == [
        "stage", "decided", "best", "last", "playing", "time",
    ]  # fmt: skip
    assert (width == 20) or "1.12× (0.970 – 1.27)" in lines[-2]


def test_a_duet_is_not_drawn_at_each_turn() -> None:
    """Turns come several times a second: drawing would take time from what is measured."""
    with live_at(Clock()) as live:
        before = live._console.file.getvalue()
        live.duet(make_burst(1).point, make_pair(make_burst(1), 1.1))
        assert live._console.file.getvalue() == before
