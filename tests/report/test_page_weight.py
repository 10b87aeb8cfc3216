"""A page stays light: what does not fit is left out, and is not even rendered where it never could fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.report import page, render_report
from autotune.report.page import MOST_BYTES
from tests.report.samples import full_result, trial


@pytest.mark.parametrize(
    ("bursts", "reason", "told"),
    [
        (1_500, "r" * 60, "Save big.json"),
        (3_000, "r" * 2_000, "too much for a page that stays under 2 MB: they are in big.json."),
        (60, "r" * 100_000, "… (100,009 characters)"),
    ],
)
def test_page_stays_light_whatever_the_results_size(bursts: int, reason: str, told: str) -> None:
    """What does not fit is left out, and the page says where it is."""
    result = full_result(trials=tuple(trial(1000.0 + number, reason=reason) for number in range(bursts)))
    html = render_report(result, Path("big.json"))
    assert len(html.encode()) < MOST_BYTES
    assert told in html


def test_raw_data_that_cannot_fit_are_not_even_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of a thousand machines takes a second to make: it is made once."""
    tried: list[bool] = []
    real = page._render

    def counted(made: page.Page, detail: page._Detail) -> str:
        tried.append(detail.raw_attached)
        return real(made, detail)

    monkeypatch.setattr(page, "_render", counted)
    raw = page.RawData("big.json", "x" * MOST_BYTES, "big.json")
    assert "they are in big.json" in page.render(page.Page("t", "h", (), (), raw))
    assert tried == [False]
