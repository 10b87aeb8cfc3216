"""Units as people type them, and as they read them."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import UsageError
from autotune.units import LONGEST_SECONDS, format_bytes, format_rate, format_seconds, parse_duration, parse_fraction


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("1.5m", 90),
        ("10min", 600),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        (" 2 H ", 7200),
        ("250ms", 0.25),
        ("1d", 86400),
    ],
)
def test_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    """Durations come in the units people write, in any case, with spaces where they like."""
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "m", "0", "0s", "-5m", "1h-30m", "1 30", "1h30", "ten", "inf", "nan", "1..5s"])
def test_duration_that_is_none_is_refused(text: str) -> None:
    """What is no positive duration is refused, and the message echoes it."""
    with pytest.raises(UsageError) as caught:
        parse_duration(text)
    assert repr(text) in str(caught.value)


def test_duration_with_an_unknown_unit_names_the_unit() -> None:
    """A mistyped unit is told apart from a mistyped number."""
    with pytest.raises(UsageError, match="unknown unit 'w'"):
        parse_duration("2w")


@pytest.mark.parametrize("text", ["31d", "9999999999h", "9" * 400, "9" * 5000 + "s"])
def test_a_duration_of_more_than_a_month_is_refused(text: str) -> None:
    """In a sentence of readable length: what is long is cut."""
    with pytest.raises(UsageError, match="of 30d at most") as caught:
        parse_duration(text)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(("text", "fraction"), [("0.9", 0.9), ("90%", 0.9), ("1", 1.0), (" 100 % ", 1.0)])
def test_fraction_is_read_as_number_or_per_cent(text: str, fraction: float) -> None:
    """Both ways of writing a share mean the same."""
    assert parse_fraction(text) == pytest.approx(fraction)


@pytest.mark.parametrize("text", ["", "%", "0", "0%", "1.01", "90", "101%", "-0.5", "nan", "inf", "half"])
def test_fraction_outside_of_its_range_is_refused(text: str) -> None:
    """A share of nothing, of more than all, or of no number is refused, and the message echoes it."""
    with pytest.raises(UsageError) as caught:
        parse_fraction(text)
    assert repr(text) in str(caught.value)


@given(st.text() | st.from_regex(r"[0-9.]{1,20} ?[a-zA-Z%]{0,3}[0-9]{0,400}[a-z]?"))
def test_no_text_makes_a_parser_fail_in_another_way(text: str) -> None:
    """Whatever is typed gives a figure in its range or an AutotuneError."""
    for parse, largest in ((parse_duration, LONGEST_SECONDS), (parse_fraction, 1.0)):
        value = 0.0
        with contextlib.suppress(UsageError):
            value = parse(text)
        assert 0 <= value <= largest
        assert math.isfinite(value)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1.5 * 2**30, "1.50 GiB"),
        (99.96 * 2**20, "100 MiB"),
        (1000 * 2**20, "1000 MiB"),
        (1023.9 * 2**20, "1.00 GiB"),
        (5 * 2**40, "5.00 TiB"),
        (-3 * 2**20, "-3.00 MiB"),
    ],
)
def test_bytes_are_shown_with_three_digits(size: float, text: str) -> None:
    """Sizes are short, and the unit changes before four digits would round to 1024."""
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.85, "850 ms"),
        (0.9996, "1 s"),
        (12.34, "12.3 s"),
        (59.96, "1 m 00 s"),
        (245, "4 m 05 s"),
        (3599.6, "1 h 00 m"),
        (7800, "2 h 10 m"),
        (math.inf, "inf s"),
    ],
)
def test_seconds_are_shown_as_a_person_says_them(seconds: float, text: str) -> None:
    """Durations change their unit with their size, and never show 60 seconds or 60 minutes."""
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (0, "0 samples/s"),
        (1.25, "1.25 samples/s"),
        (99.96, "100 samples/s"),
        (999.6, "1,000 samples/s"),
        (12_345, "12,300 samples/s"),
        (math.inf, "inf samples/s"),
    ],
)
def test_rates_are_shown_with_three_digits(rate: float, text: str) -> None:
    """Rates show no digits that a measurement does not hold."""
    assert format_rate(rate) == text


@given(st.floats(min_value=0, allow_nan=False))
def test_every_figure_can_be_shown_without_an_exponent_in_bytes(figure: float) -> None:
    """Formatting never fails, and a size is never in the notation of scientists."""
    assert format_seconds(figure)
    assert format_rate(figure)
    assert "e+" not in format_bytes(figure)


@given(st.floats(min_value=1, max_value=1e9))
def test_shown_bytes_are_nearly_the_size(size: float) -> None:
    """Number times unit is what was to be shown."""
    number, unit = format_bytes(size).split()
    factor = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]
    assert float(number) * factor == pytest.approx(size, rel=0.01, abs=0.5)
