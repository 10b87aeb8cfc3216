"""`autotune patch`: writes a result's settings into the script, and reverts them."""

from __future__ import annotations

import contextlib
import itertools
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.commands.common import reported, say
from autotune.errors import AutotuneError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autotune.patching.in_place import EditedFile
    from autotune.patching.patch import Patch
    from autotune.results.result import Result


@reported
def patch(
    file: Annotated[Path, typer.Argument(help="A result file of autotune run.")],
    reverse: Annotated[bool, typer.Option("--reverse", help="Take the changes out again.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the diff, and change nothing.")] = False,
) -> None:
    """Writes a result's settings into its script, in the folder where it was tuned: as arguments, else as one line."""
    from autotune.patching.patch import patch_of, undone
    from autotune.results.result import read_result
    from autotune.terminal.console import make_console
    from autotune.terminal.patch import patch_lines, undone_lines

    result, console = read_result(file), make_console()
    former = undone(result, file, _diff_beside(file), reverse=reverse)
    if reverse:
        if not former:
            diff, name = file.with_suffix(".diff"), shlex.quote(str(file))
            remedy = f"'patch -R -p1 < {shlex.quote(str(diff))}' takes the changes out where it can"
            if not diff.exists():
                remedy = f"there is no {diff} either: nothing was patched with this result"
            raise UsageError(f"expected files that 'autotune patch {name}' has changed, got others; {remedy}")
        changed = [edited for edited in former if edited.after != edited.before]
        if not changed:
            console.print(f"{', '.join(edited.name for edited in former)}: already restored", markup=False)
        elif dry_run:
            _print_diff(changed)
        else:
            write_files(changed)
            console.print(undone_lines(changed))
        return
    if former:
        console.print(f"{', '.join(edited.name for edited in former)}: already changed", markup=False)
        return
    changes = patch_of(result, file)
    if dry_run:
        _print_diff(changes.files)
    elif changes.files:
        for lines in set_aside(result, file):
            console.print(lines, soft_wrap=True)
        write_diff(changes, file)  # --reverse needs it
        write_files(changes.files)
    console.print(patch_lines(changes, file, changed=not dry_run), soft_wrap=True)


def after_run(result: Result, place: Path, *, patching: bool) -> tuple[RenderableType | None, AutotuneError | None]:
    """Writes a script's diff beside its result and, with `patching`, changes the script.

    Returns:
        The output to show, and the failure if the script was to be changed. Without `patching` a diff that cannot be
        made is no failure: the result exists, and `launch` trains with it.
    """
    from rich.console import Group

    from autotune.patching.patch import Patch, patch_of
    from autotune.terminal.patch import no_diff_lines, patch_lines

    if result.workload.script is None:
        return None, None
    kept: list[RenderableType] = []
    try:
        kept = set_aside(result, place)
        patch = patch_of(result, place) if result.changed_knobs else Patch()
        if patch.files:
            write_diff(patch, place)
        if patching:
            write_files(patch.files)
        lines, failure = patch_lines(patch, place, changed=patching), None
    except AutotuneError as error:
        lines, failure = no_diff_lines(str(error)), error
    except Exception as error:  # noqa: BLE001 - the result is written; without its diff it is still complete
        why = f"it could not be made: {type(error).__name__}: {error}"
        lines, failure = no_diff_lines(why), UsageError(f"the script is as it was: {why}")
    return Group(*kept, lines), failure if patching else None


def set_aside(result: Result, place: Path) -> list[RenderableType]:
    """Removes the diff of the result that another one replaces; renames one that is still applied, or is none of ours.

    Returns:
        The output about a renamed diff.

    Raises:
        UsageError: It cannot be removed or renamed.
    """
    from autotune.patching.patch import in_effect, is_of
    from autotune.terminal.patch import kept_lines

    path = place.with_suffix(".diff")
    if path == place or not path.exists():
        return []
    try:
        names = in_effect(diff := path.read_bytes())
        if not names and is_of(diff, result):
            path.unlink()
            return []
        free = (path.with_stem(f"{path.stem}-{number}") for number in itertools.count(1))
        kept = path.rename(next(place for place in free if not place.exists()))
    except OSError as error:
        raise UsageError(
            f"{path} holds the diff of the result before, and cannot be moved: {error.strerror or error}"
        ) from error
    return [kept_lines(kept, names)]


def write_diff(patch: Patch, place: Path) -> None:
    """Writes the diff beside a result.

    Raises:
        UsageError: It cannot be written.
    """
    from autotune.files import write_whole

    path = place.with_suffix(".diff")
    if path == place:
        raise UsageError(f"the diff of {place} would overwrite it; give the result file another ending, such as .json")
    try:
        write_whole(path, patch.diff)
    except OSError as error:
        raise UsageError(f"the diff could not be written to {path}: {error.strerror or error}") from error


def write_files(files: Sequence[EditedFile]) -> None:
    """Writes all files, or restores all of them.

    Raises:
        UsageError: One of them cannot be written, or is outside the working directory.
    """
    from autotune.files import write_whole
    from autotune.patching.in_place import own_path

    paths = [own_path(edited.name) for edited in files]  # links are followed, and stay links
    written: list[tuple[Path, EditedFile]] = []
    try:
        for edited, path in zip(files, paths, strict=True):
            with path.open("r+b"):  # respects write protection, even in a writable folder
                pass
            write_whole(path, edited.after, like=path.stat())
            written.append((path, edited))
    except BaseException as error:
        for place, former in written:
            with contextlib.suppress(OSError):
                write_whole(place, former.before, like=place.stat())
        if isinstance(error, OSError):
            raise UsageError(
                f"{edited.name} could not be written ({error.strerror or error}); nothing was changed: make it writable"
            ) from error
        raise


def _print_diff(files: Sequence[EditedFile]) -> None:
    from autotune.patching.diff import unified

    diffs = [unified(edited.name, edited.before, edited.after) for edited in files]
    say(b"".join(diffs).decode("utf-8", "surrogateescape").removesuffix("\n"))


def _diff_beside(file: Path) -> bytes:
    """The diff beside a result; empty if there is none."""
    try:
        return file.with_suffix(".diff").read_bytes()
    except OSError:
        return b""
