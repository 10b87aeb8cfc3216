"""Every option has a range, checked where it is read: one sentence says what was expected, what it got, what to do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from autotune.cli import app
from autotune.commands import options
from autotune.errors import ConfigError, UsageError
from autotune.knobs.constraints import check_constraints

DIGITS = "9" * 5000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--effective-batch", "99999999999999999999999999"], "from 1 to 2147483647"),
        (["--effective-batch", DIGITS], "from 1 to 2147483647"),
        (["--effective-batch", "0"], "or pass 'free'"),
        (["--budget", "9999999999h"], "30d at most"),
        (["--budget", DIGITS], "30d at most"),
        (["--seed", "-1"], "from 0 to 4294967295"),
        (["--seed", str(2**64)], "from 0 to 4294967295"),
        (["--seed", DIGITS], "from 0 to 4294967295"),
        (["--seed", "²"], "from 0 to 4294967295"),
        (["--max-workers", str(10**9)], "from 0 to 4096"),
        (["--max-workers", "-1"], "from 0 to 4096"),
        (["--memory-target", "0"], "--memory-target: expected a fraction above 0"),
        (["--memory-target", "1.5"], "--memory-target: expected a fraction above 0"),
        (["--memory-target", "nan"], "--memory-target: expected a fraction above 0"),
        (["--memory-target", "1e-300"], "from 0.01 to 1"),
        (["--utilization-target", "inf"], "--utilization-target: expected a fraction above 0"),
        (["--utilization-target", "much"], "--utilization-target: expected a fraction such as"),
        (["--explore", "x=" + ",".join(map(str, range(5000)))], "expected 64 values at most, got 5000"),
        (["--explore", f"x={DIGITS}"], "200 characters at most"),
        (["--explore", f"{'x' * 300}=1"], "200 characters at most"),
        (["--pin", f"batch_size={DIGITS}"], "200 characters at most"),
        (["--pin", f"batch_size={10**30}"], "batch_size="),
        (["--pin", "num_workers=1000000"], "expected num_workers of 4096 at most, got 1000000"),
        (["--pin", "num_threads=2147483647"], "num_threads of 4096"),
        (["--pin", "prefetch_factor=2147483647"], "prefetch_factor of 1024"),
        (["--pin", "batch_size=nan"], "batch_size='nan'"),
        (["--dollars-per-hour", "free"], "expected dollars an hour"),
        (["--dollars-per-hour", "0"], "expected dollars an hour"),
        (["--dollars-per-hour", "nan"], "expected dollars an hour"),
        (["--objective", "samples_per_dollar"], "pass --dollars-per-hour"),
        (["--at-least", "0.95"], "pass --objective samples_per_joule"),
        (["--objective", "samples_per_joule", "--at-least", "2"], "--at-least: expected"),
        (["--machine-name", "x" * 61], "60 characters at most"),
    ],
)
def test_what_is_out_of_range_is_refused_in_one_sentence(arguments: list[str], words: str) -> None:
    """At once, with status 2, before the model is even looked for; a sentence is no page."""
    began = time.monotonic()
    result = CliRunner().invoke(app, ["--model", "nowhere:build", *arguments])
    told = " ".join(result.output.split())
    assert result.exit_code == 2, told
    assert words in told
    assert len(told) < 400
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (options.parse_effective_batch, "free", "free"),
        (options.parse_effective_batch, "2147483647", 2**31 - 1),
        (lambda text: options.parse_whole("--seed", text, 0, options.MOST_SEED), "4294967295", 2**32 - 1),
        (lambda text: options.parse_share("--memory-target", text, options.LEAST_MEMORY), "1%", 0.01),
        (lambda text: options.parse_pins([text]), "num_workers=4096", {"num_workers": 4096}),
        (lambda text: options.parse_pins([text]), "compile_mode=none", {"compile_mode": None}),
        (options.parse_dollars, "$2.49", 2.49),
        (options.parse_samples, "90M", 90_000_000),
        (options.parse_samples, "1.2e9", 1_200_000_000),
        (lambda text: len(options.parse_values("x", text)), ",".join(map(str, range(64))), 64),
    ],
)
def test_the_ends_of_a_range_are_in_it(parse: Callable[[str], Any], text: str, value: object) -> None:
    """What is absurd begins beyond."""
    assert parse(text) == value


def test_a_workloads_own_effective_batch_has_the_same_range() -> None:
    """It comes from the user's build(), not from an option, and its divisors would take as long to find."""
    with pytest.raises(ConfigError, match="expected 1 to 2147483647"):
        check_constraints({}, (), None, (2**31 - 1) ** 2, {})


def test_a_name_that_is_no_option_is_cut_to_a_sentence() -> None:
    """Whatever is typed is shown, but not thousands of characters of it."""
    with pytest.raises(UsageError) as caught:
        options.one_of("--sampler", "x" * 5000, options.SAMPLERS)
    assert len(str(caught.value)) < 200
