"""The output about a script's changes, its diff and the changed files; printed with `soft_wrap`, to be copied."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Group, RenderableType

from autotune.patching.in_place import EditedFile
from autotune.patching.patch import Patch
from autotune.wording import as_text, labelled


def patch_lines(patch: Patch, file: Path, *, changed: bool) -> RenderableType:
    """The diff or the changed files, and the command that writes or reverts the changes.

    Args:
        patch: The changes of a result.
        file: The result's file.
        changed: Whether the script was changed; False if only the diff was made.
    """
    named, path = shlex.quote(file.as_posix()), file.with_suffix(".diff")
    if not patch.files:
        nothing = "nothing faster was found, so there is none"
        if patch.why_whole is not None:
            nothing = "the line in the script already applies this result"
        return labelled("diff", nothing, "", "bold")
    lines = [as_text(f"one line applies all of it: {patch.why_whole}", "dim")] if patch.why_whole is not None else []
    names = ", ".join(edited.name for edited in patch.files)
    if changed:
        return Group(
            labelled("changed", names, "", "bold"),
            *lines,
            as_text("undo it:"),
            as_text(f"    autotune patch --reverse {named}", "cyan"),
        )
    place = [labelled("diff", f"{path} ({names})", "", "bold")] if path.exists() else []  # a dry run writes no diff
    return Group(*place, *lines, as_text("write it into the script:"), as_text(f"    autotune patch {named}", "cyan"))


def kept_lines(kept: Path, names: Sequence[str]) -> RenderableType:
    """A diff beside the result that got another name: one of others, or one that is still applied to some files."""
    if not names:
        return labelled(
            "kept", f"{kept}, a diff of something else, which had the name of this result's diff", "", "bold"
        )
    return Group(
        labelled("kept", f"{kept}, the diff of the result before: it is still in {', '.join(names)}", "", "bold"),
        as_text("undo it, once newer changes are undone:"),
        as_text(f"    patch -R -p1 < {shlex.quote(kept.as_posix())}", "cyan"),
    )


def undone_lines(files: Sequence[EditedFile]) -> RenderableType:
    """The files whose changes were reverted."""
    return labelled("restored", ", ".join(edited.name for edited in files), "", "bold")


def no_diff_lines(why: str) -> RenderableType:
    """The reason why there is no diff."""
    return labelled("diff", f"none: {why}")
