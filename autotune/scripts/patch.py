"""What a result changes in the script it was measured with, as new contents of its files.

A setting is changed where the script says it: an argument of the call that makes the training loader or the optimizer,
an option's default, a statement of torch's, a word of a framework's. Where one of them has no such place, one line at
the script's top applies all.
"""

from __future__ import annotations

import ast
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import UsageError
from autotune.results.result import Result
from autotune.scripts import statements
from autotune.scripts.diff import reverted, unified
from autotune.scripts.in_place import EditedFile, Files, InPlace, read_file
from autotune.scripts.launching import script_of
from autotune.scripts.source import CannotEditError


@dataclass(frozen=True)
class Patch:
    """What is to be done for a script to train with a result.

    Attributes:
        files: With their changes; none where the command line decides all, or nothing is to be changed.
        hints: What to pass besides, as the command line decides it.
        why_whole: Why one line applies all of it; None where each setting is changed in its own place.
    """

    files: tuple[EditedFile, ...] = ()
    hints: tuple[str, ...] = ()
    why_whole: str | None = None

    @property
    def diff(self) -> bytes:
        """All of it, for ``git apply`` and ``patch -p1``."""
        return b"".join(unified(file.name, file.before, file.after) for file in self.files)


def patch_of(result: Result, path: Path) -> Patch:
    """What a result changes in the script's files, which are read from the working directory.

    Args:
        result: Of a script.
        path: Its file.

    Raises:
        UsageError: The files are not here, or not as they were; or they cannot be changed for another reason.
    """
    script = script_of(result, path)
    source = script.source
    if not result.changed_knobs:
        return Patch()
    files = Files(source)
    place = (Path(os.path.relpath(path, source.folder)) if not path.is_absolute() else path).as_posix()
    try:
        if source.main is not None and statements.applying(files[source.main].source):
            return _applied_instead(files, source.main, place)
        InPlace(result, script, source, files).set_all()
        return Patch(files.changed(), files.hints)
    except CannotEditError as error:
        why = str(error)
    if source.main is None:
        raise UsageError(f"{why}, and the script is no file of this folder; train with 'autotune launch'")
    if not source.has_autotune:
        raise UsageError(f"{why}, and the script's own Python has no autotune to import; train with 'autotune launch'")
    files = Files(source)
    try:
        main = files[source.main]
        main.edits.add(statements.apply_line(main.source, place))
        return Patch(files.changed(), (), why)
    except CannotEditError as error:
        raise UsageError(f"{error}; train with 'autotune launch'") from None


def _applied_instead(files: Files, name: str, place: str) -> Patch:
    """The line by which a script applies another result, or an older one of this file: it was measured without that.

    Raises:
        UsageError: It applies one in another way than such a line does.
    """
    file = files[name]
    calls = statements.applying(file.source)
    told = calls[0].args[0] if len(calls) == 1 and len(calls[0].args) == 1 else None
    if not (isinstance(told, ast.Constant) and isinstance(told.value, str)):
        raise UsageError(
            f"{name} calls autotune.apply already, in another way than by one line; take that out, with 'autotune keep "
            "--reverse' and the result it applies or by hand, or train with 'autotune launch'"
        )
    file.set_value(told, place)
    return Patch(files.changed(), (), "the script had such a line already")


def undone(result: Result, path: Path, diff: bytes) -> tuple[EditedFile, ...]:
    """The files of a diff, as they were before it was applied; empty where it was not.

    Raises:
        UsageError: As for `patch_of`.
    """
    source = script_of(result, path).source
    found = []
    for name, hashed in source.files.items() if source is not None else ():
        content = read_file(name)
        former = reverted(diff, name, content)
        if former is not None and hashlib.sha256(former).hexdigest() == hashed:
            found.append(EditedFile(name, content, former))
    return tuple(found)
