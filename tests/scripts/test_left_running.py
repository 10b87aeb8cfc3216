"""What a script starts and leaves running is ended with it, wherever it has gone; nobody else's processes are."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from autotune.measuring.records import Outcome
from autotune.recorder.marks import marked
from autotune.scripts import Script, ScriptIsolation
from autotune.scripts.user_files import ProtectedFiles
from tests.example_scripts import START_SECONDS, alone, script

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are marked on Linux alone")
START = "import os, subprocess, sys, time\nfrom autotune.recorder import journal\njournal.begin(sys.argv[1])\n"
HELPER = "subprocess.Popen(['sleep', '{0}'], env={{}}, start_new_session=True)"
DAEMON = "subprocess.run(['/bin/sh', '-c', 'setsid sleep {0} >/dev/null 2>&1 </dev/null &'], env={{}})"
FORKED = (
    "if os.fork() == 0: os.setsid(); (os._exit(0) if os.fork() else os.execve('/bin/sleep', ['sleep', '{0}'], {{}}))"
)


@pytest.fixture
def seconds() -> Iterator[str]:
    """What the sleep of a test is called with, and no other one."""
    length = f"{os.getpid() + time.time():.6f}"
    yield length
    for process in asleep(length):
        process.kill()


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProtectedFiles:
    """Of a run whose script is about to start."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path)
    return ProtectedFiles(tmp_path / "run")


def asleep(seconds: str) -> list[psutil.Process]:
    """The processes that sleep so long."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[:2] == ["sleep", seconds] and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def wait_for(count: int, seconds: str) -> None:
    """Until so many processes sleep so long."""
    deadline = time.monotonic() + 20
    while len(asleep(seconds)) != count:
        assert time.monotonic() < deadline, asleep(seconds)
        time.sleep(0.02)


@pytest.mark.parametrize("line", [HELPER, DAEMON, FORKED])
def test_what_has_an_environment_of_its_own_is_ended(line: str, kept: ProtectedFiles, seconds: str) -> None:
    """In a session of its own, when its parents have gone; a process beside it that nobody of the script's started."""
    other = subprocess.Popen(["sleep", seconds], start_new_session=True)
    subprocess.run([sys.executable, "-c", START + line.format(seconds), str(kept.folder)], check=True)
    wait_for(2, seconds)
    kept.revert("loop")  # the script may wait at its loop, and what it has started with it
    assert len(asleep(seconds)) == 2
    kept.revert("start")
    assert [process.pid for process in asleep(seconds)] == [other.pid]
    kept.close()
    assert other.poll() is None
    other.kill()
    other.wait()


def test_what_is_left_is_ended_at_the_end(kept: ProtectedFiles, seconds: str) -> None:
    """Before files are reverted, which it might write to again."""
    Path("log.txt").write_text("mine\n")
    writing = "for one in $(seq 500); do echo x >> log.txt; sleep 0.01; done"
    line = f"open('log.txt', 'a').close(); subprocess.Popen(['sh', '-c', {writing!r}], env={{'PATH': '/usr/bin:/bin'}})"
    subprocess.run([sys.executable, "-c", START + line, str(kept.folder)], check=True)
    kept.close()
    time.sleep(0.1)
    assert Path("log.txt").read_text() == "mine\n"


def test_the_mark_of_another_run_is_another(kept: ProtectedFiles, tmp_path: Path, seconds: str) -> None:
    """Two runs on one machine end each their own."""
    another = ProtectedFiles(tmp_path / "run")
    subprocess.run([sys.executable, "-c", START + HELPER.format(seconds), str(another.folder)], check=True)
    wait_for(1, seconds)
    kept.close()
    assert [process.pid for process in asleep(seconds)] == marked(str(another.folder))
    another.close()
    assert asleep(seconds) == []


def test_who_has_a_limit_already_keeps_it(kept: ProtectedFiles) -> None:
    """A script runs under it as ever."""
    line = "import resource; limits = (5, 7); resource.setrlimit(resource.RLIMIT_RTTIME, limits)\n" + START
    line += "assert resource.getrlimit(resource.RLIMIT_RTTIME) == limits"
    subprocess.run([sys.executable, "-c", line, str(kept.folder)], check=True)
    kept.close()


def test_a_watch_dog_ends_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: str) -> None:
    """Where autotune is killed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = tmp_path / "run"
    run.mkdir()
    parent = f"""
import os, subprocess, sys
from pathlib import Path
from autotune.scripts.user_files import ProtectedFiles
kept = ProtectedFiles(Path({str(run)!r}))
kept.begin()
subprocess.run([sys.executable, "-c", {START + DAEMON.format(seconds)!r}, str(kept.folder)], check=True)
print(flush=True)
sys.stdin.readline()
os.kill(os.getpid(), {int(signal.SIGKILL)})
"""
    code = [sys.executable, "-c", parent]
    with subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path) as killed:
        assert killed.stdout is not None
        killed.stdout.readline()
        wait_for(1, seconds)
        killed.communicate(b"\n", timeout=60)
    wait_for(0, seconds)


@pytest.mark.slow
def test_a_look_and_a_burst_leave_nothing_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: str
) -> None:
    """A helper, a daemon, and one that is started in the loop, none of which inherits anything."""
    monkeypatch.chdir(tmp_path)
    plain = script("plain")
    place = Path(plain.command[-1])
    code = f"import os, subprocess\n{HELPER.format(seconds)}\n{DAEMON.format(seconds)}\n" + place.read_text()
    Path("train.py").write_text(code)
    with ScriptIsolation(Script((sys.executable, "train.py"))) as isolation:
        isolation.start(START_SECONDS)
        assert asleep(seconds) == []
        burst = alone(isolation)
        assert burst.outcome is Outcome.OK, burst.reason
    assert asleep(seconds) == []
