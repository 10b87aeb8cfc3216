"""Unified diffs of files as bytes, with any line endings and encoding, and how to revert them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

_NO_END = b"\\ No newline at end of file\n"
_HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def unified(name: str, before: bytes, after: bytes) -> bytes:
    """A file's diff, as ``git apply`` and ``patch -p1`` take it.

    Args:
        name: The path of the file from where the diff is applied.
        before: Its content.
        after: Its content with the changes.
    """
    ends = "\t" if " " in name else ""  # so that patch reads the name to its end
    old, new = (name, name) if name.startswith("/") else (f"a/{name}", f"b/{name}")
    changes = difflib.diff_bytes(
        difflib.unified_diff, _lines(before), _lines(after), f"{old}{ends}".encode(), f"{new}{ends}".encode()
    )
    return b"".join(line if line.endswith(b"\n") else line + b"\n" + _NO_END for line in changes)


def reverted(diff: bytes, name: str, after: bytes) -> bytes | None:
    """A file as it was before a diff was applied; None if the diff does not lead to this content.

    Args:
        diff: As `unified` writes it, of any number of files.
        name: The path of the file.
        after: Its content with the changes.
    """
    lines, shift = _lines(after), 0
    hunks = [(at, old, new) for changed, at, old, new in _hunks(diff) if changed == name]
    for at, old, new in hunks:
        begin = max(0, at - 1) + shift
        if lines[begin : begin + len(new)] != new:
            return None
        lines[begin : begin + len(new)] = old
        shift += len(old) - len(new)
    return b"".join(lines) if hunks else None


def names_in(diff: bytes) -> list[str]:
    """The paths of the files that a diff changes."""
    return [*dict.fromkeys(name for name, *_ in _hunks(diff))]


def _hunks(diff: bytes) -> Iterator[tuple[str, int, list[bytes], list[bytes]]]:
    """Yields the hunks: each one's file and line in the new content, its old lines, and its new ones."""
    lines: list[bytes] = []
    for line in _lines(diff):
        if line == _NO_END:
            lines[-1] = lines[-1][:-1]
        else:
            lines.append(line)
    name, rest = "", iter(lines)
    for line in rest:
        if line.startswith(b"+++ "):
            name = line[4:].rstrip(b"\t\n").removeprefix(b"b/").decode("utf-8", "replace")
        elif (header := _HUNK.match(line)) is not None:
            missing = {b"-": int(header[1] or 1), b"+": int(header[3] or 1)}
            sides: dict[bytes, list[bytes]] = {b"-": [], b"+": []}
            while any(missing.values()) and (part := next(rest, None)) is not None:
                if part[:1] not in {b" ", b"-", b"+", b"\n"}:
                    break  # no hunk after all
                # An editor may have removed the space of an empty line.
                for side in (b"-", b"+") if part[:1] in {b" ", b"\n"} else (part[:1],):
                    sides[side].append(part[1:] or part)
                    missing[side] -= 1
            yield name, int(header[2]), sides[b"-"], sides[b"+"]


def _lines(content: bytes) -> list[bytes]:
    """Lines with their endings; a lone carriage return ends none, as in all tools that read diffs."""
    return re.findall(rb"[^\n]*\n|[^\n]+", content)
