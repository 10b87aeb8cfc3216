"""Gathers result files, and those of `autotune cross`, from files and folders; it names what gives none."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from autotune.errors import ResultFileError
from autotune.results.cross_file import Cross
from autotune.results.files import Document, OtherKindError, read_document
from autotune.results.result import Result

Machine = tuple[str, str]
"""What trained, and on which host."""


@dataclass(frozen=True)
class Gathered:
    """What was found in files and folders.

    Attributes:
        results: Each with its file as it was named.
        crosses: Other machines' configs as they were measured, each with its file.
        problems: A sentence for each file or folder that gave nothing; it names it.
        warnings: A sentence for each file that is left out beside another one; it names both.
    """

    results: list[tuple[str, Result]] = field(default_factory=list)
    crosses: list[tuple[str, Cross]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def gather(paths: Iterable[Path | str]) -> Gathered:
    """The results in files and folders, and in all folders below, in the order of their paths, copies left out.

    A file that cannot be read becomes a sentence, and the rest goes on; what is named twice is read once. Other files
    of autotune in a folder, such as what `doctor` has found, are passed over.
    """
    found = Gathered()
    seen: set[str] = set()
    for path in paths:
        files: list[Path | str] = [path]
        if os.path.isdir(path):
            files = sorted(file for file in Path(path).rglob("*.json") if file.is_file())
            if not files:
                found.problems.append(f"{path} holds no result files: no *.json lies in it or below it")
        for file in files:
            real = os.path.realpath(file)
            if real not in seen:
                seen.add(real)
                _read(file, found, passes_over=file is not path)
    results, copies = distinct(found.results)
    crosses, superseded = newest(found.crosses)
    return Gathered(results, crosses, found.problems, [*found.warnings, *copies, *superseded])


def machine_of(record: Result | Cross) -> Machine:
    """What trained, and on which host."""
    return record.machine, record.hardware.hostname


def distinct(results: Iterable[tuple[str, Result]]) -> tuple[list[tuple[str, Result]], list[str]]:
    """Each result once, however many copies of its file there are, and a sentence for each copy."""
    kept: dict[tuple[Machine, str, datetime], tuple[str, Result]] = {}
    told = []
    for path, result in results:
        key = (machine_of(result), result.workload.fingerprint, result.created)
        first, known = kept.setdefault(key, (path, result))
        if known is not result:
            differing = "" if known == result else ", but their contents differ: the first is compared"
            told.append(f"{first} and {path} are one result and count once{differing}")
    return list(kept.values()), told


def newest(crosses: Iterable[tuple[str, Cross]]) -> tuple[list[tuple[str, Cross]], list[str]]:
    """The newest cross of each workload, machine and other machine, and a sentence for each older one."""
    kept: dict[tuple[Machine, Machine, str], tuple[str, Cross]] = {}
    told = []
    for path, cross in sorted(crosses, key=lambda named: named[1].created):
        key = (machine_of(cross), cross.config_of.where, cross.workload.fingerprint)
        if key in kept:
            told.append(f"{kept[key][0]} is left out: {path} measured the same config here later, or is a copy of it")
        kept[key] = (path, cross)
    return list(kept.values()), told


def _read(file: Path | str, found: Gathered, *, passes_over: bool) -> None:
    """Adds what a file holds; with `passes_over`, other files of autotune are no problem."""
    kinds: tuple[type[Document], ...] = (Result, Cross)
    try:
        record = read_document(file, *kinds)
    except ResultFileError as error:
        if not (passes_over and isinstance(error, OtherKindError)):
            found.problems.append(str(error))
        return
    if isinstance(record, Result):
        found.results.append((str(file), record))
    elif isinstance(record, Cross):
        found.crosses.append((str(file), record))
    if record.ignored is not None:
        found.warnings.append(f"{file}: {record.ignored}")
