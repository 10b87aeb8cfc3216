"""What `show --why` prints: every burst, with its reason."""

from __future__ import annotations

import io

from rich.console import Console

from autotune.measuring.records import Outcome
from autotune.results.result import Result, TrialRecord
from autotune.terminal.console import trials_table
from tests.factories import make_result


def shown(result: Result) -> str:
    """What is printed, with single spaces."""
    console = Console(file=io.StringIO(), width=200, highlight=False)
    console.print(trials_table(result))
    return " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]


def trial(**changes: object) -> TrialRecord:
    """A burst that went well."""
    fields = {
        "stage": "suggestions", "reason": "all at once", "changes": {"precision": "bf16"}, "outcome": Outcome.OK,
        "samples_per_second": 2000.0, "seconds": 3.0,
    }  # fmt: skip
    return TrialRecord.model_validate(fields | changes)


def test_each_burst_comes_with_its_reason() -> None:
    """Its knobs, its rate and why it was run, under its stage."""
    text = shown(make_result(trials=(trial(stage="baseline", changes={}, reason="today"), trial(compile_seconds=12.0))))
    assert "2 bursts" in text
    assert "baseline today" in text.replace("baseline 1", "1")
    assert "suggestions 2 2,000 samples/s" in text
    assert "precision=bf16 all at once; compiling took 12 s" in text


def test_a_duet_is_told_with_what_it_was_against() -> None:
    """After the reason, with its interval."""
    beside = trial(partner={"num_workers": 2}, ratio=1.12, ci95=(1.08, 1.16))
    assert "all at once; 1.12× (1.080 – 1.16) over the best so far" in shown(make_result(trials=(beside,)))


def test_a_failure_says_why() -> None:
    """Its outcome stands where the rate would be."""
    text = shown(make_result(trials=(trial(outcome=Outcome.OOM, samples_per_second=None, failure="no memory left"),)))
    assert " oom " in text
    assert "no memory left" in text


def test_a_candidate_of_a_running_training_has_not_failed() -> None:
    """It has no rate, but its ratio."""
    live = trial(samples_per_second=None, partner={}, ratio=1.12, ci95=(1.08, 1.16))
    assert "1 – precision=bf16 all at once; 1.12× (1.080 – 1.16)" in shown(make_result(trials=(live,)))


def test_hostile_names_stay_text() -> None:
    """What comes from a file is neither markup nor control characters."""
    text = shown(make_result(trials=(trial(reason="[bold]x[/bold] \x1b[2J"),)))
    assert "[bold]x[/bold] \\x1b[2J" in text


def test_an_older_file_has_no_bursts() -> None:
    """It says so."""
    assert "does not say" in shown(make_result())


def test_a_turn_says_who_played_and_how_long() -> None:
    """All that challenged one partner together stand under one heading."""
    beside = {"stage": "expected gain", "turn": 2, "partner": {"num_workers": 2}, "ratio": 1.1, "ci95": (1.0, 1.2)}
    trials = (trial(stage="baseline", changes={}), trial(**beside), trial(**beside, changes={"precision": "fp16"}))
    text = shown(make_result(trials=trials))
    assert text.count("turn 2, 6 s: 2 against num_workers=2 (expected gain)") == 1
