"""A result that shows itself: in a line, and as the report's first screen."""

from __future__ import annotations

from html import unescape
from pathlib import Path

from autotune.report import render_report
from autotune.report.saved import SavedResult
from autotune.results.files import to_json
from autotune.results.result import Result
from tests.factories import make_result
from tests.report.pages import Page


def test_it_is_the_same_result() -> None:
    """Every field of it, and where it was saved."""
    result = make_result()
    saved = SavedResult.of(result, Path("a.json"), Path("a.html"))
    assert isinstance(saved, Result)
    assert to_json(saved) == to_json(result)
    assert (saved.path, saved.page) == (Path("a.json"), Path("a.html"))


def test_a_line_says_the_answer_and_the_place() -> None:
    """In a prompt, and in a log."""
    text = repr(SavedResult.of(make_result(), Path("a.json"), None))
    assert "\n" not in text
    assert "confirmed speed-up: 1.50× (95 % interval 1.47 – 1.53" in text
    assert text.endswith("; a.json>")
    assert "not saved" in repr(SavedResult.of(make_result(), None, None))


def test_the_first_screen_is_the_reports() -> None:
    """Headline and figures are word by word those of the page; the rest is left to it."""
    result = make_result()
    frame = Page(SavedResult.of(result, None, None)._repr_html_())
    (document,) = [attributes["srcdoc"] or "" for tag, attributes in frame.tags if tag == "iframe"]
    screen, whole = Page(document), Page(render_report(result))
    assert screen.problems == []
    answers, figures = screen.text[screen.text.index("1.50×") :].split("Before and after", 1)
    assert "confirmed speed-up" in answers
    assert answers in whole.text
    assert figures[: figures.index("Every knob")] in whole.text
    assert "autotune report" in screen.text
    assert "Raw data" not in screen.text
    assert unescape(document).count("<script") == 0
