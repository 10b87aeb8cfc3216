"""One reader and one writer for all files that autotune keeps, with an error for each way to fail.

A newer autotune may add fields and knobs: a reader ignores them, and says so. Where that would mislead, the newer
autotune raises the schema's version instead. A file of another version than today's is refused.
"""

from __future__ import annotations

import functools
import json
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
"""No result has more: a day of bursts that take three seconds each is 29,000 records of some 600 bytes, 17 MB."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""What JSON escapes that UTF-8 cannot hold by itself."""
MOST_NAMED = 8
"""Fields that are named as ignored; more are counted."""


class OtherKindError(ResultFileError):
    """A file of autotune's own, of another kind: what gathers results from a folder passes over it."""


class Document(Stored):
    """What a file holds as a whole.

    Attributes:
        SCHEMA: Its name and version, as the file's field "schema" has it.
        NOUN: What a person calls the file.
        REMEDY: How to come by another one.
    """

    SCHEMA: ClassVar[str]
    NOUN: ClassVar[str]
    REMEDY: ClassVar[str]

    model_config = ConfigDict(populate_by_name=True)
    _ignored: str | None = PrivateAttr(None)

    @property
    def ignored(self) -> str | None:
        """What of the file is not known here and was ignored, in a sentence."""
        return self._ignored


Kind = TypeVar("Kind", bound=Document)


def read_document(path: Path | str, *kinds: type[Kind]) -> Kind:
    """What a file holds.

    Args:
        path: The file.
        kinds: What it may be; the schema in it says which.

    Raises:
        ResultFileError: Missing, no regular file, too large, unreadable, not JSON, of another schema, or not valid.
    """
    path, noun = Path(path), kinds[0].NOUN
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # a pipe would be waited for
            raise ResultFileError(f"{path} cannot be read: expected a regular file, got a folder, pipe or device")
        if found.st_size > MOST_BYTES:
            raise ResultFileError(
                f"{path} is not a {noun} of autotune: it has {format_bytes(found.st_size)}, "
                f"and none has more than {format_bytes(MOST_BYTES)}"
            )
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ResultFileError(f"expected a {noun} at {path}, but there is none") from None
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or no possible path
        raise ResultFileError(f"{path} cannot be read: {error}") from None
    try:
        data = _decoded(text)
    except (ValueError, RecursionError) as error:
        raise ResultFileError(f"{path} is not a {noun}: it is not valid JSON ({error}); {kinds[0].REMEDY}") from None
    return parse_document(data, str(path), *kinds, clean="\\u" not in text or _SURROGATE.search(text) is None)


def parse_document(data: Any, origin: str, *kinds: type[Kind], clean: bool = False) -> Kind:
    """What decoded JSON holds; `origin` names it in errors; `clean` text can be written as it is.

    Raises:
        ResultFileError: It is of another schema, or not valid.
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
    """All of a record, its secrets hidden; a caller's unchecked values that JSON does not have are written as text."""
    try:
        text = record.model_dump_json(by_alias=True, indent=2)
    except (PydanticSerializationError, ValueError):
        text = json.dumps(record.model_dump(by_alias=True), default=str, indent=2)
    return json.dumps(masked_data(json.loads(text)), ensure_ascii=False, indent=2) if may_hold_secret(text) else text


def write_document(record: Document, path: Path) -> None:
    """Writes a file whole or not at all.

    Raises:
        ResultFileError: It cannot be written; nothing is left behind.
    """
    try:
        write_whole(path, to_json(record) + "\n")
    except OSError as error:
        raise ResultFileError(
            f"the {record.NOUN} could not be written to {path}: {error.strerror or error}; "
            "choose another place with --out"
        ) from error


def keep_document(record: Document, path: Path) -> tuple[Path | None, ResultFileError | None]:
    """Writes the file; where that fails, into the temporary folder: hours of search are not lost to a full disk.

    Returns:
        Where it lies, None when it could be written nowhere; and what went wrong with the wanted place, if it did.
    """
    try:
        write_document(record, path)
    except ResultFileError as error:
        failure = error
    except Exception as error:  # noqa: BLE001 - whatever it is, the search has been paid for
        failure = ResultFileError(f"the {record.NOUN} could not be written to {path}: {type(error).__name__}: {error}")
    else:
        return path, None
    try:
        stem = path.stem.encode("ascii", "ignore").decode()  # the name may be what could not be written
        place = Path(tempfile.gettempdir()) / f"autotune-result-{stem}-{secrets.token_hex(4)}.json"
        write_document(record, place)
    except Exception:  # noqa: BLE001 - there may be no temporary folder
        return None, failure
    return place, ResultFileError(f"{failure}; until then it lies in {place}")


