"""Checks before any work that a command writes a new file, or replaces one of autotune's files of the same kind."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import NamedTuple

from autotune.errors import UsageError

HEAD_BYTES = 65_536
"""Bytes at a file's start that identify its kind; autotune writes the mark into the first two thousand."""


class Kind(NamedTuple):
    """A kind of file that autotune writes."""

    noun: str  # its name in messages, with the article
    start: re.Pattern[bytes]  # of its content


RESULT = Kind("a result file", re.compile(rb'\s*\{\s*"schema":\s*"autotune\.result/'))
CROSS = Kind("a cross file", re.compile(rb'\s*\{\s*"schema":\s*"autotune\.cross/'))
EXAMINATION = Kind("an examination", re.compile(rb'\s*\{\s*"schema":\s*"autotune\.doctor/'))
PAGE = Kind("a report", re.compile("\\s*<!DOCTYPE html>.*– autotune</title>".encode(), re.DOTALL))
LIVE = Kind("a log of a training", re.compile(rb'\{"event": "started"'))
JOURNAL = Kind("a journal", re.compile(rb'\{"op_code":'))
CARDS = {
    "svg": Kind("a card", re.compile(rb"<\?xml.*<dc:title>autotune card</dc:title>", re.DOTALL)),
    "png": Kind("a card", re.compile(rb"\x89PNG.*autotune card", re.DOTALL)),
}
COMPARISONS = {
    "md": Kind("a comparison", re.compile(rb"# Tuned by autotune\n")),
    "csv": Kind("a comparison", re.compile(rb"file,workload,target,fingerprint,machine,")),
    "json": Kind("a comparison", re.compile(rb'\{\s*"schema":\s*"autotune\.comparison/')),
    "html": PAGE,
}
BESIDE = {".html": PAGE, ".journal": JOURNAL, ".live.jsonl": LIVE, ".diff": None}
"""Endings of the files beside a result. A diff has no kind: autotune's look like any other."""


def require_replaceable(option: str, path: Path, kind: Kind) -> None:
    """Refuses to replace anything but an empty file, or a file of autotune of the same kind.

    Raises:
        UsageError: Another file is there, or the file cannot be read.
    """
    try:
        if path.is_dir():
            raise UsageError(f"{option}: expected a file such as {path / 'result.json'}, but {path} is a folder")
        if not path.exists():
            return
        head = _head(path) if path.is_file() else None
    except OSError as error:
        raise UsageError(f"{option}: {path} cannot be read: {error.strerror}; choose another name") from error
    if head is None or (head and not kind.start.match(head)):
        raise UsageError(
            f"{option}: expected a new file, or {kind.noun} of autotune to replace, but {path} is neither; "
            "choose another name, or move that file away"
        )


def require_writable(out: Path) -> None:
    """Checks before any work that the folder of a file can be made and written to.

    Raises:
        UsageError: It cannot.
    """
    try:
        out = out.absolute()
    except FileNotFoundError:
        raise UsageError(
            "--out: expected a folder, but the working directory has been deleted; name a file elsewhere: "
            f"--out ~/{out.name}"
        ) from None
    folder = out.parent
    try:
        folder = next(parent for parent in out.parents if parent.exists())
        # By a real file, which has no name on most file systems: root may write to /proc, which still takes no file.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"--out: expected a folder that can be written to, but {folder} cannot ({error.strerror}); name a file "
            f"elsewhere: --out ~/{out.name}"
        ) from error


def require_result_place(path: Path) -> None:
    """Checks the path of a result that ``--out`` names, and those of the files beside it.

    Raises:
        UsageError: The result, its page, its journal or its diff would replace another file.
    """
    from autotune.results.result import place_of_partial  # takes long to import

    require_replaceable("--out", path, RESULT)
    if path.suffix != ".json":  # of another ending, two results could share the files beside them
        raise UsageError(f"--out: expected the result's own file, such as {path.with_suffix('.json')}, got {path}")
    require_replaceable("--out", place_of_partial(path), RESULT)
    for ending, kind in BESIDE.items():
        if kind is not None:
            require_replaceable("--out", path.with_suffix(ending), kind)
    diff = path.with_suffix(".diff")
    if diff.exists() and not path.exists():
        raise UsageError(
            f"--out: expected no {diff.name} beside a new result, whose own diff has that name, but {diff} is there; "
            "choose another name, or move that file away"
        )


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)
