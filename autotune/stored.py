"""The base of every record in a file: frozen, its text writable, its figures within a range.

A file may come from anywhere. A figure outside its range is refused when the file is read, so that no calculation
overflows. The ranges are far beyond any machine's figures, and within the numbers that a double and JSON hold exactly.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, model_validator

from autotune.units import LEAST_DOLLARS, MOST_DOLLARS

Whole = Annotated[int, Field(ge=0, le=2**53)]
"""A count, or a size in bytes: JSON's numbers are exact up to there."""
Figure = Annotated[float, Field(ge=0, le=1e24)]
"""A rate, a ratio, a power: even the operations per second of a whole cluster are fewer."""
Seconds = Annotated[float, Field(ge=0, le=1e9)]
"""Up to thirty years."""
Dollars = Annotated[float, Field(ge=LEAST_DOLLARS, le=MOST_DOLLARS)]
"""Price of an hour of a machine."""
Share = Annotated[float, Field(ge=0, le=1)]
DeviceKind = Literal["cpu", "cuda", "rocm", "mps"]
CLEAN = {"text": "was read from UTF-8, and escapes nothing else"}
"""Validation context for text that needs no check: a thousand files are read in half the time."""
DEPTH = 2
"""Levels of containers in a field that may hold text: ``explored`` is a dict of tuples. Records clean their own."""


class Stored(BaseModel):
    """Base of all records in files. Ignores fields that newer versions add, and refuses NaN."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _writable(cls, data: Any, info: ValidationInfo) -> Any:
        """File names may hold bytes that are not UTF-8; unchanged, they could not be written at the end of a run."""
        return data if info.context is CLEAN else writable(data, DEPTH + 1)


def writable(value: Any, depth: int = 0) -> Any:
    r"""Text with lone surrogates spelled out (``caf\udce9``), also in plain containers down to `depth`."""
    if type(value) is str:
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if depth and type(value) is dict:
        return {writable(key): writable(inner, depth - 1) for key, inner in value.items()}
    if depth and type(value) in {list, tuple}:
        return type(value)(writable(inner, depth - 1) for inner in value)
    return value
