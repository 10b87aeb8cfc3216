"""The places in a script's own files that set what was tuned, so that they can be changed there."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from autotune.secrets import masked_command
from autotune.stored import Stored, Whole

Words = Annotated[tuple[str, ...], AfterValidator(masked_command)]
"""A command, or part of one, without its secrets."""
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Site(Stored):
    """A call in one of the script's files."""

    file: str
    line: Whole
    end: tuple[Whole, Whole] | None = Field(
        default=None, description="its last line, and the column behind it in bytes of UTF-8; null before Python 3.11"
    )
    kind: str | None = Field(default=None, description="the class that it creates")
    parameters: tuple[str, ...] = Field(default=(), description="its positional arguments")
    accepts: tuple[str, ...] | None = Field(default=None, description="its keyword arguments; null: any")
    shared: bool = Field(default=False, description="it creates other loaders too")


class SourceRecord(Stored):
    """The files of a script, as they were when it was measured."""

    main: str | None = Field(description="the file that was run, relative to autotune's folder; null: none of yours")
    folder: str = Field(description="where the script ran, relative to autotune's folder")
    argv: Words = Field(default=(), description="the words that the file was run with")
    files: dict[str, Sha256] = Field(default_factory=dict, description="hash of each file that is named here")
    loaders: tuple[Site | None, ...] = Field(
        default=(), description="those that feed training; null: created elsewhere"
    )
    optimizers: tuple[Site | None, ...] = ()
    may_change_data: bool = Field(default=False, description="the script seems to change its data between epochs")
    has_autotune: bool = Field(default=False, description="the script's interpreter can import autotune")
