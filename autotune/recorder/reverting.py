"""Reverts the files that a script wrote to in its bursts, and removes those it made: as if nothing had run.

`journal` writes the journal that is read here; copies lie beside it. The parent does it, or its watch-dog where the
parent was killed, or whoever tunes next.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable
from typing import Any, Literal

from .snapshot import MOST_FILES, differences, kept_snapshot, vanished_from

JOURNAL, LOCK = "written.jsonl", "lock"
KEPT_BYTES = 2**20
"""What a script makes before it trains, of so much or more, is data that it downloaded or prepared: it stays until the
end, so that not every start makes it again. Tiny Shakespeare has 1.1 MB."""
OF_STATUS = "/\0status"
"""What the mark of a path's mode, owner and times is made of, besides the path."""
Level = Literal["loop", "start", "end"]
"""What is undone: what training did; what starting up did, too, but for data; all."""


class Reverted:
    """What was done, by kind: lists of paths.

    Attributes:
        back: Changed by the script, and reverted.
        removed: Made by the script, and removed.
        too_large: Written to, and too large to have been copied.
        unsaved: Checkpoints that were not saved.
        far: What lies on other machines, and was not written, changed or removed.
        others: Changed, made or removed by code below Python, or by somebody else, and left.
        missed: Sentences about what was not looked at.
    """

    def __init__(self) -> None:
        self.back: list[str] = []
        self.removed: list[str] = []
        self.too_large: list[str] = []
        self.unsaved: list[str] = []
        self.far: list[str] = []
        self.others: list[str] = []
        self.missed: list[str] = []


def revert(folder: str, level: Level, spared: tuple[str, ...] = ()) -> Reverted:
    """Undoes what a journal tells, the last first.

    Args:
        folder: Where the journal lies.
        level: How much of it.
        spared: What begins like one of these paths is not the script's, and stays.
    """
    done = Reverted()
    told = _entries(folder)
    roots = _kept_roots(told) if level == "start" else ()
    left = [one for one in told if _stays(one, level, roots)]
    stays = {id(one) for one in left}
    gone = [one for one in reversed(told) if id(one) not in stays]
    if not gone and level != "end":
        return done
    before = kept_snapshot(folder)
    removing = _Removing(spared, vanished_from(before) if any(one.get("made") for one in gone) else {}, done)
    for one in gone:
        if "status" in one:
            _open_up(one["path"])
    for one in gone:
        with contextlib.suppress(OSError):
            _undo(one, done, removing)
    for one in gone:
        with contextlib.suppress(OSError):
            os.remove(one.get("copy") or mark_of(folder, one["path"] + (OF_STATUS if "status" in one else "")))
    done.back = [path for path in done.back if os.path.lexists(path)]  # not the mode of what was made and is removed
    _write(folder, left)
    if level == "end":
        elsewhere = {one["path"]: one["listed"] for one in told if "listed" in one}
        known = {*done.too_large, *done.back}
        found = [path for path in differences(before, elsewhere) if path not in known]
        done.others = [path for path in found if not _is_spared(path, (*spared, folder))]
        if not before["whole"]:
            done.missed.append(f"only the first {MOST_FILES} files of the working directory were compared")
    return done


