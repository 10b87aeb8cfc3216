"""Protection of your files while a script runs: what this machine offers, and the layers.

There are three rows, the best first: a private view (overlays in namespaces), Landlock, and none. In the first two, a
script cannot change a file outside the scratch folder, whatever it runs and however it ends, so nothing is ever
restored.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from autotune.errors import IsolationError, UsageError
from autotune.sandbox import landlock
from autotune.sandbox.calls import MACHINES
from autotune.sandbox.supervisor import Rules, Supervisor, denied
from autotune.sandbox.system import LINUX
from autotune.sandbox.view import AS_THEY_ARE, Plan, is_below, remove_folder, upper
from autotune.sandbox.watchdog import DONE
from autotune.units import format_bytes

Row = Literal["overlay", "landlock", "none"]
KEPT_BYTES = 2**20
"""New files or folders of this size or more are data that start-up downloaded or prepared, and later starts get them.
Smaller ones are made again, as in a first start. Tiny Shakespeare has 1.1 MB."""
LEAST_FREE_BYTES, SCANT_BYTES = 2**26, 2**30
"""Free space for layers: below the first no burst starts, below the second a note is shown. Not tuned: skipped
checkpoints take none, and the size of prepared data is unknown."""
EXPLORING_SECONDS, ENTERING_SECONDS, ENDING_SECONDS = 20.0, 20.0, 5.0
"""Time limits for processes that need milliseconds; beyond these the machine is stuck."""
_RUN = "import sys; sys.path.append({place!r}); from sandbox.{module} import {name}; {name}()"
"""Runs a module by its path: such a process needs no installed package, and starts in 0.03 s."""
_APPARMOR = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
_MPS = "/tmp/nvidia-mps"  # noqa: S108 - NVIDIA's default; overlays cannot carry its pipes
_DENIED = re.compile(
    r"(?:(?P<before>[^\s:'\"‘’]+)['\"’]?: )?(?P<why>Permission denied|Read-only file system|No space left on device)"
    r"(?:: ['\"](?P<after>[^'\"]+))?"
)
"""Matches the message of shells, Python and C programs."""
_START, _PLACES = "start", ("/var/tmp", "/dev/shm")  # noqa: S108 - `mkdtemp` makes the folders in them


@dataclass(frozen=True)
class Offer:
    """The best row that this machine offers."""

    row: Row
    reasons: tuple[str, ...] = ()  # why no better row is available, a sentence each
    plan: Plan | None = None  # of a private view; None in the other rows

    @property
    def sentence(self) -> str:
        """The offer in words."""
        because = f" ({'; '.join(self.reasons)})" if self.reasons else ""
        return f"{_SAID[self.row]}{because}"


_SAID: dict[Row, str] = {
    "overlay": "a private view: whatever a script changes in bursts stays in a scratch folder",
    "landlock": "Landlock: bursts of a script can change files only in a scratch folder and below --writable",
    "none": "not protected by the kernel: scripts are run only with --writable",
}


def find_offer(scratch: Path | None = None, through: Sequence[str] = (), *, is_writable: bool = False) -> Offer:
    """Finds out by trial what this machine offers.

    Args:
        scratch: Folder for layers; None for a temporary one, which is removed.
        through: Paths that a view would bind unchanged.
        is_writable: Whether the script may change some of these. See `view.override_modes`: Landlock is better then.
    """
    if scratch is None:
        with tempfile.TemporaryDirectory(prefix="autotune-") as folder:
            offer = find_offer(Path(folder).resolve(), through)
        if offer.plan is not None:
            remove_folder(offer.plan.scratch)
        return offer
    if not LINUX:
        return Offer("none", (f"{sys.platform} has neither namespaces nor Landlock",))
    if is_writable and os.geteuid() != 0 and _has_landlock():
        return Offer("landlock", ("no private view: in yours, programs would ignore the modes of files in --writable",))
    plan, error = _explored(scratch, through)
    if plan is not None:
        return Offer("overlay", plan=plan)
    reasons = (f"no private view: {error}{_why_no_namespace()}",)
    if _has_landlock():
        return Offer("landlock", reasons)
    is_unknown = landlock.version() > 0
    why = f"the system calls of {os.uname().machine} are not known" if is_unknown else "the kernel offers none"
    return Offer("none", (*reasons, f"no Landlock: {why}"))


def _has_landlock() -> bool:
    return landlock.version() > 0 and os.uname().machine in MACHINES


def _own_command(module: str, name: str, *arguments: str) -> list[str]:
    """The command that runs a function of this package in a new interpreter."""
    code = _RUN.format(place=str(Path(__file__).parents[1]), module=module, name=name)
    return [sys.executable, "-I", "-S", "-c", code, *arguments]


def _why_no_namespace() -> str:
    """Names Ubuntu's setting that keeps users from mounting in a user namespace, if it is on."""
    with contextlib.suppress(OSError):
        if _APPARMOR.read_text().strip() == "1":
            return f", since sysctl kernel.{_APPARMOR.name} is 1"
    return ""


