"""Reads and writes all files that autotune keeps, with an error for each kind of failure.

A newer autotune may add fields and knobs: the reader ignores them, and reports that. Where that would mislead, the
newer autotune raises the schema's version instead. The reader refuses a file with another version of the schema.
"""

from __future__ import annotations

import functools
import json
import os
import re
import secrets
import stat
import tempfile
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError
from pydantic_core import PydanticSerializationError, from_json

from autotune import __version__
from autotune.errors import ResultFileError
from autotune.files import write_whole
from autotune.secrets import masked_data, may_hold_secret
from autotune.stored import CLEAN, Stored
from autotune.units import format_bytes

MOST_BYTES = 32 * 2**20
"""Largest file to read. A day of bursts of three seconds each makes 29,000 records of some 600 bytes, 17 MB."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""JSON escapes of surrogates, which UTF-8 cannot hold."""
MOST_NAMED = 8
"""Ignored fields that a message names; it counts the rest."""


class OtherKindError(ResultFileError):
    """A file of autotune of another kind; gathering results from a folder skips it."""


class Document(Stored):
    """The whole content of a file.

    Attributes:
        SCHEMA: Name and version of the format, as in the file's field "schema".
        NOUN: The file's name in messages.
        REMEDY: How to get a new one.
    """

    SCHEMA: ClassVar[str]
    NOUN: ClassVar[str]
    REMEDY: ClassVar[str]

    model_config = ConfigDict(populate_by_name=True)
    _ignored: str | None = PrivateAttr(None)

    @property
    def ignored(self) -> str | None:
        """A sentence that names the ignored fields; None without any."""
        return self._ignored


Kind = TypeVar("Kind", bound=Document)


def read_document(path: Path | str, *kinds: type[Kind]) -> Kind:
    """Reads a file.

    Args:
        path: The file.
        kinds: Kinds of document that it may hold; its schema decides.

    Raises:
        ResultFileError: The file is missing, no regular file, too large, unreadable, not JSON, of another schema or
            invalid.
    """
    noun = kinds[0].NOUN
    if not isinstance(path, (str, os.PathLike)):
        raise ResultFileError(f"expected the path of a {noun}, got {path!r:.60}; pass one: ls results/*")
    path = Path(path)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait
            raise ResultFileError(
                f"{path} cannot be read: expected a regular file, got a folder, pipe or device; name a {noun}: "
                "ls results/*"
            )
        if status.st_size > MOST_BYTES:
            raise ResultFileError(
                f"{path} cannot be read: it has {format_bytes(status.st_size)}, and autotune reads "
                f"{format_bytes(MOST_BYTES)} at most; name another {noun}: ls results/*"
            )
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ResultFileError(f"expected a {noun} at {path}, but there is none; name another: ls results/*") from None
    except UnicodeDecodeError:
        raise ResultFileError(f"{path} is not a {noun}: it is not text in UTF-8; {_named(noun)}") from None
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or no possible path
        raise ResultFileError(
            f"{path} cannot be read: {_plainly(error)}; check its permissions, or {kinds[0].REMEDY}"
        ) from None
    try:
        data = _decoded(text)
    except (ValueError, RecursionError) as error:
        raise ResultFileError(f"{path} is not a {noun}: it is not valid JSON ({error}); {_named(noun)}") from None
    return parse_document(data, str(path), *kinds, clean="\\u" not in text or _SURROGATE.search(text) is None)


def _named(noun: str) -> str:
    """The remedy where a file of another kind was named."""
    return f"name a {noun}: ls results/*"


