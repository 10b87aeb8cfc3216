"""What folders hold, before a script runs and after: code below Python writes to files that nobody is told of.

Sizes, times and modes are compared, not contents.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

BEFORE = "before.json"
MOST_FILES = 20_000
"""Of the working directory, that are looked at before and after: some 0.2 s each time. Chosen."""
UNSEEN = {"__pycache__", ".git"}
"""Folders that are not looked through."""
Entries = dict[str, list[int]]
"""Of a folder: size, time of the last change in ns, inode, and mode, by name; of folders in it, nothing."""


def look_before(folder: str, home: str, ignored: set[int]) -> None:
    """Keeps what the working directory holds, for `revert` to compare with in the end.

    Args:
        folder: Where the journal lies.
        home: The working directory.
        ignored: Inodes of files that change anyway, such as what this process prints to.
    """
    folders: dict[str, Entries] = {}
    room, pending, whole = MOST_FILES, [home], True
    while pending:
        place = pending.pop(0)  # level by level: what lies deepest is most likely data
        entries = listed(place, room)
        if entries is None:
            whole = False
            continue
        room -= len(entries)
        folders[place] = {name: seen for name, seen in entries.items() if not seen or seen[2] not in ignored}
        pending += [os.path.join(place, name) for name, seen in entries.items() if not seen and name not in UNSEEN]
    text = json.dumps({"folders": folders, "ignored": sorted(ignored), "whole": whole})
    with open(os.path.join(folder, BEFORE), "w", encoding="utf-8") as file:
        file.write(text)


def listed(folder: str, most: int) -> Entries | None:
    """What a folder holds; None where it cannot be read, or has more entries than that."""
    found: Entries = {}
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if len(found) == most:
                return None
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    found[entry.name] = []
                else:
                    seen = entry.stat(follow_symlinks=False)
                    found[entry.name] = [seen.st_size, seen.st_mtime_ns, seen.st_ino, seen.st_mode]
        return found
    return None


def kept_snapshot(folder: str) -> dict[str, Any]:
    """What `look_before` kept; an empty one where it was not called."""
    with contextlib.suppress(OSError, ValueError), open(os.path.join(folder, BEFORE), encoding="utf-8") as file:
        return dict(json.load(file))
    return {"folders": {}, "ignored": [], "whole": True}


def vanished_from(before: dict[str, Any]) -> dict[int, tuple[str, int, int]]:
    """Files that have gone, perhaps elsewhere: path, size and time of the last change by inode."""
    found = {}
    for place, entries in before["folders"].items():
        for name, seen in entries.items():
            if seen and not os.path.lexists(path := os.path.join(place, name)):
                found[seen[2]] = (path, seen[0], seen[1])
    return found


def differences(before: dict[str, Any], elsewhere: Mapping[str, Entries]) -> list[str]:
    """Paths that are others now, new, or gone.

    Args:
        before: What `kept_snapshot` returned.
        elsewhere: What other folders held.
    """
    folders = {**before["folders"], **elsewhere}
    ignored = {*before["ignored"]}
    return [os.path.join(place, name) for place in folders for name in _differing(place, folders[place], ignored)]


def _differing(place: str, entries: Entries, ignored: set[int]) -> Iterator[str]:
    now = listed(place, 2 * MOST_FILES)
    if now is None:
        return
    for name in {*entries, *now} - UNSEEN:
        was, seen = entries.get(name), now.get(name)
        if (was is None or seen is None or _differ(was, seen)) and not (seen and seen[2] in ignored):
            yield name


def _differ(was: list[int], seen: list[int]) -> bool:
    """Whether a file is another now, whatever its inode; an older autotune has not kept the mode."""
    return was[:2] != seen[:2] or (len(was) > 3 and was[3:] != seen[3:])
