"""Puts back what a script wrote to in its bursts, and removes what they made."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from autotune.recorder.keeping import JOURNAL

MOST_NAMED = 5


class Kept:
    """The files that a script's bursts have touched.

    Args:
        folder: Where the recorder tells of them, with a copy of each that was there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def put_back(self) -> str | None:
        """Leaves all files as they were before; returns what a person should know of it, None where nothing was."""
        told = self._told()
        (self.folder / JOURNAL).unlink(missing_ok=True)
        restored = [one["path"] for one in told if "copy" in one and _restored(one)]
        made = [one["path"] for one in told if one.get("made") and one["in_loop"]]
        removed = [path for path in reversed(made) if _removed(path)]
        kept = [one["path"] for one in told if one.get("made") and not one["in_loop"] and os.path.isfile(one["path"])]
        lost = [one["path"] for one in told if one.get("too_large")]
        saved = list(dict.fromkeys(one["path"] for one in told if one.get("saved")))
        parts = [
            ("put back as they were", restored),
            ("removed, since training had made them", removed),
            ("left, since the script made them before it trained", kept),
            ("too large to be copied, and written to", lost),
            ("not written, though torch.save was called", saved),
        ]
        texts = [f"{what}: {_named(paths)}" for what, paths in parts if paths]
        return "files of the script's bursts: " + "; ".join(texts) if texts else None

    def _told(self) -> list[dict[str, Any]]:
        found = []
        with contextlib.suppress(OSError):
            for line in (self.folder / JOURNAL).read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError):
                    found.append(json.loads(line))
        return found


def _restored(told: dict[str, Any]) -> bool:
    """Copies a file back where it is another one now."""
    copy, path = Path(told["copy"]), Path(told["path"])
    with contextlib.suppress(OSError):
        if path.is_file() and path.stat().st_size == copy.stat().st_size and path.read_bytes() == copy.read_bytes():
            os.utime(path, ns=(copy.stat().st_atime_ns, copy.stat().st_mtime_ns))
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(copy, path)
        return True
    return False


def _removed(path: str) -> bool:
    """Removes a file, or a folder that is empty by now."""
    with contextlib.suppress(OSError):
        if os.path.isdir(path):
            os.rmdir(path)
        else:
            os.remove(path)
        return True
    return False


def _named(paths: list[str]) -> str:
    """Some of them, as they are seen from here."""
    short = [os.path.relpath(path) if path.startswith(os.getcwd() + os.sep) else path for path in paths]
    more = f" and {len(short) - MOST_NAMED} more" if len(short) > MOST_NAMED else ""
    return ", ".join(short[:MOST_NAMED]) + more
