"""Ends processes that jobs leave running, and removes what they leave in shared memory and temporary folders.

The parent uses it after each job, and the forkserver when its parent has gone. If no process is left to do so, the
kernel kills the rest, as it was asked to.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import psutil

from autotune.hardware import running, this_process
from autotune.sandbox.process_marks import is_marked
from autotune.sandbox.system import CHILDREN_ARE_LISTED, children_of, end_with_parent, fcntl, session_of
from autotune.sandbox.view import remove_folder
from autotune.timing.usage import processes

GRACE_SECONDS = 3.0
TRACKER_SECONDS = 1.0
RUN_VARIABLE = "AUTOTUNE_RUN"
"""Set in the environment of all processes of a run, to recognise those whose parents have ended."""
KERNEL_COUNTERS = Path("/proc/vmstat")
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux keeps it, not a place for files of ours
_FOLDER_PREFIX, _OWNER = "autotune-", "owner.json"
_LONGEST_PLACE_BYTES = 107 - len("/autotune-12345678/tmp/pymp-12345678/listener-12345678")
"""The longest socket path on Linux, less what a burst, `tempfile` and `multiprocessing` add to it."""
_BUILD_FOLDER = "_CxxBuild"
"""Suffix that Inductor adds to a library's name for its compiler's folder (torch/_inductor/cpp_builder.py)."""
_BUILT = {".so", ".o", ".gch"}
_TRACKER = "resource_tracker import main"
"""In the command line of Python's resource tracker, and of joblib's."""


def children_end_with_this() -> None:
    """Has the kernel end all processes that this one will fork, such as a loader's workers, when this one ends.

    A worker checks by itself whether its parent lives, but not while it is stopped. Two kinds of process are left
    alone: those that another thread forks, since the kernel takes that thread's end for the parent's; and those that
    children fork, since the parent of a daemon ends at once.
    """
    own, main_thread = os.getpid(), True

    def before() -> None:
        nonlocal main_thread
        main_thread = threading.current_thread() is threading.main_thread()

    def after() -> None:
        if main_thread and os.getppid() == own:
            end_with_parent(True)

    if hasattr(os, "register_at_fork"):  # Windows has no fork
        os.register_at_fork(before=before, after_in_child=after)


def end_processes(find: Callable[[], Sequence[psutil.Process]]) -> None:
    """Kills the processes that `find` returns, until it returns none or the grace period is over.

    Resource trackers come last. When all its users have gone, a tracker unlinks the semaphores and shared memory that
    they left, which only it can attribute to them, and ends by itself.

    Removes what torch's compiler was writing: the user's training shares the cache, and would take half a library for a
    whole one.
    """
    started = time.monotonic()
    unfinished: set[Path] = set()
    while alive := [process for process in find() if _is_running(process)]:
        waited = time.monotonic() - started
        others = [process for process in alive if not _is_tracker(process)]
        for process in others or (alive if waited > TRACKER_SECONDS else []):
            with contextlib.suppress(psutil.Error):
                unfinished |= {Path(process.cwd())}
            with contextlib.suppress(psutil.Error):
                process.kill()
        if waited > GRACE_SECONDS:
            break
        psutil.wait_procs(others or alive, timeout=0.1 if others else 0.02)
    for folder in unfinished:
        if folder.name.endswith(_BUILD_FOLDER):
            _remove_unfinished(folder)


def _remove_unfinished(folder: Path) -> None:
    """Removes the unfinished output of a compiler that was killed in this folder."""
    name = folder.name.removesuffix(_BUILD_FOLDER)
    with contextlib.suppress(OSError):
        for file in folder.parent.iterdir():
            if file.stem == name and file.suffix in _BUILT:
                file.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def descendants(process: psutil.Process) -> list[psutil.Process]:
    """All processes below one; none if it has ended."""
    return _alive(processes(process.pid)[1:])


def children(process: psutil.Process) -> list[psutil.Process]:
    """The direct children of a process; none if it has ended.

    Runs several times per block. psutil searches all processes of the system, which takes 2 ms with eighty of them and
    more on a desktop. Where the kernel keeps a list of children, reading it takes a hundredth of that.
    """
    try:
        if not CHILDREN_ARE_LISTED:
            return process.children()
        return _alive(children_of(process.pid))
    except (psutil.Error, OSError):
        return []


def _alive(pids: Iterable[int]) -> list[psutil.Process]:
    processes = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            processes.append(psutil.Process(pid))
    return processes


def members_of_run(run: str, session: int | None = None) -> list[psutil.Process]:
    """Processes that carry a run's marks or belong to a session, even if their parents have ended."""
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid == os.getpid():
                continue
            in_session = session is not None and session_of(process.pid) == session
            if in_session or is_marked(process.pid, run) or process.environ().get(RUN_VARIABLE) == run:
                members.append(process)
    return members