def locked(file: Any) -> bool:
    """Locks a file against other processes until it is closed, if nobody else has; true where there are no locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def sentence(done: Reverted, named: Callable[[list[str]], str]) -> str | None:
    """What a person should know; None where nothing was.

    Args:
        done: What was done.
        named: Writes a list of paths.
    """
    # An empty file stood for a checkpoint; something else stood where a file or folder is again that was there before.
    removed = [path for path in done.removed if path not in done.unsaved and path not in done.back]
    parts = [
        ("reverted", done.back),
        ("removed, since the script had made them", removed),
        ("too large to be copied, and written to", done.too_large),
        ("not written, though a checkpoint was saved there", done.unsaved),
        ("far away, and not touched there", done.far),
        ("changed by code below Python or by somebody else meanwhile, and left as they are", done.others),
    ]
    texts = [f"{what}: {named(_outermost(paths))}" for what, paths in parts if paths]
    texts += done.missed if texts else []
    return "files of the script's bursts: " + "; ".join(texts) if texts else None


def _entries(folder: str) -> list[dict[str, Any]]:
    found = []
    with contextlib.suppress(OSError), open(os.path.join(folder, JOURNAL), encoding="utf-8") as journal:
        for line in journal:
            with contextlib.suppress(ValueError):  # the last one may be torn
                found.append(json.loads(line))
    return found


def _write(folder: str, left: list[dict[str, Any]]) -> None:
    """A journal of what is still to be undone."""
    path = os.path.join(folder, JOURNAL)
    if not left:
        with contextlib.suppress(OSError):
            os.remove(path)
        return
    with open(path + ".part", "w", encoding="utf-8") as journal:
        journal.write("".join(json.dumps(one) + "\n" for one in left))
    os.replace(path + ".part", path)


def mark_of(folder: str, place: str) -> str:
    """The file that says that a path was told in a journal; its copy, where there is one."""
    return os.path.join(folder, hashlib.sha256(place.encode("utf-8", "surrogateescape")).hexdigest()[:24])


def _stays(one: dict[str, Any], level: Level, roots: tuple[str, ...]) -> bool:
    """Whether an entry is for a later time."""
    if level == "end":
        return False
    if "listed" in one or one.get("saved") or (level == "loop" and not one["in_loop"]):
        return True
    return not one["in_loop"] and _is_below(one["path"], roots)


def _kept_roots(told: list[dict[str, Any]]) -> tuple[str, ...]:
    """What start-up made whole and is large enough to be data; all of a folder or nothing, lest half a set be left."""
    roots = _outermost([one["path"] for one in told if one.get("made") and not one["in_loop"]])
    return tuple(path for path in roots if _size(path) >= KEPT_BYTES)


def _outermost(paths: list[str]) -> list[str]:
    """Those of some paths that lie below no other one."""
    found: list[str] = []
    for path in sorted(set(paths), key=lambda path: path.split(os.sep)):
        if not found or not _is_below(path, (found[-1],)):
            found.append(path)
    return found


def _is_below(path: str, roots: tuple[str, ...]) -> bool:
    return any(path == root or path.startswith(root + os.sep) for root in roots)


def _is_spared(path: str, spared: tuple[str, ...]) -> bool:
    """Whether a path begins like one that is spared, or holds one."""
    return path.startswith(spared) or any(one.startswith(path + os.sep) for one in spared)


def _size(path: str) -> int:
    total = 0
    with contextlib.suppress(OSError):
        total = os.lstat(path).st_size if not os.path.isdir(path) else 0
    for place, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
        if total >= KEPT_BYTES:
            break
    return total


def status_of(path: str) -> list[int]:
    """Mode, owner, group, and of what is no folder the times of its last use and change in ns.

    Those of a folder say when something in it was made or removed, as reverting does.
    """
    seen = os.stat(path)
    times = [] if stat.S_ISDIR(seen.st_mode) else [seen.st_atime_ns, seen.st_mtime_ns]
    return [stat.S_IMODE(seen.st_mode), seen.st_uid, seen.st_gid, *times]


def _restated(path: str, was: list[int]) -> bool:
    """Gives something its mode, owner and times back; returns whether they were others."""
    now = status_of(path)
    has_other_owner, has_other_times = now[1:3] != was[1:3], now[4:] != was[4:]
    if has_other_owner:
        with contextlib.suppress(OSError):
            os.chown(path, was[1], was[2])
    if has_other_owner or now[0] != was[0]:  # a change of owners takes some of the mode
        os.chmod(path, was[0])
    if has_other_times and len(was) > 3:
        os.utime(path, ns=(was[3], was[4]))
    return now[:3] != was[:3] or has_other_times


def _copied_back(copy: str, path: str, was: list[int]) -> bool:
    """Copies a file back where it is another one now; returns whether it was."""
    size = os.path.getsize(copy)  # first: where there is none, since its writer was killed, nothing is touched
    in_place = os.path.isfile(path) and not os.path.islink(path)
    if in_place:
        if os.path.samefile(copy, path):
            return _restated(path, was)
        if not os.access(path, os.R_OK | os.W_OK):
            with contextlib.suppress(OSError):
                os.chmod(path, stat.S_IRUSR | stat.S_IWUSR)
        if os.path.getsize(path) == size and _same(copy, path):
            _state_back(copy, path, was)
            return False
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not in_place:
        _make_way(path)
    if in_place or not is_linked(copy, path):
        shutil.copyfile(copy, path)  # in place: others may hold it open, and links to it stay links
    _state_back(copy, path, was)
    return True


def is_linked(path: str, to: str) -> bool:
    """Gives a file a second name, under which it stays when the first one goes; false on another disk."""
    try:
        os.link(path, to)
    except OSError:
        return False
    return True


def _state_back(copy: str, path: str, was: list[int]) -> None:
    """Gives a file what it had besides its contents; of another user's that anybody may write to, nothing."""
    with contextlib.suppress(OSError):
        shutil.copystat(copy, path)
    with contextlib.suppress(OSError):
        _restated(path, was)


