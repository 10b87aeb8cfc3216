"""Turns blocks into one HTML file: escaped, self-contained, and small even for a large result."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from autotune.report.blocks import Download, Filter, Headline, Section, Text
from autotune.units import format_bytes
from autotune.wording import spelled

MOST_BYTES = 2_000_000
"""Most bytes of a page: a larger one is hard to mail, and slow on a phone. Not tuned."""
_BASE64_GROWTH = 4 / 3
"""Characters of base64 for each byte."""
_WEIGHT = "@@weight@@"


class RawData(NamedTuple):
    """The JSON from which a page was made: a file name for saving it, and words for where else it is."""

    name: str
    text: str
    place: str


class Page(NamedTuple):
    """The content of a page."""

    title: str
    heading: str
    about: tuple[str, ...]  # lines below the heading
    sections: Sequence[Section]
    raw: RawData | None  # attached in the last section; None for a first screen, which is part of another page
    warning: str | None = None  # at the top
    headline: Headline | None = None  # the answer; None if there is no single one
    answers: Sequence[Section] = ()  # short sections that share the first screen with the headline
    filters: Sequence[Filter] = ()  # boxes that select what the page shows


class _Detail(NamedTuple):
    """Level of detail: most rows of a table, most characters of a text, and whether the raw data is attached."""

    rows: int
    characters: int
    raw_attached: bool = False


_DETAILS = (_Detail(2_000, 5_000, raw_attached=True), _Detail(2_000, 5_000), _Detail(500, 1_000), _Detail(50, 200))


def render(page: Page) -> str:
    """The page with as much detail as its size limit allows; the page itself notes what it leaves out."""
    html = ""
    for detail in _DETAILS:
        if detail.raw_attached and page.raw is not None and len(page.raw.text) * _BASE64_GROWTH > MOST_BYTES:
            continue  # it cannot fit, and a page of a thousand machines takes a second to make
        html = _render(page, detail)
        if len(html.encode()) < MOST_BYTES:
            break
    return html.replace(_WEIGHT, format_bytes(len(html.encode())))


def _render(page: Page, detail: _Detail) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def shown_as(value: Any) -> Any:
        """A text without control characters, shortened to the level of detail; escaping follows."""
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
    environment.filters["trusted"] = Markup  # for our own SVG, style and base64
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
