"""Gathers result files, and those of `autotune cross`, from files and folders; names those that hold none."""

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

Machine = tuple[str, str, str]
"""The hardware that trained, its host, and the kind of device; one name that you give stands for all its devices."""


@dataclass(frozen=True)
class Gathered:
    """Results from files and folders, each with its file, as you gave it."""

    results: list[tuple[str, Result]] = field(default_factory=list)
    crosses: list[tuple[str, Cross]] = field(default_factory=list)  # measurements of other machines' configs
    problems: list[str] = field(default_factory=list)  # a sentence for each file or folder without a result
    warnings: list[str] = field(default_factory=list)  # a sentence for each file left out in favour of another one


def gather(paths: Iterable[Path | str]) -> Gathered:
    """The results in files, folders and all folders below, in the order of their paths, without copies.

    Each file that cannot be read becomes a sentence; a file that is named twice is read once. Other files of autotune
    in a folder, such as a report of `doctor`, are skipped.
    """
    gathered = Gathered()
    seen: set[str] = set()
    for path in paths:
        files: list[Path | str] = [path]
        if os.path.isdir(path):
            files = sorted(file for file in Path(path).rglob("*.json") if file.is_file())
            if not files:
                gathered.problems.append(f"{path} holds no result files: no *.json lies in it or below it")
        for file in files:
            real = os.path.realpath(file)
            if real not in seen:
                seen.add(real)
                _read(file, gathered, skips_others=file is not path)
    results, copies = distinct(gathered.results)
    crosses, superseded = newest(gathered.crosses)
    return Gathered(results, crosses, gathered.problems, [*gathered.warnings, *copies, *superseded])


def machine_of(record: Result | Cross) -> Machine:
    """The machine that a record comes from."""
    return record.machine, record.hardware.hostname, record.device


def distinct(results: Iterable[tuple[str, Result]]) -> tuple[list[tuple[str, Result]], list[str]]:
    """Each result once, even where its file has copies, and a sentence for each copy."""
    kept: dict[tuple[Machine, str, datetime], tuple[str, Result]] = {}
    sentences = []
    for path, result in results:
        key = (machine_of(result), result.workload.fingerprint, result.created)
        first_path, first = kept.setdefault(key, (path, result))
        if first is not result:
            differing = "" if first == result else ", but their contents differ: the first is compared"
            sentences.append(f"{first_path} and {path} are one result and count once{differing}")
    return list(kept.values()), sentences


def newest(crosses: Iterable[tuple[str, Cross]]) -> tuple[list[tuple[str, Cross]], list[str]]:
    """The newest cross of each workload, machine and other machine, and a sentence for each older one."""
    kept: dict[tuple[Machine, Machine, str], tuple[str, Cross]] = {}
    sentences = []
    for path, cross in sorted(crosses, key=lambda named: named[1].created):
        key = (machine_of(cross), cross.config_of.where, cross.workload.fingerprint)
        if key in kept:
            older = kept[key][0]
            sentences.append(f"{older} is left out: {path} measured the same config here later, or is a copy of it")
        kept[key] = (path, cross)
    return list(kept.values()), sentences


def _read(file: Path | str, gathered: Gathered, *, skips_others: bool) -> None:
    """Adds the record in a file; with `skips_others`, other files of autotune are no problem."""
    kinds: tuple[type[Document], ...] = (Result, Cross)
    try:
        record = read_document(file, *kinds)
    except ResultFileError as error:
        if not (skips_others and isinstance(error, OtherKindError)):
            gathered.problems.append(str(error))
        return
    if isinstance(record, Result):
        gathered.results.append((str(file), record))
    elif isinstance(record, Cross):
        gathered.crosses.append((str(file), record))
    if record.ignored is not None:
        gathered.warnings.append(f"{file}: {record.ignored}")
