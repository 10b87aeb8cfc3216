"""A result that was just found, and where it lies: in a notebook it shows itself as the report's first screen."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr

from autotune.report import render_first_screen
from autotune.results import summary
from autotune.results.result import Result

_LEAST_REM, _ROW_REM, _MOST_SHARE = 40.0, 2.4, "85vh"
"""Of the frame that it is shown in: what the answer and the figures need, each changed knob's row, and most of a
window. What is higher can be scrolled."""


class SavedResult(Result):
    """A result, and where it was saved."""

    _path: Path | None = PrivateAttr(None)
    _page: Path | None = PrivateAttr(None)

    @classmethod
    def of(cls, result: Result, path: Path | None, page: Path | None) -> SavedResult:
        """The same result with its places."""
        saved = cls.model_construct(**dict(result))
        saved._path, saved._page = path, page
        return saved

    @property
    def path(self) -> Path | None:
        """The result file, for `autotune.load`; None where none could be written."""
        return self._path

    @property
    def page(self) -> Path | None:
        """The report; None where there is none."""
        return self._page

    def __repr__(self) -> str:
        """The answer and its place, in one line."""
        found = summary.verdict(self)
        partial = ", partial" if self.status == "partial" else ""
        place = self._path if self._path is not None else "not saved"
        return f"<autotune result{partial}: {summary.title(self)}: {found.words}: {found.reason}; {place}>"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """The report's first screen, in a frame of its own: its style and the notebook's do not meet."""
        height = _LEAST_REM + _ROW_REM * len(self.changed_knobs)
        style = f"width: 100%; height: {height:.0f}rem; max-height: {_MOST_SHARE}; border: 0"
        document = escape(render_first_screen(self), quote=True)
        return f'<iframe sandbox srcdoc="{document}" style="{style}" title="autotune report"></iframe>'

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """For whoever shows HTML, and for whoever does not."""
        return {"text/html": self._repr_html_(), "text/plain": repr(self)}
