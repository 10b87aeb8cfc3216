"""From what was typed to what is meant: the values of options, and an error for each that cannot be meant."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from autotune.errors import UsageError

if TYPE_CHECKING:
    from autotune.hardware.model import DeviceKind
    from autotune.knobs.config import Scalar

SAMPLERS = ("tpe", "gp", "random")
COMPARISON_FORMATS = ("table", "md", "csv", "json", "html")


def parse_device(text: str) -> DeviceKind | None:
    """A device kind; None for an empty text."""
    from autotune.hardware.model import DeviceKind

    return one_of("--device", text, get_args(DeviceKind)) if text else None  # type: ignore[return-value]


def parse_comparison_format(text: str, out: Path | None, *, json: bool) -> str:
    """One of `COMPARISON_FORMATS`; for an empty text, the one that a file's ending names, a table without a file."""
    if json and text not in {"", "json"}:
        raise UsageError(f"--json and --format {text} contradict each other; give one of them")
    if json:
        chosen = "json"
    elif text:
        chosen = one_of("--format", text, COMPARISON_FORMATS)
    else:
        chosen = out.suffix.lstrip(".") if out is not None else "table"
    if out is not None and chosen not in COMPARISON_FORMATS[1:]:
        raise UsageError(
            f"--out expects a file that ends in .md, .csv, .json or .html, or one of these as --format, but {out} came"
        )
    return chosen


def parse_effective_batch(text: str) -> int | str | None:
    """A number, ``free``, or None for an empty text."""
    if text in {"", "free"}:
        return text or None
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"--effective-batch expects a whole number above 0, or 'free', but {text!r} came")
    return int(text)


def parse_only(text: str) -> tuple[str, ...] | None:
    """Knob names; None for an empty text."""
    from autotune.knobs.config import KNOB_NAMES, unknown_knob

    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if unknown := [name for name in names if name not in KNOB_NAMES]:
        raise UsageError(f"--only: {unknown_knob(unknown[0])}")
    return names or None


def parse_values(name: str, text: str) -> tuple[Scalar, ...]:
    """The values of ``--explore name=a,b``."""
    from autotune.knobs.config import parse_scalar

    values = tuple(dict.fromkeys(parse_scalar(part) for part in text.split(",") if part.strip()))
    if not values:
        raise UsageError(f"--explore {name}= expects values separated by commas, such as {name}=256,384")
    return values


def split_pairs(option: str, texts: Iterable[str]) -> list[tuple[str, str]]:
    """The two sides of each ``name=value``."""
    pairs = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name.strip() and equals and value.strip()):
            raise UsageError(f"{option} expects name=value, but {text!r} came")
        pairs.append((name.strip(), value.strip()))
    return pairs


def one_of(option: str, text: str, allowed: Iterable[str]) -> str:
    """The text, when it is one of the allowed words."""
    if text not in tuple(allowed):
        raise UsageError(f"{option} expects one of {', '.join(allowed)}, but {text!r} came")
    return text
