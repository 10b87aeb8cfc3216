"""A new result and its file; a notebook shows it as the report's first screen."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr

from autotune.report import render_first_screen
from autotune.results import summary
from autotune.results.result import Result

_LEAST_REM, _ROW_REM, _MOST_SHARE = 52.0, 2.4, "85vh"
"""Height of the notebook's frame: for the answer and the figures, for each changed knob, and at most. A higher page
scrolls."""


class SavedResult(Result):
    """A result, its file and its report."""

    _path: Path | None = PrivateAttr(None)
    _page: Path | None = PrivateAttr(None)

    @classmethod
    def of(cls, result: Result, path: Path | None, page: Path | None) -> SavedResult:
        """The result with its paths."""
        saved = cls.model_construct(**dict(result))
        saved._path, saved._page = path, page
        return saved

    @property
    def path(self) -> Path | None:
        """The result file, for `autotune.load`; None if it could not be written."""
        return self._path

    @property
    def page(self) -> Path | None:
        """The report; None if there is none."""
        return self._page

    def __repr__(self) -> str:
        """The answer and the path of the file, in one line."""
        verdict = summary.verdict(self)
        partial = ", partial" if self.status == "partial" else ""
        place = self._path if self._path is not None else "not saved"
        return f"<autotune result{partial}: {summary.title(self)}: {verdict.words}: {verdict.reason}; {place}>"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """The report's first screen in its own frame, so that its style and the notebook's stay separate."""
        height = _LEAST_REM + _ROW_REM * len(self.changed_knobs)
        style = f"width: 100%; height: {height:.0f}rem; max-height: {_MOST_SHARE}; border: 0"
        document = escape(render_first_screen(self, self._path), quote=True)
        return f'<iframe sandbox srcdoc="{document}" style="{style}" title="autotune report"></iframe>'

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """HTML for notebooks, and plain text for other frontends."""
        return {"text/html": self._repr_html_(), "text/plain": repr(self)}
