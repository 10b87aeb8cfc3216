"""Turns blocks into one HTML file: escaped, self-contained, and light whatever the result's size."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from autotune.report.blocks import Download, Headline, Section, Text
from autotune.units import format_bytes
from autotune.wording import spelled

MOST_BYTES = 2_000_000
"""A page that is heavier cannot be mailed, and is slow on a phone."""
_BASE64_GROWTH = 4 / 3
"""Characters of base64 for each byte."""
_WEIGHT = "@@weight@@"


class RawData(NamedTuple):
    """The JSON that a page was made from: a name to save it by, and in words where else it is."""

    name: str
    text: str
    place: str


class Page(NamedTuple):
    """Everything that is on a page.

    Attributes:
        about: Lines below the heading.
        raw: The data, attached in the last section; None on a first screen, which stands in somebody else's page.
        warning: What to know before all else.
        headline: The answer; None where there is no single one.
    """

    title: str
    heading: str
    about: tuple[str, ...]
    sections: Sequence[Section]
    raw: RawData | None
    warning: str | None = None
    headline: Headline | None = None


class _Detail(NamedTuple):
    """How much of everything there is: rows of a table, characters of a text, and whether the raw data."""

    rows: int
    characters: int
    raw_attached: bool = False


_DETAILS = (_Detail(2_000, 5_000, raw_attached=True), _Detail(2_000, 5_000), _Detail(500, 1_000), _Detail(50, 200))


def render(page: Page) -> str:
    """The page with as much detail as its weight allows; what is left out is told on it."""
    html = ""
    for detail in _DETAILS:
        if detail.raw_attached and page.raw is not None and len(page.raw.text) * _BASE64_GROWTH > MOST_BYTES:
            continue  # it cannot fit, and a thousand machines' page takes a second to make
        html = _render(page, detail)
        if len(html.encode()) < MOST_BYTES:
            break
    return html.replace(_WEIGHT, format_bytes(len(html.encode())))


def _render(page: Page, detail: _Detail) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def shown_as(value: Any) -> Any:
        """A text without control characters, and not longer than a reader can take; escaping comes after this."""
        if not isinstance(value, str) or isinstance(value, Markup):
            return value
        cut = len(value) > detail.characters
        shown = f"{value[: detail.characters]}… ({len(value):,} characters)" if cut else value
        return spelled(shown)

    environment = Environment(
        loader=PackageLoader("autotune.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown_as,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["trusted"] = Markup  # for what is made here: SVG, style, base64
    environment.filters["kind"] = lambda block: type(block).__name__.lower()
    environment.globals["most_rows"] = detail.rows
    return environment.get_template("page.html.jinja").render(
        page=page,
        sections=[*page.sections, *([_raw_section(page.raw, detail)] if page.raw is not None else [])],
        style=files("autotune.report").joinpath("style.css").read_text(encoding="utf-8"),
        weight=_WEIGHT,
    )


def _raw_section(raw: RawData, detail: _Detail) -> Section:
    size = format_bytes(len(raw.text.encode(errors="replace")))
    if not detail.raw_attached:
        missing = f"The data take {size}, too much for a page that stays under 2 MB: they are in {raw.place}."
        return Section("raw", "Raw data", "Raw data", (Text(missing),))
    uri = f"data:application/json;base64,{base64.b64encode(raw.text.encode(errors='replace')).decode()}"
    return Section("raw", "Raw data", "Raw data", (Download(raw.name, uri, f"Save {raw.name} ({size})"),))
