"""What every record in a file has in common: frozen, its text writable, its figures within a range.

A file may come from anywhere: a figure outside its range is refused where the file is read, so that nothing that is
derived from it overflows. The ranges are far beyond any machine's, and within what a double and JSON hold exactly.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, model_validator

from autotune.units import LEAST_DOLLARS, MOST_DOLLARS

Whole = Annotated[int, Field(ge=0, le=2**53)]
"""A count, or a size in bytes: JSON's numbers are exact up to there."""
Figure = Annotated[float, Field(ge=0, le=1e24)]
"""A rate, a ratio, a power: even operations per second of a whole cluster stay below."""
Seconds = Annotated[float, Field(ge=0, le=1e9)]
"""Thirty years."""
Dollars = Annotated[float, Field(ge=LEAST_DOLLARS, le=MOST_DOLLARS)]
"""What an hour of a machine costs."""
Share = Annotated[float, Field(ge=0, le=1)]
CLEAN = {"text": "was read from UTF-8, and escapes nothing else"}
"""The context of a validation whose text needs no look: a thousand files are read in half the time."""
DEPTH = 2
"""Containers within a record's field that may hold text: ``explored`` is a dict of tuples. Records clean their own."""


class Stored(BaseModel):
    """Base of all records that are kept in files; what newer versions add is ignored, NaN is refused."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _writable(cls, data: Any, info: ValidationInfo) -> Any:
        """Names of files may hold bytes that are no UTF-8: as text, they could not be written when all is done."""
        return data if info.context is CLEAN else writable(data, DEPTH + 1)


def writable(value: Any, depth: int = 0) -> Any:
    r"""Text with lone surrogates spelled out (``caf\udce9``), also inside of plain containers down to a depth."""
    if type(value) is str:
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if depth and type(value) is dict:
        return {writable(key): writable(inner, depth - 1) for key, inner in value.items()}
    if depth and type(value) in {list, tuple}:
        return type(value)(writable(inner, depth - 1) for inner in value)
    return value
