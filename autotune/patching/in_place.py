"""Writes each setting of a result where the script makes it: in a call, an option or a framework's argument."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import UsageError
from autotune.knobs import KNOBS, TrainConfig
from autotune.knobs.changes import changes_of
from autotune.patching import framework_words as words
from autotune.patching.arguments import ANY, set_arguments
from autotune.patching.source import CannotEditError, Source, naming
from autotune.results.result import Result, Site, SourceRecord
from autotune.scripts.facts import hash_of


@dataclass(frozen=True)
class EditedFile:
    """A file's content before and after a result's changes."""

    name: str  # path from the working directory
    before: bytes
    after: bytes


class Files:
    """A script's files, as they were when it was measured."""

    def __init__(self, record: SourceRecord) -> None:
        self._record = record
        self._read: dict[str, tuple[bytes, Source]] = {}

    def __getitem__(self, name: str) -> Source:
        """A file, which can be edited.

        Raises:
            UsageError: It is missing, or has changed.
            CannotEditError: It is not Python.
        """
        if name not in self._read:
            content = read_file(name)
            if hash_of(content) != self._record.files.get(name):
                raise UsageError(
                    f"{name} has changed since it was measured, so that its gain is not known; tune again, or restore "
                    "the file"
                )
            self._read[name] = content, Source(content, self._record.argv)
        return self._read[name][1]

    def edited(self) -> tuple[EditedFile, ...]:
        """All files that have edits.

        Raises:
            CannotEditError: An edited file is not Python.
        """
        files = self._read.items()
        return tuple(EditedFile(name, before, file.edited()) for name, (before, file) in files if file.is_edited)


def set_in_place(result: Result, record: SourceRecord, files: Files) -> None:
    """Writes all settings of a result into the files.

    Raises:
        UsageError: A file is missing, or has changed.
        CannotEditError: A setting has no place of its own, and the message begins with its name; or the script
            already has all settings, so they seem to have no effect there.
    """
    best, baseline = result.best.config, result.baseline.config
    values = {knob: after for knob, (_, after) in best.changes_from(baseline).items()}
    if values.get("persistent_workers") and record.may_change_data:
        raise CannotEditError("would hide from workers what the script changes in its data", "persistent_workers")
    for knob in _set_in_framework(values, result, record, files):
        del values[knob]
    forms = {knob: value for knob, value in values.items() if value in KNOBS[knob].optimizer_arguments}
    if others := sorted(values.keys() - words.LOADER.keys() - forms.keys()):
        raise CannotEditError("cannot be written in place", " and ".join(others))
    arguments = changes_of(best, baseline)["loader"]
    loader = {words.LOADER[knob]: arguments[words.LOADER[knob]] for knob in values if knob in words.LOADER}
    if loader:
        with naming(values.keys() & words.LOADER.keys()):
            _set_in_loaders(loader, _seen(baseline, words.LOADER), record, files)
    for knob, form in forms.items():
        with naming([knob]):
            _set_optimizers(form, KNOBS[knob].optimizer_arguments, record, files)
    if not files.edited():
        raise CannotEditError("the script already has these settings")


def _seen(baseline: TrainConfig, named: Mapping[str, str]) -> dict[str, object]:
    """What arguments were, by knob and name; `ANY` for torch's default, whether the script gives it or not."""
    seen: dict[str, object] = {name: getattr(baseline, knob) for knob, name in named.items()}
    alike = [name for name, value in seen.items() if len(words.absent_values(name)) > 1 and words.absent(name, value)]
    return {**seen, **dict.fromkeys(alike, ANY)}


