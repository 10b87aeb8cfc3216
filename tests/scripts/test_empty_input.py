"""Scripts that ask standard input for the size of the terminal come to their training where they do so plainly."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.errors import WorkloadError
from autotune.measuring.records import Outcome
from autotune.scripts import Script, ScriptIsolation
from autotune.scripts.child import EmptyInput
from tests.example_scripts import START_SECONDS, STEPS, alone

ROWS, COLUMNS = 41, 133
ASKING = """
import errno, os, sys, termios
print(os.popen("stty size").read().split(), sys.stdin.isatty(), sys.stdin.read() == "")
try:
    os.open("/dev/tty", os.O_RDWR)
except OSError as error:
    print(error.errno == errno.ENXIO)
print(termios.tcgetattr(0)[3] & termios.ECHO)
"""
ASSERTING = """
import os
rows, columns = map(int, os.popen("stty size").read().split())
assert (rows, columns) == (41, 133)
try:
    input()
    raise SystemExit("somebody typed")
except EOFError:
    pass
"""


@pytest.fixture
def terminal() -> Iterator[int]:
    """A terminal that nobody types in."""
    main, own = pty.openpty()
    fcntl.ioctl(own, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    yield own
    os.close(main)
    os.close(own)


@pytest.fixture
def own_terminal(terminal: int) -> Iterator[None]:
    """The same, as standard input of this process."""
    former = os.dup(0)
    os.dup2(terminal, 0)
    yield
    os.dup2(former, 0)
    os.close(former)


def printed(given: EmptyInput) -> list[str]:
    """What a process prints that asks its standard input, in a session of its own."""
    command = [sys.executable, "-c", ASKING]
    asked = subprocess.run(
        command, stdin=given.descriptor, capture_output=True, text=True, start_new_session=True, timeout=60
    )
    assert asked.returncode == 0, asked.stderr
    return asked.stdout.splitlines()


def test_an_empty_input_is_a_terminal_of_the_same_size_where_there_is_one(terminal: int) -> None:
    """Whoever reads gets the end of the file at once, and nobody gets a controlling terminal, nor an echo."""
    given = EmptyInput(terminal)
    assert printed(given) == [f"['{ROWS}', '{COLUMNS}'] True True", "True", "0"]
    given.close()


def test_it_is_the_null_device_where_there_is_no_terminal(tmp_path: Path) -> None:
    """A file, a pipe, and a descriptor that is closed."""
    reading, writing = os.pipe()
    with (tmp_path / "file").open("w") as file:
        for descriptor in (file.fileno(), reading):
            assert EmptyInput(descriptor).descriptor == subprocess.DEVNULL
    os.close(reading)
    os.close(writing)
    assert EmptyInput(reading).descriptor == subprocess.DEVNULL


def test_it_is_the_null_device_where_no_terminal_can_be_had(terminal: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where all that the system has are taken."""

    def none_left() -> tuple[int, int]:
        raise OSError(errno.ENOSPC, "no terminal is left")

    monkeypatch.setattr(os, "openpty", none_left)
    assert EmptyInput(terminal).descriptor == subprocess.DEVNULL


def test_the_terminal_lives_as_long_as_it_is_not_closed(terminal: int) -> None:
    """Once it is closed, it is gone for the script as well, whose own end keeps none."""
    given = EmptyInput(terminal)
    scripts = os.dup(given.descriptor)
    given.release()
    assert os.get_terminal_size(scripts) == (COLUMNS, ROWS)
    given.close()
    given.close()
    with pytest.raises(OSError, match="Input/output error"):
        os.get_terminal_size(scripts)
    os.close(scripts)


def terminals() -> int:
    """How many descriptors of this process are terminals."""
    return sum(map(os.isatty, range(1000)))


@pytest.mark.usefixtures("own_terminal")
def test_a_script_that_could_not_be_started_leaves_no_terminal(tmp_path: Path) -> None:
    """Both ends are closed again."""
    before = terminals()
    with ScriptIsolation(Script((str(tmp_path / "nothing"),))) as isolation, pytest.raises(WorkloadError):
        isolation.start(START_SECONDS)
    assert terminals() == before


@pytest.mark.slow
@pytest.mark.usefixtures("own_terminal")
def test_a_script_that_asks_for_the_size_of_the_terminal_is_tuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its look and in a burst; no terminal is left in the end."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(ASSERTING + STEPS)
    before = terminals()
    with ScriptIsolation(Script((sys.executable, "train.py"))) as isolation:
        isolation.start(START_SECONDS)
        burst = alone(isolation)
    assert burst.outcome is Outcome.OK, burst.reason
    assert terminals() == before
