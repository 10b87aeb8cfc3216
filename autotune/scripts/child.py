"""A script's processes, seen from their parent: events come through a socket, printed text through a pipe."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from autotune.bursts.hosts import cleanup
from autotune.bursts.hosts.child import Child, events_in
from autotune.bursts.hosts.endings import CAUSE_SECONDS
from autotune.sandbox.protection import Protection
from autotune.sandbox.system import fcntl, termios
from autotune.scripts.ranks import Together, free_port, on_port
from autotune.scripts.script import Script


class ScriptChild(Child):
    """A script that runs with the recorder in it.

    The script may start further processes; each one in which the recorder reaches its waiting point connects.

    Args:
        script: The command.
        orders: The recorder's orders; the socket and a port for ranks are added.
        environment: The command's variables without those of the recorder.
        folder: The folder of the run.
        protection: The sandbox that the command starts in.
        name: The name of its layer there, and of the socket.
        ranks: The number of processes that reach the training loop together, and get the same requests.
    """

    def __init__(
        self,
        script: Script,
        orders: Mapping[str, Any],
        environment: dict[str, str],
        folder: Path,
        protection: Protection,
        name: str,
        ranks: int = 1,
    ) -> None:
        path = protection.shared / name
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._channels: list[socket.socket] = []
        self._count = ranks
        self._ranks: dict[int, int] = {}  # the number of a rank, by its sender number
        self._jobs: dict[int, Together] = {}
        self._serves = orders["role"] == "serve"
        self._waiting: list[bytes] = []
        self._lock = threading.Lock()
        self._ending: set[int] = set()
        port = free_port()
        variables = script.environment({**orders, "socket": str(path), "port": port}, environment)
        self._input = EmptyInput()
        looks, forks = orders["role"] == "look", orders["role"] == "serve"
        ours, theirs = socket.socketpair()
        try:
            with protection.storing():
                self._listener.bind(str(path))
            self._listener.listen()
            command, variables = on_port(script.watched, variables, port)
            command = protection.command(command, name, theirs.fileno(), forks=forks)
            streams = {"stdin": self._input.descriptor, "stderr": subprocess.STDOUT}
            self._start(command, variables, folder, **streams, passed=(theirs.fileno(),))
            theirs.close()
            protection.attend(name, self._popen.pid, ours, looks=looks, forks=forks, ending=self._ending_words)
        except BaseException:
            self._hang_up()
            raise
        finally:
            ours.close()
            theirs.close()
        self._input.release()
        self._drain(self._accept, None, self._popen.stdout)

    def _ending_words(self) -> str:
        """How it ended before its output was read."""
        status, pipe = self.exit_status(), self._popen.stdout
        printed = os.read(pipe.fileno(), 65536) if status is not None and pipe is not None else b""
        lines = printed.decode(errors="replace").splitlines()
        return f"it ended with status {status}; last output: {lines[-1][:300] if lines else 'none'}"

    def send(self, line: str) -> None:
        """Sends a request to all ranks; those that connect later get it then."""
        text = line.encode() + b"\n"
        with self._lock:
            if len(self._channels) < self._count:
                self._waiting.append(text)
            for channel in self._channels:
                with contextlib.suppress(OSError):
                    channel.sendall(text)

    def are_at_loop(self, pids: Sequence[int]) -> None:
        """Takes the processes that have reached the training loop: those below them belong to jobs."""
        with contextlib.suppress(psutil.Error):
            self.roots = [psutil.Process(pid) for pid in pids]

    def launchers(self) -> set[int]:
        """Process ids of the launchers that started the ranks of its job and only wait for them."""
        with self._lock:
            ranks = [pid for job in self._jobs.values() for pid in job.pids]
        above: set[int] = set()
        for rank in ranks:
            with contextlib.suppress(psutil.Error):
                above |= {parent.pid for parent in psutil.Process(rank).parents()}
        return above - {*ranks}

    def stop_waiting(self) -> None:
        """Suspends processes that wait for others, from the top: a shell script goes on when its training is killed."""
        if not self.alive:
            return
        with contextlib.suppress(psutil.Error):
            waiting = [psutil.Process(self.pid)]
            for process in waiting:  # grows during the loop
                if below := cleanup.children(process):
                    with contextlib.suppress(psutil.Error):
                        process.suspend()
                    waiting += below

    def _accept(self, _: Any) -> None:
        """Reads the events of all processes that connect; requests go to the last of them, one per rank."""
        while True:
            try:
                channel, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._channels = [*self._channels, channel][-self._count :]
                for text in self._waiting:
                    with contextlib.suppress(OSError):
                        channel.sendall(text)
                sender = len(self._channels) - 1
                if len(self._channels) == self._count:
                    self._waiting.clear()
            threading.Thread(target=self._read, args=(channel, sender), daemon=True).start()

    def _read(self, channel: socket.socket, sender: int) -> None:
        with contextlib.suppress(OSError), channel.makefile("rb") as lines:
            if self._count == 1:
                self._read_events(lines)
            else:
                self._read_rank(lines, sender)
        self._events.put({"event": "hung up"})

    def _read_rank(self, lines: Any, sender: int) -> None:
        for event in events_in(lines):
            with self._lock:
                if "rank" in event:
                    self._ranks[sender] = event["rank"]
                number = event["number"]
                events = self._job(number).add_event(sender, event)
                self._tell(number, events)
                if events and events[-1]["event"] == "exit":
                    self._jobs.pop(number)
        with self._lock:
            for number, job in self._jobs.items():
                if number:
                    job.note_disconnect(sender)
                    self._tell(number, [])

    def _job(self, number: int) -> Together:
        return self._jobs.setdefault(number, Together(self._ranks, self._count))

    def _tell(self, number: int, events: Sequence[dict[str, Any]]) -> None:
        """Reports events of a job. If a rank has failed, the others, which wait for it, are ended a moment later."""
        for event in events:
            self._events.put({"number": number, **event})
        if self._jobs[number].has_failed and number not in self._ending:
            self._ending.add(number)
            timer = threading.Timer(CAUSE_SECONDS, self._end_job, (number,))
            timer.daemon = True
            timer.start()

    def _end_job(self, number: int) -> None:
        """Reports why a job failed, and kills its ranks."""
        with self._lock:
            job = self._jobs.get(number)
            if job is None:
                return
            self._tell(number, job.outcome())
            for pid in job.pids if self._serves else ():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        if not self._serves:
            with contextlib.suppress(OSError):
                self._popen.kill()

    def _say_last(self) -> None:
        with self._lock:
            for number, job in self._jobs.items():
                self._tell(number, job.outcome())

    def _hang_up(self) -> None:
        for end in (self._listener, *self._channels):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(OSError):
                end.close()
        self._input.close()


class EmptyInput:
    """A standard input that ends at once.

    If autotune's own standard input is a terminal, the script gets one as well, of the same size: ``stty size`` and
    ``isatty()`` answer as they do in a plain run. It is inherited and never opened by name, so that it does not become
    the controlling terminal of the script, whose session has none.

    Args:
        like: Descriptor of autotune's own standard input.

    Attributes:
        descriptor: For `subprocess`; the null device if there is no terminal, or no pseudo-terminal can be opened.
    """

    def __init__(self, like: int = 0) -> None:
        self.descriptor = subprocess.DEVNULL
        self._ends: list[int] = []
        if termios is None or not _is_terminal(like):
            return
        try:
            self._ends += os.openpty()
            _silence(self._ends[1])
            _resize(self._ends[1], like)
        except (AttributeError, OSError, termios.error):  # AttributeError: a platform without pseudo-terminals
            self.close()
        else:
            self.descriptor = self._ends[1]

    def release(self) -> None:
        """Closes the script's end here once the script has started, so that it alone holds it."""
        for end in self._ends[1:]:
            os.close(end)
        del self._ends[1:]

    def close(self) -> None:
        """Closes the terminal; calling it again does no harm."""
        while self._ends:
            with contextlib.suppress(OSError):
                os.close(self._ends.pop())


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:  # it is closed
        return False


def _silence(terminal: int) -> None:
    """Makes a terminal report the end of the file instead of waiting for a line, and echo nothing."""
    attributes = termios.tcgetattr(terminal)
    attributes[3] &= ~(termios.ICANON | termios.ECHO | termios.ECHONL)
    attributes[6][termios.VMIN] = attributes[6][termios.VTIME] = 0
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)


def _resize(terminal: int, like: int) -> None:
    """Gives a terminal the rows and columns of another one."""
    size = fcntl.ioctl(like, termios.TIOCGWINSZ, bytes(struct.calcsize("HHHH")))
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
