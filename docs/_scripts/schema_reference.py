"""Makes the tables of the result file's fields, one per record, from the model that reads and writes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel

_WORDS = {"null": "null", "integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}
_SCALAR = {"boolean", "integer", "number", "string", "null"}


def text() -> str:
    """The reference of the result file, as Markdown."""
    from autotune.results.result import Result

    return _text(Result)


def notes() -> str:
    """The reference of a training's notes, as Markdown."""
    from autotune.results.trainings import Note

    return _text(Note)


def _text(model: type[BaseModel]) -> str:
    """One section per record: the file itself first, then the others in the order in which they first occur."""
    schema = model.model_json_schema(by_alias=True, mode="serialization")
    records = schema.pop("$defs", {})
    order = [model.__name__]
    records[model.__name__] = schema
    for name in order:  # grows during the loop
        order += [record for record in dict.fromkeys(_records_in(records[name])) if record not in order]
    return "\n\n".join(_section(name, records[name], records) for name in order if "properties" in records[name])


def _section(name: str, record: Mapping[str, Any], records: Mapping[str, Any]) -> str:
    summary = " ".join((record.get("description") or "").partition("\n\n")[0].split())
    lines = [f"### {name}", "", summary, "", "| field | holds | meaning |", "|---|---|---|"]
    for field, described in record["properties"].items():
        meaning = " ".join(described.get("description", "").partition("\n\n")[0].split())
        lines.append(f"| `{field}` | {_words(described, records)} | {meaning} |")
    return "\n".join(lines)


def _words(part: Mapping[str, Any], records: Mapping[str, Any]) -> str:
    """What a field holds, in words."""
    words = _WORDS.get(part.get("type", ""), "any plain value")
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        words = f"[{name}](#{name.lower()})" if "properties" in records[name] else _words(records[name], records)
    elif "anyOf" in part:
        if not {choice.get("type") for choice in part["anyOf"]} >= _SCALAR:
            words = " or ".join(dict.fromkeys(_words(choice, records) for choice in part["anyOf"]))
    elif "const" in part or "enum" in part:
        words = ", ".join(f"`{value}`" for value in part.get("enum", [part.get("const")]))
    elif part.get("type") == "array":
        inner = part.get("prefixItems", [part.get("items", {})])
        words = f"list of {', '.join(_words(item, records) for item in inner)}"
    elif part.get("type") == "object":
        values = part.get("additionalProperties")
        words = f"object of {_words(values, records)}" if isinstance(values, dict) and values else "object"
    elif part.get("format") == "date-time":
        words = "date and time"
    return words


def _records_in(part: Any) -> Iterator[str]:
    """The records that a schema refers to, in order."""
    if isinstance(part, dict):
        if "$ref" in part:
            yield part["$ref"].rpartition("/")[2]
        for value in part.values():
            yield from _records_in(value)
    elif isinstance(part, list):
        for value in part:
            yield from _records_in(value)
