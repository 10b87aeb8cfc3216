"""Parses what users type, such as "10m" and "90%", and formats what they read, such as "12.0 GiB"."""

from __future__ import annotations

import math
import re
import sys

from autotune.errors import UsageError

_DURATION_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
LONGEST_SECONDS = 30 * 86400.0
"""A month. A longer duration is a typing mistake, and above 292 years the system's own timeouts overflow."""
LEAST_DOLLARS, MOST_DOLLARS = 1e-6, 1e6
"""Limits for the price of an hour of a machine."""
_SHOWN_CHARACTERS = 40
_NUMBER_WITH_UNIT = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII)


def parse_duration(text: str) -> float:
    """Seconds in a duration such as ``90s``, ``10m``, ``1h30m``; a bare number means seconds.

    Raises:
        UsageError: When the text is no duration above zero and of a month at most.
    """
    parts = _NUMBER_WITH_UNIT.findall(text.strip().lower())
    rebuilt = "".join(number + unit for number, unit in parts)
    units = [unit or "s" for _, unit in parts]
    bare_among_several = len(parts) > 1 and any(unit == "" for _, unit in parts)
    if not parts or rebuilt != "".join(text.lower().split()) or bare_among_several:
        raise UsageError(f"expected a duration such as 90s, 10m or 1h30m, got {quoted(text)}; pass one")
    if unknown := [unit for unit in units if unit not in _DURATION_SECONDS]:
        raise UsageError(f"the duration {quoted(text)} has the unknown unit {quoted(unknown[0])}; use s, m, h or d")
    numbers = [float(number) for number, _ in parts]
    seconds = sum(number * _DURATION_SECONDS[unit] for number, unit in zip(numbers, units, strict=True))
    if not 0 < seconds <= LONGEST_SECONDS:
        raise UsageError(f"expected a duration above zero and of 30d at most, got {quoted(text)}; use one such as 10m")
    return seconds


def parse_fraction(text: str) -> float:
    """A fraction in (0, 1] written as ``0.9`` or ``90%``.

    Raises:
        UsageError: When the text is no number, or lies outside (0, 1].
    """
    stripped = text.strip()
    try:
        value = float(stripped[:-1]) / 100 if stripped.endswith("%") else float(stripped)
    except ValueError:
        raise UsageError(f"expected a fraction such as 0.9 or 90%, got {quoted(text)}; pass one") from None
    if not 0 < value <= 1:
        raise UsageError(f"expected a fraction above 0 and at most 1 (100%), got {quoted(text)}; pass one such as 0.9")
    return value


def quoted(text: str) -> str:
    """The text in quotation marks; only its beginning if it is too long for a sentence."""
    return repr(text) if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]!r}… ({len(text):,} characters)"


def format_bytes(size: float) -> str:
    """A size with three digits and a binary unit: ``1.50 GiB``; below one unit of the next, ``1000 MiB``."""
    # A broken file may hold integers that are too large to divide.
    size = min(max(size, -sys.float_info.max), sys.float_info.max)
    for unit in ("B", "KiB", "MiB", "GiB"):
        # A size that rounds to 1024 belongs to the next unit.
        if abs(size) < 1023.5:
            return f"{size:.0f} B" if unit == "B" else f"{_three_digits(size)} {unit}"
        size /= 1024
    return f"{_three_digits(size)} TiB"


def _three_digits(number: float) -> str:
    """Three significant digits with trailing zeros and without an exponent: ``1.50``, ``12.0``, ``1000``."""
    return f"{number:.0f}" if abs(number) >= 99.95 else f"{number:#.3g}"


def format_seconds(seconds: float) -> str:
    """A duration for people: ``850 ms``, ``12.3 s``, ``4 m 05 s``, ``2 h 10 m``."""
    if not math.isfinite(seconds):
        return f"{seconds} s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} m"


def format_flops(flops_per_second: float) -> str:
    """Floating-point operations a second: ``312 TFLOP/s``, ``41.2 GFLOP/s`` or ``0.59 MFLOP/s``."""
    scales = ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s"))
    scale, unit = next((entry for entry in scales if flops_per_second >= entry[0]), scales[-1])
    return f"{flops_per_second / scale:,.4g} {unit}"


def format_rate(samples_per_second: float) -> str:
    """A rate with three significant digits: ``12,300 samples/s`` or ``1.25 samples/s``."""
    return f"{rounded(samples_per_second)} samples/s"


def rounded(number: float) -> str:
    """Three significant digits: ``12,300`` or ``1.25``."""
    if number < 100 or not math.isfinite(number):
        return f"{number:.3g}"
    return f"{float(f'{number:.3g}'):,.0f}"
