"""The changes that a result makes in its script, as new contents of the script's files.

Each setting is written where the script makes it: in the recorded call, an option's default, a framework's argument. If
one of them has no such place, one line at the script's top applies all settings, and nothing else is edited.
"""

from __future__ import annotations

import ast
import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import UsageError
from autotune.patching.diff import names_in, reverted, unified
from autotune.patching.in_place import EditedFile, Files, read_file, set_in_place
from autotune.patching.source import CannotEditError, Source, literal
from autotune.results.result import Result, SourceRecord
from autotune.scripts.facts import hash_of
from autotune.scripts.launching import script_of


@dataclass(frozen=True)
class Patch:
    """The changes by which a script trains with a result."""

    files: tuple[EditedFile, ...] = ()
    why_whole: str | None = None  # why one line applies all settings; None if each is changed in its own place

    @property
    def diff(self) -> bytes:
        """All changes, for ``git apply`` and ``patch -p1``."""
        return b"".join(unified(file.name, file.before, file.after) for file in self.files)


def patch_of(result: Result, path: Path) -> Patch:
    """A result's changes in the script's files, which are read from the working directory.

    Raises:
        UsageError: The files are not here, or have changed; or they cannot be changed for another reason.
    """
    source = script_of(result, path).source
    if not result.changed_knobs:
        return Patch()
    files = Files(source)
    place = (Path(os.path.relpath(path, source.folder)) if not path.is_absolute() else path).as_posix()
    try:
        if source.main is not None and (calls := _applying(files[source.main])):
            return _applied_instead(files, source.main, calls, place)
        set_in_place(result, source, files)
        return Patch(files.edited())
    except CannotEditError as error:
        return _applied_whole(source, place, str(error))


def _applied_whole(source: SourceRecord, place: str, why: str) -> Patch:
    """The one line that applies all settings.

    Raises:
        UsageError: It cannot stand in the script, or would not work there.
    """
    if source.main is None:
        raise UsageError(f"{why}, and the script is no file of this folder; train with 'autotune launch'")
    if not source.has_autotune:
        raise UsageError(f"{why}, and the script's own Python has no autotune to import; train with 'autotune launch'")
    files = Files(source)
    try:
        files[source.main].add_first(f"import autotune; autotune.apply({literal(place)})")
        return Patch(files.edited(), why)
    except CannotEditError as error:
        raise UsageError(f"{why}, and {error}; train with 'autotune launch'") from None


def _applying(source: Source) -> list[ast.Call]:
    """The calls that apply a result, as the one line does."""
    return [call for call in source.calls() if "autotune.apply" in source.meanings(call.func)]


def _applied_instead(files: Files, name: str, calls: list[ast.Call], place: str) -> Patch:
    """Names this result in the line of a script that applies another one: it was measured without that line.

    Raises:
        UsageError: It applies a result in another way than by such a line.
    """
    file = files[name]
    argument = calls[0].args[0] if len(calls) == 1 and len(calls[0].args) == 1 else None
    if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
        raise UsageError(
            f"{name} calls autotune.apply already, in another way than by one line; take that out, with 'autotune "
            "patch --reverse' and the result it applies or by hand, or train with 'autotune launch'"
        )
    if argument.value != place:
        file.replace(argument, literal(place))
    return Patch(files.edited(), "the script had such a line already")


def in_effect(diff: bytes) -> list[str]:
    """The files in which a diff is applied."""
    names = []
    for name in names_in(diff):
        with contextlib.suppress(UsageError):  # it is not here
            if reverted(diff, name, read_file(name)) is not None:
                names.append(name)
    return names


def is_of(diff: bytes, result: Result) -> bool:
    """Whether a diff may be of a result's script: it changes files of it, and no others."""
    script, names = result.workload.script, {*names_in(diff)}
    return script is not None and bool(names) and names <= script.source.files.keys()


def undone(result: Result, path: Path, diff: bytes, *, reverse: bool) -> tuple[EditedFile, ...]:
    """The files of a diff, as they are and as they were before it was applied; empty if it was not.

    Args:
        result: The result.
        path: Its file.
        diff: The diff beside it.
        reverse: Whether the files are to be restored: one that is restored already is fine then, and among them.

    Raises:
        UsageError: As for `patch_of`; or only some of the files are as the diff leaves them.
    """
    source = script_of(result, path).source
    files: list[EditedFile] = []
    restored: list[EditedFile] = []
    edited: list[str] = []
    changed = names_in(diff)
    for name, hashed in source.files.items():
        content = read_file(name)
        former = reverted(diff, name, content)
        if former is not None and hash_of(former) == hashed:
            files.append(EditedFile(name, content, former))
        elif name in changed and hash_of(content) == hashed:
            restored.append(EditedFile(name, content, content))
        elif name in changed:
            edited.append(name)
    if reverse and not edited:
        files += restored
    others = edited if reverse else [*(file.name for file in restored), *edited]
    if files and others:
        remedy = f"'autotune patch --reverse {path}' takes the others out"
        if edited:
            remedy = f"'patch -R -p1 < {path.with_suffix('.diff')}' takes the changes out where it can"
        raise UsageError(
            f"expected all files as 'autotune patch {path}' has changed them, got {', '.join(others)} in another "
            f"state; {remedy}"
        )
    return tuple(files)