def _explored(scratch: Path, through: Sequence[str]) -> tuple[Plan | None, str]:
    """Makes a plan in the first folder that can hold layers; else returns why the best folder cannot.

    Landlock is better than layers in a folder with little space: its own lie in `scratch`.
    """
    refusal = ""
    for place in (scratch, *map(Path, _PLACES)):
        folder = place
        if place is not scratch:
            try:
                if _has_landlock() and shutil.disk_usage(place).free < SCANT_BYTES:
                    continue
                folder = Path(tempfile.mkdtemp(prefix="autotune-", dir=place))
            except OSError:
                continue
        command = _own_command("entry", "explore", str(folder), *through)
        try:
            trial = subprocess.run(command, capture_output=True, timeout=EXPLORING_SECONDS, text=True)
            answer = json.loads(trial.stdout or '{"plan": null, "error": "the process that tried ended early"}')
        except subprocess.TimeoutExpired:
            answer = {"plan": None, "error": f"looking for one took more than {EXPLORING_SECONDS:.0f} s"}
        except OSError as error:
            answer = {"plan": None, "error": str(error)}
        if answer["plan"] is not None:
            return Plan.of(answer["plan"]), ""
        refusal = refusal or answer["error"]
        if folder is not scratch:
            remove_folder(str(folder))
    return None, refusal


def _mps_folder() -> list[str]:
    """The folder of NVIDIA's MPS, if there is one. Any user may put a link at the default place, but not above it."""
    named = os.environ.get("CUDA_MPS_PIPE_DIRECTORY")
    above, name = os.path.split(_MPS)
    place = os.path.realpath(named) if named else os.path.join(os.path.realpath(above), name)
    with contextlib.suppress(OSError):
        seen = os.lstat(place)
        if stat.S_ISDIR(seen.st_mode) and (named or seen.st_uid in {0, os.geteuid()}):
            return [place]
    return []


