"""The page of faults says what the tests do."""

from __future__ import annotations

from tests.faults import table


def test_the_page_is_up_to_date() -> None:
    """A fault that is added, dropped or changed shows in README.md."""
    assert table.README.read_text(encoding="utf-8") == table.markdown(), "run python -m tests.faults.table"


def test_no_fault_is_listed_twice() -> None:
    """Each row stands for a behaviour of its own."""
    rows = [(title, row.what) for title, rows in table.sections().items() for row in rows]
    assert len(rows) >= 40
    assert len(set(rows)) == len(rows)