def _open_up(folder: str) -> None:
    """Makes a folder one in which names can be made and removed, however the script has left it; no file."""
    if os.path.isdir(folder) and not os.path.islink(folder) and not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        with contextlib.suppress(OSError):
            os.chmod(folder, stat.S_IRWXU)


def _make_way(path: str) -> None:
    """Removes what stands where something else was: a link, a pipe, a file; no folder."""
    if os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path)):
        os.remove(path)


def _renamed_back(beside: str, path: str) -> bool:
    """Gives a file its name back, of which another one was kept on its disk; returns whether it had lost it."""
    if os.path.lexists(path) and os.path.samestat(os.lstat(beside), os.lstat(path)):
        os.remove(beside)
        return False
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.replace(beside, path)
    return True


def _same(one: str, other: str) -> bool:
    with open(one, "rb") as mine, open(other, "rb") as theirs:
        while chunk := mine.read(2**20):
            if chunk != theirs.read(2**20):
                return False
    return True


def _undo(one: dict[str, Any], done: Reverted, removing: _Removing) -> None:
    """One entry, as if it had not been.

    Raises:
        OSError: It cannot be.
    """
    path = one["path"]
    if one.get("saved"):
        (done.far if one.get("far") else done.unsaved).append(path)
    elif one.get("too_large"):
        done.too_large.append(path)
    elif one.get("made"):
        if removing.remove(path):
            done.removed.append(path)
    elif _is_back(one, path):
        done.back.append(path)


def _is_back(one: dict[str, Any], path: str) -> bool:
    """Makes what was there before what it was; returns whether it was anything else."""
    if "copy" in one:
        return _copied_back(one["copy"], path, one.get("was") or status_of(one["copy"]))
    if "beside" in one:
        return _renamed_back(one["beside"], path)
    if "status" in one:
        return _restated(path, one["status"])
    if "moved_to" in one and os.path.isdir(one["moved_to"]) and not os.path.lexists(path):
        os.rename(one["moved_to"], path)
    elif "link_to" in one and not (os.path.islink(path) and os.readlink(path) == one["link_to"]):
        _make_way(path)
        os.symlink(one["link_to"], path)
    elif "folder" in one and not os.path.isdir(path):
        _make_way(path)
        os.makedirs(path)
        os.chmod(path, one["folder"])
    elif "size" in one and os.path.getsize(path) > one["size"]:
        os.truncate(path, one["size"])
    else:
        return False
    return True


class _Removing:
    """Removes what was made.

    Args:
        spared: What begins like one of these paths stays.
        vanished: Files that have gone from the working directory: path, size and time of the last change by inode.
        done: Told of what goes back.
    """

    def __init__(self, spared: tuple[str, ...], vanished: dict[int, tuple[str, int, int]], done: Reverted) -> None:
        self._spared = spared
        self._vanished = vanished
        self._done = done

    def remove(self, path: str) -> bool:
        """Removes it with all that is in it; what had been moved into it goes back to where it was.

        Returns:
            Whether nothing is left.
        """
        if not os.path.lexists(path) or path.startswith(self._spared):
            return False
        if os.path.isdir(path) and not os.path.islink(path):
            _open_up(path)
            for name in os.listdir(path):
                self.remove(os.path.join(path, name))
            if os.listdir(path):
                return False
            os.rmdir(path)
            return True
        seen = os.lstat(path)
        home, size, changed = self._vanished.get(seen.st_ino, ("", -1, -1))
        if home and (size, changed) == (seen.st_size, seen.st_mtime_ns) and not os.path.lexists(home):
            os.rename(path, home)
            self._done.back.append(home)
            return False
        os.remove(path)
        return True
