"""The journal of the files that a script writes to in a burst, so that they can be reverted.

What Python opens for writing, makes, renames or removes is told in a journal beforehand, and copied if it is there;
`reverting` undoes it. The journal and the copies are on the disk before the script's own write begins.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator
from time import monotonic, sleep
from typing import Any

from . import marks
from .audited import NOTED, wrap_makers
from .failing import NotKeptError
from .reverting import JOURNAL, LOCK, OF_STATUS, is_linked, locked, mark_of, status_of
from .snapshot import listed

MOST_COPIED_BYTES = 2**30
"""Of a file: a copy of more would take longer than the burst. What is only removed or renamed is linked, not copied;
where the journal lies on another disk, beside the file."""
MOST_LISTED_ELSEWHERE = 2000
"""Entries of a folder outside the working directory that are looked at when a script first writes into it. Chosen."""
CACHES = ("~/.cache", "~/.triton", "~/.nv")
CACHE_VARIABLES = (
    "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_HOME", "TORCH_EXTENSIONS_DIR", "HF_HOME",
    "HF_HUB_CACHE", "HF_DATASETS_CACHE", "CUDA_CACHE_PATH", "NUMBA_CACHE_DIR", "MPLCONFIGDIR",
)  # fmt: skip
"""Caches are left alone: what is in them is found by what it was made of, and the user's training starts warm by it."""
_PYTHONS_OWN = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
"""Of `sysconfig.get_paths`. Not the prefix: a project may lie in /usr/src, or in the folder of its environment."""
_LOCK_SECONDS = 5.0
"""For another process of the script to finish a copy; it may have been stopped in the middle of one."""
_state = threading.local()
_in_loop = [False]


_begun: list[Journal] = []


def begin(folder: str) -> None:
    """From here on what is written is told in a folder, and what is started carries the folder's mark.

    To be called before the script's first line, without torch.
    """
    marks.mark(folder)
    places = [folder, "/dev", "/proc", "/sys", tempfile.gettempdir(), *map(os.path.expanduser, CACHES)]
    tempfile.tempdir = None  # the script may still name another one
    paths = sysconfig.get_paths()
    places += [paths[name] for name in _PYTHONS_OWN]
    journal = Journal(folder, places, os.path.realpath(os.curdir))
    journal.leave_caches_alone()
    _begun[:] = [journal]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in NOTED or getattr(_state, "busy", False):
            return
        _state.busy = True
        try:
            NOTED[event](journal, arguments)
        except NotKeptError:  # rather than lose the file, the script fails
            raise
        except Exception:  # noqa: BLE001, S110 - whatever else a script does with its files must go on
            pass
        finally:
            _state.busy = False

    sys.addaudithook(hook)
    wrap_makers(journal)


def begun() -> Journal:
    """The journal of this process."""
    return _begun[0]


def in_loop() -> None:
    """From here on what is made is training's."""
    _in_loop[0] = True


