"""Runs a whole training of a script with the recorder in it, and watches for processes without the recorder."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from autotune.bursts.hosts.cleanup import descendants, end_processes
from autotune.errors import UsageError
from autotune.recorder.matching import TRAINED
from autotune.sandbox.system import end_with_parent, signals
from autotune.scripts.looking import CLOSED, GLANCE_SECONDS, came_into, trains_unseen, words_of
from autotune.scripts.script import Script

SELDOM_SECONDS, SELDOM_SHARE = 5.0, 0.01
"""Time between two glances at a training's processes: this share of its age, at most 5 s. A glance at nine processes
takes 0.3 ms (measured on a 2-core AMD EPYC), so that glances cost less than 1 % from the first second on."""
FORWARDED = ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
WITNESS = """
import os, signal, sys, time
while True:
    os.write(1, b"%d %f\\n" % (signal.sigwait(map(int, sys.argv[1:])), time.monotonic()))
"""
"""The program of a process that writes each signal that it gets, with the time."""
WITNESS_SECONDS = 0.5
"""A signal that the witness does not get within this time of it was sent to this process alone. Not tuned."""


class Training:
    """A script that trains, and the processes below it; it goes on if this process is killed.

    Args:
        script: The command.
        environment: Its variables, with the recorder's orders.
        folder: Where the recorder notes the processes that it enters.
        warn: Shows a warning.
        strict: Whether a process that the recorder cannot enter ends the training.
    """

    def __init__(
        self,
        script: Script,
        environment: Mapping[str, str],
        folder: Path,
        warn: Callable[[str], None],
        *,
        strict: bool = False,
    ) -> None:
        self._script = script
        self._environment = environment
        self._folder = folder
        self._warn = warn
        self._is_strict = strict
        self._known: set[psutil.Process] = set()

    def run(self) -> int:
        """Trains to the end; returns the exit status in the convention of shells.

        Raises:
            UsageError: The script cannot be started; with `strict`, also if the recorder cannot enter a process.
        """
        if (word := self._script.closed_by) is not None:
            self._tell_closed(f"'{word}' keeps autotune out of the script")
        started = time.monotonic()
        with Forwarding() as forwarding:
            try:
                process = psutil.Popen(self._script.watched, env=dict(self._environment))
            except OSError as error:
                remedy = "a script needs a first line such as #!/bin/sh, or its interpreter before it: -- sh train.sh"
                if error.errno in {errno.EAGAIN, errno.ENOMEM}:
                    remedy = "free memory or processes"
                raise UsageError(f"the script cannot be started ({error}); {remedy}") from error
            forwarding.to(process.pid)
            while True:
                age = time.monotonic() - started
                with contextlib.suppress(psutil.TimeoutExpired, subprocess.TimeoutExpired):
                    status = process.wait(min(SELDOM_SECONDS, max(GLANCE_SECONDS, SELDOM_SHARE * age)))
                    break
                self._glance(process)
        if others := self._others():
            self._tell(others)
        return int(status) if status >= 0 else 128 - int(status)

    def _glance(self, root: psutil.Process) -> None:
        """Looks for processes that have torch but not the recorder."""
        for process in [root, *descendants(root)]:
            if process in self._known:
                continue
            with contextlib.suppress(psutil.Error, OSError):
                if came_into(process, self._folder):
                    self._known.add(process)
                elif trains_unseen(process, self._folder, root.pid):
                    self._known.add(process)
                    try:
                        self._tell_closed(f"'{words_of(process)}' loads torch where autotune is not")
                    except UsageError:
                        end_processes(lambda: [root, *descendants(root)])
                        raise

    def _tell_closed(self, what: str) -> None:
        if self._is_strict:
            raise UsageError(f"{what} {CLOSED}; or leave out --strict")
        self._tell(f"{what}, so that it trains as it is {CLOSED}")

    def _tell(self, sentence: str) -> None:
        """Shows a warning; where it cannot be shown, as in a closed pipe, the training goes on."""
        with contextlib.suppress(OSError, SystemExit):  # rich ends a program with a closed output
            self._warn(sentence)

    def _others(self) -> str | None:
        """The processes that the recorder did not change, in a sentence."""
        names: Counter[str] = Counter()
        for file in sorted(self._folder.glob(TRAINED.format("*"))):
            with contextlib.suppress(OSError, ValueError):
                process = json.loads(file.read_text())
                names[process["name"]] += not process["matches"]
        count = names.total()
        if not count:
            return None
        listed = ", ".join(name if times == 1 else f"{name} ({times} times)" for name, times in names.items() if times)
        if count == 1:
            return f"1 other process trained as it is, since it was not measured: {listed}"
        return f"{count} other processes trained as they are, since they were not measured: {listed}"


class Forwarding:
    """While open, forwards signals to the script; a signal that is ignored stays ignored.

    A terminal, `timeout` or a scheduler sends a signal to all processes of a command. The script has that one already,
    and may end without saving at a second one. It is open before the script starts: a signal that comes sooner would
    end this process alone.
    """

    def __init__(self) -> None:
        self._process: int | None = None
        self._early: list[int] = []  # signals that came before the script's process was known

    def __enter__(self) -> Forwarding:
        numbers = [number for number in signals(*FORWARDED) if signal.getsignal(number) is not signal.SIG_IGN]
        self._witness = _Witness(numbers)
        self._former = {number: signal.signal(number, self._forward) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._witness.end()

    def to(self, process: int) -> None:
        """Forwards to a process that has just started, also what came before: it has nothing to lose yet."""
        self._process = process
        for number in self._early:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def _forward(self, number: int, _: object) -> None:
        if self._process is None:
            self._early.append(number)
            return
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(self._process) != os.getpgrp() or not self._witness.hears(number):
                os.kill(self._process, number)


class _Witness:
    """Another process of the command, in this one's group: what it hears was sent to all.

    Args:
        numbers: The signals that it hears.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        self._heard: dict[int, float] = {}  # when, by number
        self._process: subprocess.Popen[bytes] | None = None

        def begin() -> None:
            signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
            end_with_parent(True)

        command = [sys.executable, "-I", "-S", "-c", WITNESS, *map(str, map(int, numbers))]
        with contextlib.suppress(OSError, subprocess.SubprocessError):  # then all signals are forwarded
            self._process = subprocess.Popen(
                command, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                preexec_fn=begin,  # noqa: PLW1509 - two system calls, and no lock
            )  # fmt: skip

    def hears(self, number: int) -> bool:
        """Whether it hears a signal as well that this process has just got."""
        now = time.monotonic()
        while self._heard.get(number, -math.inf) < now - WITNESS_SECONDS:
            remaining = now + WITNESS_SECONDS - time.monotonic()
            # The handler of another signal may listen, too.
            if remaining <= 0 or not self._listen(min(remaining, 0.05)):
                return False
        return True

    def _listen(self, seconds: float) -> bool:
        """Waits for signals that it hears; returns False if it is gone."""
        if self._process is None or self._process.stdout is None:
            return False
        pipe = self._process.stdout.fileno()
        os.set_blocking(pipe, False)
        select.select([pipe], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            text = os.read(pipe, 4096)
            for line in text.splitlines():
                number, when = line.split()
                self._heard[int(number)] = float(when)
            return bool(text)
        return True

    def end(self) -> None:
        """Ends it."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