class Protection:
    """Keeps all starts of one script from changing your files.

    Args:
        run: Temporary folder.
        note: Receives notes for the user.
        writable: Paths that the script may change for real.
        any_network: Allows connections to anywhere after the first step.
        caches: Existing folders that all bursts share with later runs.

    Attributes:
        shared: Folder that all processes of the script see unchanged; it holds sockets.
        offer: The row; set by `begin`.
    """

    def __init__(
        self,
        run: Path,
        note: Callable[[str], None],
        writable: Sequence[Path] = (),
        *,
        any_network: bool = False,
        caches: Sequence[Path] = (),
    ) -> None:
        run = run.resolve()  # the kernel lists mounts by their real paths
        self._run = run
        self._note = note
        self._through = [*(str(path.resolve()) for path in (*writable, *caches)), *_mps_folder()]
        self._is_writable = bool(writable)
        self.shared = run / "shared"
        self.shared.mkdir()
        self.offer = Offer("none")
        self._layers = run / "layers"
        self._rules = Rules(any_network=any_network, writable=None, note=note)
        self._supervisors: dict[str, Supervisor] = {}
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._has_start = False
        self._start_states: dict[str, dict[str, tuple[int, int]]] = {}

    def begin(self) -> None:
        """Finds the row, checks the space for layers, and starts the watchdog; does nothing when called again.

        Raises:
            UsageError: This machine offers no protection, and no writable path was given.
            IsolationError: There is no space for layers.
        """
        if self._watchdog is not None:
            return
        with self.storing():
            self._layers.mkdir()
        through = [str(self.shared), *self._through]
        self.offer = find_offer(self._layers, through, is_writable=self._is_writable)
        if self.offer.plan is not None:
            self._layers = Path(self.offer.plan.scratch)
        if self.offer.row == "none":
            self._require_word()
        elif self.offer.row == "landlock":
            self._rules.writable = [place for place in self._landlocked if place != "/proc"]
            self._note(f"your files: {self.offer.sentence}")
        else:
            self._note_plan(self.offer.plan)
        self._require_disk()
        self._check_room()
        self._watchdog = subprocess.Popen(
            _own_command("watchdog", "main", str(self._run), str(self._layers)),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def _require_word(self) -> None:
        if not self._is_writable:
            raise UsageError(
                f"this machine cannot keep a script from changing your files ({'; '.join(self.offer.reasons)}); "
                "if the script may write for real, pass --writable . ; or write a build() for it, as the README shows"
            )
        self._note(
            "files: the kernel protects none on this machine; checkpoints and trackers are silenced, and this is all "
            "the protection there is"
        )

    def _require_disk(self) -> None:
        here = os.path.realpath(os.curdir)
        if self.offer.row != "none" and is_below(here, AS_THEY_ARE) and not is_below(here, self._through):
            raise UsageError(
                f"expected a working directory on a disk, got {here}: the kernel cannot keep what lies there from "
                "changing; move it, or pass --writable . if the script may change it"
            )

    def _note_plan(self, plan: Plan | None) -> None:
        assert plan is not None  # noqa: S101 - this row has one
        here = os.path.realpath(os.curdir)
        for path, why in plan.read_only.items():
            if why and (is_below(path, [here]) or is_below(here, [path])):
                self._note(_unwritable(path, why))

    def _check_room(self) -> None:
        free = shutil.disk_usage(self._layers).free
        if free < LEAST_FREE_BYTES:
            raise IsolationError(
                f"expected {format_bytes(LEAST_FREE_BYTES)} or more of free space in {self._layers.parent}, got "
                f"{format_bytes(free)}: what a script writes in bursts is kept there; free some, or point TMPDIR at "
                "another disk"
            )
        if free < SCANT_BYTES:
            self._note(
                f"only {format_bytes(free)} are free in {self._layers.parent}, where the script's writes are kept"
            )

    @contextlib.contextmanager
    def storing(self) -> Iterator[None]:
        """While open, files are written to scratch.

        Raises:
            IsolationError: One cannot be written.
        """
        try:
            yield
        except OSError as error:
            is_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
            free = f"free space in {self._layers.parent}, or " if is_full else ""
            raise IsolationError(
                f"the folder for a script's files cannot be written ({error}); {free}point TMPDIR at another disk"
            ) from error

    @property
    def sentence(self) -> str:
        """How your files are protected, and the free space for a script's writes; set by `begin`."""
        if self.offer.row == "none":
            return self.offer.sentence
        return f"{self.offer.sentence}; {format_bytes(shutil.disk_usage(self._layers).free)} are free there"

    @property
    def _landlocked(self) -> list[str]:
        return [str(self._run), "/dev", "/proc", *self._through]

    def layer(self, name: str) -> Path:
        """The folder of a start's or a job's layer."""
        return self._layers / name

    def prepare_fork(self, name: str, server: str) -> dict[str, Any] | None:
        """Orders for a process that is forked for a job, to enter its own layer; None if it has none."""
        if self.offer.row == "landlock":
            with self.storing():
                try:
                    link_tree(self.layer(server), self.layer(name))
                except OSError:
                    remove_folder(str(self.layer(name)))
                    raise
            return {"mirror": str(self.layer(name))}
        if self.offer.plan is not None:
            return {"plan": vars(self.offer.plan), "layer": str(self.layer(name))}
        return None

    def orders(self, name: str) -> dict[str, Any]:
        """Orders that describe the sandbox to the recorder in it."""
        mirror = {"layer": str(self.layer(name)), "allowed": self._landlocked} if self.offer.row == "landlock" else None
        return {"row": self.offer.row, "mirror": mirror, "any_network": self._rules.any_network}

    def command(self, words: Sequence[str], name: str, channel: int, *, forks: bool) -> list[str]:
        """The command that enters the sandbox and becomes the given one.

        Args:
            words: The script's command.
            name: Name of the start's layer.
            channel: Descriptor of a socket that is inherited; `attend` reads from its other end.
            forks: Whether jobs will be forked, which leaves no room for another overlay below theirs.

        Raises:
            IsolationError: There is no space for its files.
        """
        if not LINUX:
            return [*words]
        start, layer = self.layer(_START), self.layer(name)
        has_layer = self.offer.row != "none"
        self._check_start()
        orders = {
            "run": str(self._run),
            "channel": channel,
            "plan": vars(self.offer.plan) if self.offer.plan is not None else None,
            "layer": str(layer),
            "start": str(start) if self._has_start and not forks else None,
            "writable": self._landlocked if self.offer.row == "landlock" else None,
            "asks": os.uname().machine in MACHINES,
        }
        file = self.shared / f"{name}.json"
        with self.storing():
            if has_layer:
                layer.mkdir(parents=True, exist_ok=True)
            if has_layer and self._has_start and (forks or self.offer.plan is None):
                link_tree(start, layer)  # the kernel stacks two overlays at most, and a job's is the second
            file.write_text(json.dumps(orders))
        return _own_command("entry", "main", str(file), *words)

    def attend(
        self,
        name: str,
        pid: int,
        channel: socket.socket,
        *,
        looks: bool,
        forks: bool,
        ending: Callable[[], str] = lambda: "it ended",
    ) -> None:
        """Waits until a start's process has entered its sandbox, and answers its calls from then on.

        `ending` says how the process has ended.

        Raises:
            IsolationError: The process cannot enter.
        """
        if not LINUX:
            return
        channel.settimeout(ENTERING_SECONDS)
        try:
            message, descriptors, _, _ = socket.recv_fds(channel, 65536, 1)
        except OSError as error:
            remedy = "; end other work on this machine" if isinstance(error, TimeoutError) else ""
            raise IsolationError(f"a process did not enter its sandbox ({error}){remedy}") from None
        if not message:
            raise IsolationError(f"a process could not enter its sandbox: {ending()}")
        answer = json.loads(message)
        if answer["error"] is not None:
            raise IsolationError(
                f"a process could not enter its sandbox ({answer['error']}); free space in {self._layers.parent}, or "
                "point TMPDIR at another disk"
            )
        if descriptors:
            os.set_inheritable(descriptors[0], False)  # a process that kept it would hold calls forever
            self._supervisors[name] = Supervisor(descriptors[0], self._rules, pid, looks=looks, forks=forks)
        elif answer["deaf"] is not None:
            self._rules.report("deaf", f"network: connections of bursts are not watched ({answer['deaf']})")

    def hint(self, text: str) -> str:
        """A hint if the script prints that the sandbox has denied it a write; else an empty text."""
        hints = (self._hint(match["why"], match["after"] or match["before"] or "") for match in _DENIED.finditer(text))
        return next(filter(None, hints), "")

    def _hint(self, why: str, path: str) -> str:
        if why == "No space left on device":
            return "" if self.offer.row == "none" else self._hint_of_space()
        if why == "Read-only file system":
            return self._hint_of_mount(os.path.realpath(path))
        path = os.path.abspath(path)
        is_denied_outside = not os.access(path if os.path.exists(path) else os.path.dirname(path), os.W_OK)
        if self.offer.row != "landlock" or is_denied_outside:
            return ""
        return f"; {denied(path, 'in bursts the kernel lets it be changed in scratch only')}"

    def _hint_of_space(self) -> str:
        free = shutil.disk_usage(self._layers).free
        if free >= LEAST_FREE_BYTES:
            return ""  # another disk is full, or shared memory
        return (
            f"; what a script writes in bursts is kept in {self._layers.parent}, which has {format_bytes(free)} left; "
            "delete something, or point TMPDIR at another disk"
        )

    def _hint_of_mount(self, path: str) -> str:
        read_only = self.offer.plan.read_only if self.offer.plan is not None else {}
        place = max((place for place in read_only if is_below(path, [place])), key=len, default="")
        why = read_only.get(place)
        return f"; {_unwritable(place, why)}" if why else ""

    def note_reading(self, host: str) -> None:
        """Notes an address that reading data connected to in the process that trains."""
        self._rules.read_from.add(host)

    def keep_start(self, name: str) -> None:
        """Keeps the files that start-up has made, from the layer of a start whose training begins now.

        It keeps new files and folders that are large enough to be data. They are linked, so those that training changes
        are dropped before the next start.
        """
        for number, folder in enumerate(self._parts(name)):
            for path in _new_roots(folder, self._lower(number)):
                relative = os.path.relpath(path, self.layer(name))
                kept = self.layer(_START) / relative
                states = _states(path)
                if sum(size for size, _ in states.values()) >= KEPT_BYTES:
                    self._start_states[relative] = states
                    with contextlib.suppress(OSError):  # the script may still change it; gaps are detected before use
                        link_tree(Path(path), kept)
        self._has_start = bool(self._start_states)

    def forget_start(self) -> bool:
        """Makes each start begin like the first one; returns whether that changes anything."""
        had, self._has_start = self._has_start, False
        return had

    def _check_start(self) -> None:
        """Drops kept data that a start has changed through their links, so that the next start makes them again."""
        for relative, states in [*self._start_states.items()]:
            kept = self.layer(_START) / relative
            if _states(str(kept)) != states:
                del self._start_states[relative]
                if kept.is_dir():
                    remove_folder(str(kept))
                else:
                    kept.unlink(missing_ok=True)
        self._has_start &= bool(self._start_states)

    def drop(self, name: str) -> None:
        """Removes the writes of a start or job, whose processes must have ended."""
        supervisor = self._supervisors.pop(name, None)
        if supervisor is not None:
            supervisor.close()
        for other in self._supervisors.values():
            other.forget_ended()
        remove_folder(str(self.layer(name)))

    def close(self) -> None:
        """Ends the watchdog and removes all layers."""
        for name in [*self._supervisors]:
            self._supervisors.pop(name).close()
        if self.offer.plan is not None:
            remove_folder(self.offer.plan.scratch)
        if self._watchdog is not None and self._watchdog.stdin is not None:
            with contextlib.suppress(OSError):
                self._watchdog.stdin.write(DONE)
                self._watchdog.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._watchdog.wait(ENDING_SECONDS)

    def _parts(self, name: str) -> list[str]:
        """A layer's folders that correspond to folders of the machine; see `_lower`."""
        if self.offer.plan is not None:
            return [upper(str(self.layer(name)), number) for number in range(len(self.offer.plan.overlays))]
        return [str(self.layer(name))] if self.offer.row == "landlock" else []

    def _lower(self, number: int) -> str:
        return self.offer.plan.overlays[number] if self.offer.plan is not None else "/"


def _unwritable(path: str, why: str) -> str:
    return f"bursts can read {path}, but not write to it: {why}; --writable {path} lets them"


def link_tree(source: Path, target: Path) -> None:
    """Copies a folder or file as hard links; existing files in the target stay, and what vanishes is left out."""
    if not source.is_dir() or source.is_symlink():
        target.parent.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(target):
            os.link(source, target, follow_symlinks=False)
        return
    target.mkdir(parents=True, exist_ok=True)
    for inner in source.iterdir():
        with contextlib.suppress(FileNotFoundError):
            link_tree(inner, target / inner.name)
    shutil.copystat(source, target)  # now, since it may be read-only


def _new_roots(folder: str, lower: str) -> list[str]:
    """The outermost files and folders in a layer that the folder below it lacks."""
    roots: list[str] = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            below = os.path.join(lower, entry.name)
            if not os.path.lexists(below):
                roots.append(entry.path)
            elif entry.is_dir(follow_symlinks=False) and os.path.isdir(below):
                roots += _new_roots(entry.path, below)
    return roots


def _states(path: str) -> dict[str, tuple[int, int]]:
    """Size and modification time of each file below a path, or of the file itself."""
    states = {}
    places = os.walk(path) if os.path.isdir(path) and not os.path.islink(path) else [(path, [], [""])]
    for place, _, names in places:
        for name in names:
            full = os.path.join(place, name) if name else place
            with contextlib.suppress(OSError):
                seen = os.lstat(full)
                states[os.path.relpath(full, path)] = (seen.st_size, seen.st_mtime_ns)
    return states