def _plainly(error: OSError | ValueError) -> str:
    """Why a file cannot be read, without Python's own words."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def parse_document(data: Any, origin: str, *kinds: type[Kind], clean: bool = False) -> Kind:
    """Validates decoded JSON; `origin` names it in errors; `clean` text can be written unchanged.

    Raises:
        ResultFileError: The JSON is of another schema or invalid.
    """
    kind = _kind_of(data, origin, kinds)
    try:
        record = kind.model_validate(data, context=CLEAN if clean else None)
    except ValidationError as error:
        raise _refused(error, data, origin, kind) from None
    names = list(dict.fromkeys(_unknown(data, record)))
    if names:
        rest = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        record._ignored = f"ignored, since this autotune does not know it: {', '.join(names[:MOST_NAMED])}{rest}"
    return record


def to_json(record: BaseModel) -> str:
    """A record as JSON, its secrets hidden; unchecked values that JSON lacks are written as text."""
    try:
        text = record.model_dump_json(by_alias=True, indent=2)
    except (PydanticSerializationError, ValueError):
        text = json.dumps(record.model_dump(by_alias=True), default=str, indent=2)
    return json.dumps(masked_data(json.loads(text)), ensure_ascii=False, indent=2) if may_hold_secret(text) else text


def write_document(record: Document, path: Path) -> None:
    """Writes a file whole or not at all.

    Raises:
        ResultFileError: The file cannot be written, or would be too large to read; nothing of it remains.
    """
    content = _content(record)
    if len(content) > MOST_BYTES:
        raise ResultFileError(
            f"the {record.NOUN} is not written to {path}: it has {format_bytes(len(content))}, and no command reads "
            f"more than {format_bytes(MOST_BYTES)}; {record.REMEDY}"
        )
    try:
        write_whole(path, content)
    except OSError as error:
        raise ResultFileError(
            f"the {record.NOUN} could not be written to {path}: {error.strerror or error}; "
            "choose another place with --out"
        ) from error


def _content(record: Document) -> bytes:
    return (to_json(record) + "\n").encode()


def keep_document(record: Document, path: Path) -> tuple[Path | None, ResultFileError | None]:
    """Writes the file; where that fails, into the temporary folder, so that a full disk does not lose hours of search.

    Returns:
        The path of the written file, None when both places failed; and the error at the requested place, if any.
    """
    try:
        write_document(record, path)
    except ResultFileError as error:
        failure = error
    except Exception as error:  # noqa: BLE001 - no error may lose the search
        failure = ResultFileError(f"the {record.NOUN} could not be written to {path}: {type(error).__name__}: {error}")
    else:
        return path, None
    try:
        stem = path.stem.encode("ascii", "ignore").decode()  # the name itself may be the problem
        place = Path(tempfile.gettempdir()) / f"autotune-result-{stem}-{secrets.token_hex(4)}.json"
        write_whole(place, _content(record))  # even if it is too large
    except Exception:  # noqa: BLE001 - there may be no temporary folder
        return None, failure
    return place, ResultFileError(f"{failure}; until then it lies in {place}")


def _decoded(text: str) -> Any:
    """Decodes JSON; Python's own reader takes what the faster one refuses, such as half of a surrogate pair.

    Raises:
        ValueError, RecursionError: The text is not JSON, or nested too deeply. Python's own reader words the error.
    """
    try:
        return from_json(text)
    except ValueError:
        return json.loads(text)


def _kind_of(data: Any, origin: str, kinds: tuple[type[Kind], ...]) -> type[Kind]:
    """The kind of document in decoded JSON.

    Raises:
        OtherKindError: Another file of autotune.
        ResultFileError: A foreign file, or one of another version of the schema.
    """
    schema = data.get("schema") if isinstance(data, dict) else None
    family = schema.rpartition("/")[0] if isinstance(schema, str) else ""
    kind = next((kind for kind in kinds if kind.SCHEMA.rpartition("/")[0] == family), None)
    if kind is None and family.startswith("autotune."):
        raise OtherKindError(
            f'{origin} is not a {kinds[0].NOUN} of autotune, but another of its files: "schema" is {schema!r:.60}; '
            f"name a {kinds[0].NOUN}"
        )
    if kind is None:
        raise ResultFileError(
            f'{origin} is not a {kinds[0].NOUN} of autotune: expected "schema": "{kinds[0].SCHEMA}", '
            f"got {schema!r:.60}; name a file that autotune wrote"
        )
    if schema != kind.SCHEMA:
        raise ResultFileError(
            f"{origin} is a {kind.NOUN} of another autotune: expected the schema {kind.SCHEMA}, got {schema!r:.60}; "
            f"read it with the autotune that wrote it, or {kind.REMEDY}"
        )
    return kind


def _refused(error: ValidationError, data: dict[str, Any], origin: str, kind: type[Document]) -> ResultFileError:
    """An error for the first invalid field; a file of a newer autotune may still be right."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "its content"
    software = data.get("software")
    writer = software.get("autotune") if isinstance(software, dict) else None
    if isinstance(writer, str) and _release(writer) > _release(__version__):
        return ResultFileError(
            f"{origin} was written by a newer autotune ({writer}); this one ({__version__}) cannot read "
            f"{where}: {first['msg'].lower()}; upgrade autotune"
        )
    return ResultFileError(f"{origin} is broken: {where}: {first['msg'].lower()}; {kind.REMEDY}, or restore the file")


def _release(version: str) -> list[int]:
    """The numbers that a version begins with."""
    numbers = re.match(r"\d{1,9}(\.\d{1,9}){0,3}", version, re.ASCII)
    return [int(number) for number in numbers[0].split(".")] if numbers else []


@functools.cache
def _names(kind: type[BaseModel]) -> tuple[frozenset[str], dict[str, str]]:
    """The field names that a record may have in a file, and the attributes of those that hold records."""
    names = {field.alias or name: name for name, field in kind.model_fields.items()}
    nested = {key: name for key, name in names.items() if _holds_records(kind.model_fields[name].annotation)}
    return frozenset({*names, *kind.model_computed_fields}), nested


def _holds_records(hint: Any) -> bool:
    """Whether a field's type is a record, or contains one."""
    if get_origin(hint) is None:
        return isinstance(hint, type) and issubclass(hint, BaseModel)
    return any(map(_holds_records, get_args(hint)))


def _unknown(data: Any, model: Any, path: str = "") -> list[str]:
    """The fields of decoded JSON that the record lacks."""
    unknown: list[str] = []
    if isinstance(model, BaseModel) and isinstance(data, dict):
        names, nested = _names(type(model))
        if not nested and data.keys() <= names:  # as most are: a result has thousands of figures
            return unknown
        for key, value in data.items():
            if key not in names:
                unknown.append(f"{path}{key}")
            elif key in nested:
                unknown += _unknown(value, getattr(model, nested[key]), f"{path}{key}.")
    elif isinstance(model, tuple) and isinstance(data, list):
        for value, part in zip(data, model, strict=False):
            unknown += _unknown(value, part, path)
    return unknown
