"""Processes start, are replaced, and end with their parent; how each fault of a burst ends is in `tests/faults`."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from autotune.bursts.hosts.child import Child
from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan, Request
from autotune.bursts.hosts.running_job import Live
from autotune.bursts.runner import ProcessRunner
from autotune.errors import IsolationError
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Outcome, Point
from autotune.timing.protocol import Command
from tests.conftest import RunnerOf

PLAN = BurstPlan(measure_seconds=0.3)
DEADLINE_SECONDS = 20.0
POINT = Point(config=TrainConfig())


def children() -> set[psutil.Process]:
    """All processes below this one."""
    return set(psutil.Process().children(recursive=True))


def orphaned_files() -> list[str]:
    """Files of torch's in shared memory whose process has gone: its name begins with torch_ and the process's id."""
    return [
        path.name for path in Path("/dev/shm").glob("torch_*") if not psutil.pid_exists(int(path.name.split("_")[1]))
    ]


@pytest.fixture(autouse=True)
def nothing_left(forkserver: Isolation) -> Iterator[None]:
    """After each test no process, and no file of torch's in shared memory, is left."""
    others = children()  # the session's forkserver, and other tests' helpers
    yield

    def left() -> set[psutil.Process]:
        replaced = forkserver._forkserver.pid  # type: ignore[union-attr]  # where a test has killed the one before
        return {process for process in children() - others if process.pid != replaced}

    deadline = time.monotonic() + 3
    while (left() or orphaned_files()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left() == set()
    assert orphaned_files() == []


@pytest.fixture
def told(forkserver: Isolation, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is told of the session's forkserver, which imports the tiny workload again if a test kills it."""
    notes: list[str] = []
    monkeypatch.setattr(forkserver, "target", "tests.workloads.tiny:build")
    monkeypatch.setattr(forkserver, "_note", notes.append)
    return notes


def test_a_healthy_burst_is_ok(runner_of: RunnerOf) -> None:
    """A workload that trains yields blocks, memory, and no failure."""
    burst = runner_of("tests.workloads.tiny:build").run(POINT, PLAN, DEADLINE_SECONDS)
    assert burst.outcome is Outcome.OK
    assert burst.measurement is not None
    assert burst.measurement.samples_per_second > 0
    assert (burst.measurement.device_memory_bytes or 0) > 2**20


def test_a_job_that_cannot_be_asked_for_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where scratch is full: the next job does not wait for it, nor stop it."""

    def refuse(_: Request) -> str:
        raise IsolationError("scratch is full")

    with Isolation() as isolation:
        monkeypatch.setattr(isolation, "_child_for_job", lambda *_: SimpleNamespace(pid=1))
        monkeypatch.setattr(isolation, "_line", refuse)
        with pytest.raises(IsolationError, match="scratch is full"):
            isolation.open(Request(job="host", target="any:build", device="cpu", point=POINT), DEADLINE_SECONDS)
        assert isolation._live == []


@pytest.mark.slow
def test_a_module_that_cannot_be_forked_gets_fresh_interpreters() -> None:
    """What would hang after a fork is noticed, told, and run by spawning; `tests/faults` has what else cannot fork."""
    with Isolation("tests.workloads.computes_at_import:build") as isolation:
        isolation.start(DEADLINE_SECONDS)
        assert "hangs when it computes" in (isolation.fork_unsafe_reason or "")
        burst = ProcessRunner(isolation, "cpu").run(POINT, PLAN, DEADLINE_SECONDS)
    assert burst.outcome is Outcome.OK


@pytest.mark.slow
def test_a_spawned_hang_ends_at_the_deadline() -> None:
    """Without a forkserver a hang ends as surely."""
    with Isolation("tests.workloads.faults:hang") as isolation:
        isolation._spawning = True
        burst = ProcessRunner(isolation, "cpu").run(POINT, PLAN, 6.0)
    assert burst.outcome is Outcome.TIMEOUT


@pytest.mark.slow
def test_importing_torch_is_not_held_against_the_users_module() -> None:
    """On a slow machine it alone takes longer than a short budget gives to the module."""
    with Isolation("tests.workloads.tiny:build") as isolation:
        isolation.start(1.0)
        assert isolation.fork_unsafe_reason is None


def kill_forkserver(isolation: Isolation) -> None:
    """As the kernel does when memory is out."""
    forkserver = psutil.Process(isolation._forkserver.pid)  # type: ignore[union-attr]
    forkserver.kill()
    with contextlib.suppress(psutil.NoSuchProcess):  # whoever started it may have seen its end
        forkserver.wait(5)


@pytest.mark.slow
@pytest.mark.usefixtures("told")
def test_a_forkserver_that_is_killed_again_before_a_burst_is_an_error(
    forkserver: Isolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That burst has crashed, with the reason; the next one may try once more."""
    runner, child_for_job = ProcessRunner(forkserver, "cpu"), forkserver._child_for_job

    def kill_first(request: Request, deadline: float) -> Child:
        child = child_for_job(request, deadline)
        kill_forkserver(forkserver)
        return child

    with monkeypatch.context() as patch:
        patch.setattr(forkserver, "_child_for_job", kill_first)
        burst = runner.run(POINT, PLAN, DEADLINE_SECONDS)
    after = runner.run(POINT, PLAN, DEADLINE_SECONDS)
    assert burst.outcome is Outcome.CRASHED
    assert "killed twice before it could start a burst" in (burst.reason or "")
    assert after.outcome is Outcome.OK


def host_of_tiny(isolation: Isolation) -> Live:
    """A job that lives, once it has taken its first steps; in a new forkserver where the old one was killed."""
    live = isolation.open(Request(job="host", target=isolation.target, device="cpu", point=POINT), DEADLINE_SECONDS)
    event = isolation.wait(live, time.monotonic() + DEADLINE_SECONDS)
    assert event is not None
    assert event["event"] == "ready"
    return live


@pytest.mark.slow
def test_a_forkserver_that_dies_is_replaced_and_what_it_had_begun_leaves_the_new_one_alone(
    forkserver: Isolation, told: list[str]
) -> None:
    """The incumbent died with the old one; the candidate lives below the new one, and trains on.

    Where nothing lives below it, it is spared as well, though it carries the run's mark. It is replaced as often as a
    burst came between; a note says so each time.
    """
    ended, discarded = host_of_tiny(forkserver), host_of_tiny(forkserver)
    kill_forkserver(forkserver)
    while ended.child.alive:
        time.sleep(0.01)  # until its end is seen
    candidate = host_of_tiny(forkserver)
    forkserver.end(ended, time.monotonic() + DEADLINE_SECONDS)
    forkserver.command(candidate, Command(action="train", until=64))
    event = forkserver.wait(candidate, time.monotonic() + DEADLINE_SECONDS)
    assert event is not None
    assert event["event"] == "block"
    forkserver.discard(candidate)
    forkserver.discard(discarded)
    another = host_of_tiny(forkserver)
    assert another.child is candidate.child
    forkserver.discard(another)
    assert len(told) == 1
    assert "killed between bursts" in told[0]
    assert "started again" in told[0]
    kill_forkserver(forkserver)
    assert ProcessRunner(forkserver, "cpu").run(POINT, PLAN, DEADLINE_SECONDS).outcome is Outcome.OK
    assert len(told) == 2


def test_killing_a_job_spares_one_that_is_just_starting(forkserver: Isolation) -> None:
    """Its process may be there before anybody has heard of it."""
    request = Request(job="host", target="tests.workloads.tiny:build", device="cpu", point=POINT)
    first = forkserver.open(request, DEADLINE_SECONDS)
    second = forkserver.open(request, DEADLINE_SECONDS)
    forkserver.discard(first)
    event = forkserver.wait(second, time.monotonic() + DEADLINE_SECONDS)
    forkserver.discard(second)
    assert event is not None
    assert event["event"] == "ready"


def test_what_another_job_printed_is_not_taken_for_ones_own(forkserver: Isolation, tmp_path: Path) -> None:
    """A candidate that ends without a word is not told by the incumbent's last warning."""
    (tmp_path / "talks.py").write_text(
        "import sys\nfrom tests.workloads import tiny\n"
        "def build():\n    print('of the incumbent', file=sys.stderr, flush=True)\n    return tiny.build()\n"
    )
    (tmp_path / "leaves.py").write_text("import os\ndef build():\n    os._exit(3)\n")

    def opened(name: str) -> Live:
        target = f"{tmp_path / name}.py:build"
        return forkserver.open(Request(job="host", target=target, device="cpu", point=POINT), DEADLINE_SECONDS)

    incumbent = opened("talks")
    assert forkserver.wait(incumbent, time.monotonic() + DEADLINE_SECONDS) is not None
    deadline = time.monotonic() + DEADLINE_SECONDS
    while "of the incumbent" not in incumbent.child.stderr_tail() and time.monotonic() < deadline:
        time.sleep(0.01)
    ended = forkserver.end(opened("leaves"), time.monotonic() + DEADLINE_SECONDS)
    forkserver.discard(incumbent)
    assert ended.status == 3
    assert ended.stderr_tail == ""


def test_closing_ends_what_was_spawned() -> None:
    """It hangs below no forkserver."""
    isolation = Isolation("tests.workloads.tiny:build")
    isolation._spawning = True
    live = isolation.open(Request(job="host", target=isolation.target, device="cpu", point=POINT), DEADLINE_SECONDS)
    assert live.child.alive
    isolation.close()
    assert not live.child.alive


def test_a_process_that_has_the_id_of_one_long_gone_is_left_alone() -> None:
    """Ids are given again: what a job once left behind is known by its start as well."""
    other = psutil.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        stray = psutil.Process(other.pid)
        stray._ident = (other.pid, stray.create_time() - 100.0)  # one that began, and ended, before
        live = Live(1, None, forked=True, began=0.0, kills_before=0, pid=os.getpid(), strays={stray})  # type: ignore[arg-type]
        live.processes()
        assert live.strays == set()
    finally:
        other.kill()
        other.wait()


def killed_at_import(folder: Path) -> str:
    """A workload whose first import is killed, and which then trains."""
    (folder / "struck.py").write_text(
        "import os, signal\n"
        "from pathlib import Path\n"
        "struck = Path(__file__).with_suffix('.struck')\n"
        "if not struck.exists():\n    struck.touch()\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "from tests.workloads.tiny import build\n"
    )
    return f"{folder / 'struck.py'}:build"


@pytest.mark.slow
def test_a_forkserver_that_is_killed_while_it_imports_is_started_again(tmp_path: Path) -> None:
    """Once, and told: memory may have been short for a moment."""
    told: list[str] = []
    with Isolation(killed_at_import(tmp_path), told.append) as isolation:
        isolation.start(DEADLINE_SECONDS)
        burst = ProcessRunner(isolation, "cpu").run(POINT, PLAN, DEADLINE_SECONDS)
    assert burst.outcome is Outcome.OK
    assert "while it imported the module" in told[0]