class Journal:
    """What is told of one run of a script; its processes share it.

    A line is written first, then its mark, and then the script goes on: whoever is killed between leaves a file that is
    as it was, and that the next one tells again.

    Args:
        folder: Where it lies.
        apart: Places whose files nobody needs back.
        home: The working directory, which the parent has looked through.
    """

    def __init__(self, folder: str, apart: list[str], home: str) -> None:
        self._folder = folder
        self._home = home + os.sep
        self._apart: tuple[str, ...] = ()
        self._leave_alone(apart)
        self._made: dict[str, bool] = {}  # and whether in the loop
        self._unsaved: set[str | None] = set()

    def leave_caches_alone(self) -> None:
        """Those that the environment names now: a script may name some itself, before it imports what reads that."""
        named = [os.environ[name] for name in CACHE_VARIABLES if os.environ.get(name)]
        # One that holds the project would leave all of its files unprotected.
        self._leave_alone([one for one in named if not self._home.startswith(os.path.join(os.path.realpath(one), ""))])

    def _leave_alone(self, places: list[str]) -> None:
        self._apart += tuple(os.path.join(os.path.realpath(place), "") for place in places)

    def written(self, path: Any, *, appends: bool = False) -> None:
        """A file is about to be written to, in place.

        Raises:
            NotKeptError: It cannot be copied.
        """
        place = _resolved(path)
        if place is None or not self._concerns(place):
            return
        mark = self._mark(place)
        with _kept(place), self._alone():
            if os.path.lexists(mark):
                if os.path.isfile(place) and os.path.samefile(mark, place):  # linked when it was to be removed
                    _copy(place, mark)
                return
            if not os.path.lexists(place):
                self._tell_made(place, mark)
            elif os.path.isfile(place):
                size = os.path.getsize(place)
                if size <= MOST_COPIED_BYTES:
                    self._tell(path=place, copy=mark, was=status_of(place))
                    _copy(place, mark)
                else:
                    self._tell(path=place, **({"size": size} if appends else {"too_large": True}))
                    _touch(mark)

    def unlinked(self, path: Any, folder: Any = -1, *, lives: bool = False) -> None:
        """A name is about to go, or to stand for something else; the file itself is not written to.

        Args:
            path: The name.
            folder: Descriptor of the folder that it starts from.
            lives: Whether the file lives on by another name, by which it may be written to later.

        Raises:
            NotKeptError: It can be neither linked nor copied.
        """
        place = _resolved(path, folder, follow=False)
        if place is None or not self._concerns(place):
            return
        mark = self._mark(place)
        with _kept(place), self._alone():
            if os.path.lexists(mark) or not os.path.lexists(place):
                return
            if os.path.islink(place):
                self._tell(path=place, link_to=os.readlink(place))
                _touch(mark)
            elif os.path.isfile(place):
                fits = os.path.getsize(place) <= MOST_COPIED_BYTES
                if not fits and _disk_of(place) != _disk_of(self._folder):
                    self._link_beside(place, mark)
                    return
                self._tell(path=place, copy=mark, was=status_of(place))
                if (lives and fits) or not is_linked(place, mark):
                    if not fits:
                        raise OSError("it is too large to be copied")
                    _copy(place, mark)
            elif not os.path.isdir(place):  # a socket, a pipe, a device: what comes out of it is not for us to read
                self._link_beside(place, mark)

    def restated(self, path: Any, folder: Any = -1) -> None:
        """Mode, owner or times of something are about to change."""
        named = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else path
        place = _resolved(named, folder)
        if place is None or not self._concerns(place) or place in self._made or not os.path.lexists(place):
            return
        mark = self._mark(place + OF_STATUS)
        with self._alone():
            if not os.path.lexists(mark):
                self._tell(path=place, status=status_of(place))
                _touch(mark)

    def made(self, path: Any, folder: Any = -1) -> None:
        """A name is about to be made."""
        place = _resolved(path, folder, follow=False)
        if place is None or not self._concerns(place) or os.path.lexists(place):
            return
        mark = self._mark(place)
        with self._alone():
            if place not in self._made or not os.path.lexists(mark):  # another thing of this name may have been kept
                self._tell_made(place, mark)

    def folder_removed(self, path: Any, folder: Any = -1) -> None:
        """An empty folder is about to go."""
        place = _resolved(path, folder, follow=False)
        if place is None or not self._concerns(place) or not os.path.isdir(place):
            return
        mark = self._mark(place)
        with self._alone():
            if not os.path.lexists(mark):
                self._tell(path=place, folder=os.stat(place).st_mode & 0o7777)
                _touch(mark)

    def renamed(self, source: Any, target: Any, source_folder: Any = -1, target_folder: Any = -1) -> None:
        """A name is about to become another one."""
        place = _resolved(source, source_folder, follow=False)
        moved = place is not None and os.path.isdir(place) and not os.path.islink(place) and self._concerns(place)
        if moved and place is not None and not os.path.lexists(self._mark(place)):  # a folder that was there before
            with self._alone():
                self._tell(path=place, moved_to=_resolved(target, target_folder, follow=False))
            return
        self.unlinked(source, source_folder, lives=True)
        self.unlinked(target, target_folder)
        self.made(target, target_folder)

    def linked(self, source: Any, target: Any, _: Any = -1, target_folder: Any = -1) -> None:
        """A file is about to get another name, by which it may be written to later."""
        self.written(source)
        self.pointed(target, target_folder)

    def pointed(self, path: Any, folder: Any = -1) -> None:
        """A name is about to be made for something else, perhaps in the place of a file that went: told every time."""
        place = _resolved(path, folder, follow=False)
        if place is not None and self._concerns(place) and not os.path.lexists(place):
            with self._alone():
                self._tell_made(place, self._mark(place))

    def is_of_another(self, path: Any, folder: Any = -1) -> bool:
        """Whether something was made by another process of this run, and was not there before it."""
        place = _resolved(path, folder, follow=False)
        return place is not None and place not in self._made and os.path.lexists(self._mark(place))

    def can_copy(self, path: Any) -> bool:
        """Whether a file could be reverted if it were written to; true where there is none."""
        place = _resolved(path)
        return place is None or not os.path.isfile(place) or os.path.getsize(place) <= MOST_COPIED_BYTES

    def saved(self, path: Any, *, far: bool = False) -> None:
        """A checkpoint is not written, or what lies far away is not written, changed or removed."""
        place = path if far else _resolved(path)
        if place not in self._unsaved:
            self._unsaved.add(place)
            self._tell(path=place, saved=True, far=far)

    def _concerns(self, place: str) -> bool:
        """Whether somebody may want it back; not what lies in a folder that was made just now, and goes with it."""
        if (place + os.sep).startswith(self._apart) or "__pycache__" in place:
            return False
        above = place
        while (folder := os.path.dirname(above)) != above:
            if self._made.get(folder) is _in_loop[0]:
                return False
            above = folder
        return True

    def _mark(self, place: str) -> str:
        return mark_of(self._folder, place)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process of the script tells anything meanwhile: nobody writes to what is still being copied."""
        deadline = monotonic() + _LOCK_SECONDS
        with open(os.path.join(self._folder, LOCK), "a") as lock:
            while not locked(lock) and monotonic() < deadline:
                sleep(0.001)
            yield

    def _link_beside(self, place: str, mark: str) -> None:
        """Gives a file a second name on its own disk: beside the journal, in the working directory, or beside it.

        Not beside it where that can be helped: whoever removes a folder finds it empty in the end.
        """
        disk = _disk_of(place)
        near = next((one for one in (self._folder, self._home) if _disk_of(one) == disk), os.path.dirname(place))
        beside = os.path.join(near, f".autotune-{os.path.basename(self._folder)}-{os.path.basename(mark)}")
        self._tell(path=place, beside=beside)
        os.link(place, beside)
        _touch(mark)

    def _tell_made(self, place: str, mark: str) -> None:
        self._made[place] = _in_loop[0]
        self._tell(path=place, made=True)
        _touch(mark)

    def _tell(self, **told: Any) -> None:
        """Writes a line, on the disk before the script goes on; of a folder elsewhere also what lay in it."""
        lines = [{**told, "in_loop": _in_loop[0]}]
        around = os.path.dirname(str(told["path"]))
        if not (around + os.sep).startswith(self._home) and not told.get("saved") and os.path.isdir(around):
            mark = self._mark(around + os.sep)
            if not os.path.lexists(mark):
                _touch(mark)
                if (entries := listed(around, MOST_LISTED_ELSEWHERE)) is not None:
                    lines.insert(0, {"path": around, "listed": entries, "in_loop": False})
        with open(os.path.join(self._folder, JOURNAL), "a", encoding="utf-8") as journal:
            journal.write("".join(json.dumps(line) + "\n" for line in lines))
            journal.flush()
            os.fsync(journal.fileno())


def _resolved(path: Any, folder: Any = -1, *, follow: bool = True) -> str | None:
    """A path in full, from the folder of a descriptor where one is given; None for what is none.

    Args:
        path: As Python was given it.
        folder: Descriptor of the folder that it starts from; -1: the working directory.
        follow: Whether a link stands for what it leads to, as for whoever opens it; not for whoever removes it.
    """
    if not isinstance(path, (str, bytes, os.PathLike)):
        return None
    named = os.fsdecode(path)
    if isinstance(folder, int) and folder >= 0 and not os.path.isabs(named):
        named = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), named)
    if follow:
        return os.path.realpath(named)
    named = os.path.abspath(named)
    return os.path.join(os.path.realpath(os.path.dirname(named)), os.path.basename(named))


@contextlib.contextmanager
def _kept(place: str) -> Iterator[None]:
    """What fails here fails whoever is about to change a file that is still there.

    Raises:
        NotKeptError: The file could not be kept.
    """
    try:
        yield
    except OSError as error:
        if os.path.isfile(place):
            raise NotKeptError(
                f"{place} could not be kept as it was ({error.strerror or error}), so that a burst must not change it; "
                "free disk space, or see to it that it can be read"
            ) from error
        raise


def _disk_of(place: str) -> int:
    return os.stat(place).st_dev


def _touch(mark: str) -> None:
    os.close(os.open(mark, os.O_CREAT | os.O_WRONLY))


def _copy(place: str, mark: str) -> None:
    """Copies a file whole or not at all, and onto the disk."""
    shutil.copy2(place, mark + ".part")
    with open(mark + ".part", "rb") as copied:
        os.fsync(copied.fileno())
    os.replace(mark + ".part", mark)