def remove_shared_memory(since: float) -> None:
    """Removes torch's shared-memory files, written `since` then, whose process was killed before it unlinked them.

    Their names contain the process's id. Where containers share the folder, that process may live unseen in another
    container, so files that any process has open stay.
    """
    for file in _SHARED_MEMORY.glob("torch_*"):
        with contextlib.suppress(OSError, ValueError):
            owner = int(file.name.split("_")[1])
            if file.stat().st_mtime >= since - 1 and not psutil.pid_exists(owner) and not _is_open(file):
                file.unlink()


def _is_open(file: Path) -> bool:
    """Whether any process, perhaps in another container, has a file open, or the file is another user's.

    In both cases the kernel refuses a lease on the file. False where leases are not supported.

    Raises:
        OSError: The file cannot be read.
    """
    descriptor = os.open(file, os.O_RDONLY)
    try:
        # If another process opens the file meanwhile, the kernel sends this one a signal, which is ignored by default.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        return error.errno in {errno.EAGAIN, errno.EACCES}
    finally:
        os.close(descriptor)
    return False


def make_run_folder() -> Path:
    """Makes a temporary folder for one run; removes those of runs that were killed before they could do so.

    Raises:
        OSError: The folder cannot be made.
    """
    folder = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX, dir=_place_for_sockets()))
    own, this_user = this_process(), folder.stat().st_uid
    (folder / _OWNER).write_text(json.dumps(own))
    for other in folder.parent.glob(f"{_FOLDER_PREFIX}*/{_OWNER}"):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            place, file = other.parent.lstat(), other.lstat()
            if not stat.S_ISDIR(place.st_mode) or place.st_uid != this_user or not stat.S_ISREG(file.st_mode):
                continue  # anybody may write to the parent
            owner = json.loads(other.read_text())
            if owner[0] == own[0] and other.parent != folder and running(owner) is None:
                remove_folder(str(other.parent))
    return folder


def _place_for_sockets() -> Path:
    """The system's temporary folder; a shorter one if the paths of sockets in it would be too long.

    DataLoader workers pass tensors through such sockets, and a worker that cannot make one hangs the loader.
    """
    usual = Path(tempfile.gettempdir())
    places = (usual, Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - mkdtemp makes the folder in it
    fitting = (p for p in places if len(os.fsencode(p)) <= _LONGEST_PLACE_BYTES and os.access(p, os.W_OK | os.X_OK))
    return next(fitting, usual)


def kernel_kills() -> int:
    """How often the kernel's out-of-memory killer has struck on this machine; 0 if that is not reported."""
    with contextlib.suppress(OSError):
        if kills := re.search(r"^oom_kill (\d+)", KERNEL_COUNTERS.read_text(), re.MULTILINE):
            return int(kills[1])
    return 0


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _is_tracker(process: psutil.Process) -> bool:
    try:
        return any(_TRACKER in argument for argument in process.cmdline())
    except psutil.Error:
        return False