def _decoded(text: str) -> Any:
    """What JSON says; what the faster reader refuses, such as half of a surrogate pair, is left to Python's own.

    Raises:
        ValueError, RecursionError: It is no JSON, in the words of Python's own reader; or nested too deeply.
    """
    try:
        return from_json(text)
    except ValueError:
        return json.loads(text)


def _kind_of(data: Any, origin: str, kinds: tuple[type[Kind], ...]) -> type[Kind]:
    """Which kind of file it is.

    Raises:
        OtherKindError: Another file of autotune's own.
        ResultFileError: A foreign file, or one of another version of the schema.
    """
    schema = data.get("schema") if isinstance(data, dict) else None
    family = schema.rpartition("/")[0] if isinstance(schema, str) else ""
    kind = next((one for one in kinds if one.SCHEMA.rpartition("/")[0] == family), None)
    if kind is None and family.startswith("autotune."):
        raise OtherKindError(
            f'{origin} is not a {kinds[0].NOUN} of autotune, but another of its files: "schema" is {schema!r:.60}; '
            f"name a {kinds[0].NOUN}"
        )
    if kind is None:
        raise ResultFileError(
            f'{origin} is not a {kinds[0].NOUN} of autotune: expected "schema": "{kinds[0].SCHEMA}", '
            f"got {schema!r:.60}; is it another program's file?"
        )
    if schema != kind.SCHEMA:
        raise ResultFileError(
            f"{origin} is a {kind.NOUN} of another autotune: expected the schema {kind.SCHEMA}, got {schema!r:.60}; "
            f"read it with the autotune that wrote it, or {kind.REMEDY}"
        )
    return kind


def _refused(error: ValidationError, data: dict[str, Any], origin: str, kind: type[Document]) -> ResultFileError:
    """The first thing that is wrong: what a newer autotune wrote may be right all the same."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "its content"
    software = data.get("software")
    writer = software.get("autotune") if isinstance(software, dict) else None
    if isinstance(writer, str) and _release(writer) > _release(__version__):
        return ResultFileError(
            f"{origin} was written by a newer autotune ({writer}), of which this one ({__version__}) cannot read "
            f"{where}: {first['msg'].lower()}; upgrade autotune"
        )
    return ResultFileError(f"{origin} is broken: {where}: {first['msg'].lower()}; {kind.REMEDY}, or restore the file")


def _release(version: str) -> list[int]:
    """The numbers that a version begins with."""
    numbers = re.match(r"\d{1,9}(\.\d{1,9}){0,3}", version, re.ASCII)
    return [int(number) for number in numbers[0].split(".")] if numbers else []


@functools.cache
def _names(kind: type[BaseModel]) -> tuple[frozenset[str], dict[str, str]]:
    """The names that a record's file may have, and of its fields that hold records in turn the attribute of each."""
    names = {field.alias or name: name for name, field in kind.model_fields.items()}
    nested = {key: name for key, name in names.items() if _holds_records(kind.model_fields[name].annotation)}
    return frozenset({*names, *kind.model_computed_fields}), nested


def _holds_records(hint: Any) -> bool:
    """Whether a field's type is a record's, or has one in it."""
    if get_origin(hint) is None:
        return isinstance(hint, type) and issubclass(hint, BaseModel)
    return any(map(_holds_records, get_args(hint)))


def _unknown(data: Any, model: Any, path: str = "") -> list[str]:
    """The fields of decoded JSON that a record made of it does not have."""
    found: list[str] = []
    if isinstance(model, BaseModel) and isinstance(data, dict):
        known, nested = _names(type(model))
        if not nested and data.keys() <= known:  # as most are: a result has thousands of figures
            return found
        for key, value in data.items():
            if key not in known:
                found.append(f"{path}{key}")
            elif key in nested:
                found += _unknown(value, getattr(model, nested[key]), f"{path}{key}.")
    elif isinstance(model, tuple) and isinstance(data, list):
        for value, part in zip(data, model, strict=False):
            found += _unknown(value, part, path)
    return found
