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

from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import Request
from autotune.errors import Interrupted
from autotune.measuring.records import Outcome
from autotune.sandbox.process_marks import marked
from autotune.scripts import Script, ScriptIsolation
from tests.example_scripts import START_SECONDS, alone, script
from tests.sandbox.starting import begun, python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are marked on Linux alone")
START = "import os, subprocess, sys, time\n"
HELPER = "subprocess.Popen(['sleep', '{0}'], env={{}}, start_new_session=True)"
DAEMON = "subprocess.run(['/bin/sh', '-c', 'setsid sleep {0} >/dev/null 2>&1 </dev/null &'], env={{}})"
FORKED = (
    "if os.fork() == 0: os.setsid(); (os._exit(0) if os.fork() else os.execve('/bin/sleep', ['sleep', '{0}'], {{}}))"
)


def test_the_process_that_probes_is_interrupted_and_removed_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog of a run that is killed knows one folder; a signal reaches whatever the run waits for."""
    begin, places = Isolation.start, []

    def start(probing: Isolation, seconds: float) -> None:
        places.append(probing._folder.parent)
        isolation.interrupt()
        begin(probing, seconds)

    with ScriptIsolation(script("plain"), forks=False) as isolation:
        monkeypatch.setattr(Isolation, "start", start)
        with pytest.raises(Interrupted):
            isolation.run(Request(job="probe"), START_SECONDS)
        assert places == [isolation._folder]


@pytest.fixture
def seconds() -> Iterator[str]:
    """What the sleep of a test is called with, and no other one."""
    length = f"{os.getpid() + time.time():.6f}"
    yield length
    for process in asleep(length):
        process.kill()


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
def test_what_a_script_leaves_is_known_by_its_mark(line: str, tmp_path: Path, seconds: str) -> None:
    """In an environment and a session of its own, when its parents have ended; no process beside it is."""
    other = subprocess.Popen(["sleep", seconds], start_new_session=True)
    protection, another = begun(tmp_path / "run"), begun(tmp_path / "another")
    python(START + line.format(seconds), protection, "look")
    wait_for(2, seconds)
    found = marked(str(tmp_path / "run"))
    assert [*found, other.pid] == sorted([process.pid for process in asleep(seconds)], key=[*found, other.pid].index)
    assert marked(str(tmp_path / "another")) == []
    for each in (protection, another):
        each.close()


def test_a_limit_that_is_there_stays(tmp_path: Path) -> None:
    """An administrator's limit is not the recorder's to change."""
    code = "import resource; limits = (5, 7); resource.setrlimit(resource.RLIMIT_RTTIME, limits)\n"
    code += f"from autotune.sandbox.process_marks import mark; mark({str(tmp_path)!r})\n"
    code += "assert resource.getrlimit(resource.RLIMIT_RTTIME) == limits"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_watchdog_ends_it_too(tmp_path: Path, seconds: str) -> None:
    """Where autotune is killed; the run's temporary folder goes, too."""
    parent = f"""
import os, sys
from pathlib import Path
from tests.sandbox.starting import begun, python
python({START + DAEMON.format(seconds)!r}, begun(Path({str(tmp_path / "run")!r})), "look")
print(flush=True)
sys.stdin.readline()
os.kill(os.getpid(), {int(signal.SIGKILL)})
"""
    code = [sys.executable, "-c", parent]
    with subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as killed:
        assert killed.stdout is not None
        killed.stdout.readline()
        wait_for(1, seconds)
        killed.communicate(b"\n", timeout=60)
    wait_for(0, seconds)
    deadline = time.monotonic() + 20
    while (tmp_path / "run").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


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