def _set_in_framework(values: Mapping[str, Any], result: Result, record: SourceRecord, files: Files) -> set[str]:
    """Sets the arguments of a framework's object where the main file makes one; returns the knobs that it set."""
    if record.main is None or (maker := words.framework_call(files[record.main])) is None:
        return set()
    (framework, call), file = maker, files[record.main]
    optimizer = result.workload.model.optimizer if result.workload.model is not None else None
    free = {knob: value for knob, value in values.items() if not _is_made_apart(knob, record, file)}
    given = {knob: words.arguments(framework, knob, value, optimizer) for knob, value in free.items()}
    taken = {knob for knob, own in given.items() if own is not None}
    arguments = {word: value for own in given.values() for word, value in (own or {}).items()}
    with naming(taken):
        if taken and len(call.args) > 1:  # the first parameter of each framework's object is no knob's
            raise CannotEditError("may be given by position")
        if again := arguments.keys() & _attributes_set(file):
            raise CannotEditError("is also set elsewhere in the script", " and ".join(sorted(again)))
        named = {knob: next(iter(given[knob] or ())) for knob in taken & words.LOADER.keys()}
        seen = _seen(result.baseline.config, named)
        set_arguments(file, call, arguments, seen=seen, absent=words.absent)
    return taken


def _is_made_apart(knob: str, record: SourceRecord, file: Source) -> bool:
    """Whether the script hands over what takes a knob, so that a framework's argument for it has no effect."""
    if KNOBS[knob].optimizer_arguments:
        handed = {word.arg for call in file.calls() for word in call.keywords}
        return any(record.optimizers) or bool(handed & {"optimizers", "optimizer_cls_and_kwargs"})
    return knob in words.LOADER and any(record.loaders)


def _attributes_set(file: Source) -> set[str]:
    """The attributes that a file sets of other objects than ``self``."""
    parts = [part for part in ast.walk(file.tree) if isinstance(part, ast.Attribute)]
    return {part.attr for part in parts if isinstance(part.ctx, ast.Store) and ast.unparse(part.value) != "self"}


def _set_in_loaders(
    arguments: Mapping[str, object], seen: Mapping[str, object], record: SourceRecord, files: Files
) -> None:
    """Sets the arguments of each loader that feeds training."""
    for site in record.loaders or (None,):
        own = _own(site, arguments)
        file = files[own.file]
        call = file.call_at(own)
        if arguments.get("persistent_workers") and file.is_repeated(call):
            raise CannotEditError("is of a loader that is made again and again", "persistent_workers")
        set_arguments(file, call, arguments, seen=seen, parameters=own.parameters, absent=words.absent)


def _set_optimizers(form: str, forms: tuple[str, ...], record: SourceRecord, files: Files) -> None:
    """Makes each optimizer in another one of its forms."""
    for site in record.optimizers or (None,):
        own = _own(site, [form])
        file = files[own.file]
        call = file.call_at(own)
        others = [str(word.arg) for word in call.keywords if word.arg in forms and word.arg != form]
        set_arguments(file, call, {**dict.fromkeys(others, False), form: True}, seen={})


def _own(site: Site | None, names: Iterable[str]) -> Site:
    """Requires a call in the script's own files that makes nothing else and takes these arguments."""
    if site is None:
        raise CannotEditError("is given by no call in the script's own files")
    if site.shared:
        raise CannotEditError(f"would change for the other loaders that line {site.line} of {site.file} makes, too")
    if site.accepts is not None and not set(names) <= set(site.accepts):
        raise CannotEditError(f"cannot be passed to {site.kind}")
    return site


def own_path(name: str) -> Path:
    """The resolved path of a script's file, which must be checked: a result from elsewhere may name any file.

    Raises:
        UsageError: It is not below the working directory.
    """
    folder = Path.cwd().resolve()
    try:
        path = Path(name).resolve()
    except (OSError, ValueError, RuntimeError):  # an invalid name, or a link to itself
        path = Path(os.sep)
    if not path.is_relative_to(folder):
        raise UsageError(
            f"expected a script's files below the working directory {folder}, got {name!r}; go to the folder that "
            "holds the script, if it is yours"
        )
    return path


def read_file(name: str) -> bytes:
    """Reads a file of the script.

    Raises:
        UsageError: It is not below the working directory, or cannot be read.
    """
    try:
        return own_path(name).read_bytes()
    except OSError as error:
        raise UsageError(
            f"{name} cannot be read ({error.strerror}); go to the folder where the script was tuned"
        ) from None
