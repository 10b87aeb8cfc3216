"""After its first optimizer step, a process reaches this machine and the addresses of its data."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import pytest

from autotune.sandbox import supervisor
from autotune.sandbox.protection import Protection
from tests.sandbox.starting import begun, forking, python, run

CONNECT = """
import ctypes, errno, socket, sys
def connect(host, kind=socket.SOCK_STREAM):
    with socket.socket(socket.AF_INET, kind) as one:
        one.settimeout(0.3)
        try:
            one.connect((host, 9))
        except OSError as error:
            return errno.errorcode.get(error.errno, "timeout")
        return "connected"
"""
STEP = "from _autotune.sandbox.inside import announce_step; announce_step(any_network={})\n"
WORKER = "ctypes.CDLL(None).prctl(15, b'pt_data_worker', 0, 0, 0)\n"
FAR, FARTHER = "198.51.100.7", "203.0.113.9"  # reserved for documentation


@pytest.fixture
def notes() -> list[str]:
    """What a person learns."""
    return []


def outside(first: str) -> bool:
    """Whether a connection went as far as the network would let it."""
    return first != "ECONNREFUSED"


@pytest.mark.parametrize("kind", ["STREAM", "DGRAM"])
def test_connections_end_with_the_first_step(kind: str, tmp_path: Path, notes: list[str]) -> None:
    """The refusal is reported once for each address."""
    protection = begun(tmp_path / "run", notes)
    code = CONNECT + f"print(connect({FAR!r}, socket.SOCK_{kind}))\n" + STEP.format(any_network := False)
    code += f"print(connect({FAR!r}, socket.SOCK_{kind}), connect({FAR!r}), connect({FARTHER!r}), connect('127.0.0.1'))"
    before, after = python(code, protection, "job1").split("\n")
    protection.close()
    assert outside(before)
    assert any_network is False
    assert after == "ECONNREFUSED ECONNREFUSED ECONNREFUSED ECONNREFUSED"  # nothing listens at port 9 here
    assert [note.split(" port")[0].rpartition(" ")[2] for note in notes] == [FAR, FARTHER]
    assert "--network allows all" in notes[0]


def test_a_program_in_another_language_is_refused(tmp_path: Path, notes: list[str]) -> None:
    """As an upload by a command would be."""
    protection = begun(tmp_path / "run", notes)
    code = STEP.format(False) + f"import os; os.execvp('bash', ['bash', '-c', 'exec 3<>/dev/tcp/{FAR}/443'])"
    status, printed = run([sys.executable, "-c", code], protection, "job1")
    protection.close()
    assert status != 0
    assert "Connection refused" in printed
    assert f"{FAR} port 443 ('bash')" in notes[0]


def test_where_data_came_from_in_the_look_is_reached(tmp_path: Path, notes: list[str]) -> None:
    """By loader workers, whose store has other addresses at the same port; by other processes at that address."""
    protection = begun(tmp_path / "run", notes)
    reads = CONNECT + f"import os\nif not os.fork():\n    {WORKER}    connect({FAR!r})\n    os._exit(0)\nos.wait()\n"
    python(reads, protection, "look", looks=True)
    code = CONNECT + STEP.format(False) + f"print(connect({FAR!r}), connect({FARTHER!r}), flush=True)\n{WORKER}"
    code += f"print(connect({FARTHER!r}))"
    own, of_worker = python(code, protection, "job1").split("\n")
    protection.close()
    assert outside(own.split()[0])
    assert own.split()[1] == "ECONNREFUSED"
    assert outside(of_worker)


def test_what_the_process_that_trains_reads_is_reached(tmp_path: Path) -> None:
    """The recorder reports the address."""
    protection = begun(tmp_path / "run")
    protection.note_reading(FAR)
    answer = python(CONNECT + STEP.format(False) + f"print(connect({FAR!r}))", protection, "job1")
    protection.close()
    assert outside(answer)


def test_all_is_allowed_where_a_person_says_so(tmp_path: Path, notes: list[str]) -> None:
    """By --network."""
    protection = begun(tmp_path / "run", notes, any_network=True)
    answer = python(CONNECT + STEP.format(True) + f"print(connect({FAR!r}))", protection, "job1")
    protection.close()
    assert outside(answer)
    assert notes == []


def test_jobs_that_are_forked_step_one_by_one(tmp_path: Path) -> None:
    """The next one still connects before its own first step."""
    code = CONNECT + "import os\nfor _ in range(2):\n    if not os.fork():\n"
    code += f"        print(outside := connect({FAR!r}), end=' ', flush=True)\n        {STEP.format(False)}"
    code += f"        print(connect({FAR!r}), flush=True)\n        os._exit(0)\n    os.wait()\n"
    protection = begun(tmp_path / "run")
    from tests.sandbox.starting import start

    with start([sys.executable, "-c", code], protection, "server", forks=True) as server:
        printed, _ = server.communicate(timeout=60)
    protection.close()
    lines = [line.split() for line in printed.splitlines()]
    assert [outside(before) for before, _ in lines] == [True, True]
    assert [after for _, after in lines] == ["ECONNREFUSED"] * 2


def test_a_job_that_has_ended_says_nothing_of_the_next_one(tmp_path: Path) -> None:
    """Its id may come again; and a daemon belongs to a job that has not stepped yet."""
    daemon = f"""
import os, time
reading, writing = os.pipe()
if not os.fork():
    parent = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == parent:
        time.sleep(0.001)
    os.write(writing, connect({FAR!r}).encode())
    os._exit(0)
print(os.read(reading, 99).decode())
"""
    protection = begun(tmp_path / "run")
    with forking("", protection) as fork:
        assert fork(CONNECT + STEP.format(False) + daemon, "job1") == (0, "ECONNREFUSED\n")
        protection.drop("job1")
        status, printed = fork(CONNECT + daemon, "job2")
    protection.close()
    assert status == 0
    assert outside(printed.strip())


@pytest.fixture
def hidden_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a process that does not let others read its memory."""
    own = supervisor._read

    def read(thread: int, place: int, length: int) -> bytes:
        if length == 28:
            raise PermissionError
        return own(thread, place, length)

    monkeypatch.setattr(supervisor, "_read", read)


@pytest.mark.usefixtures("hidden_addresses")
@pytest.mark.parametrize("any_network", [False, True])
def test_an_address_that_cannot_be_read_is_refused_after_the_first_step(
    any_network: bool, tmp_path: Path, notes: list[str]
) -> None:
    """Unless all connections are allowed."""
    protection = begun(tmp_path / "run", notes, any_network=any_network)
    code = CONNECT.replace("AF_INET", "AF_INET6") + "print(connect('2001:db8::1'))\n" + STEP.format(any_network)
    before, after = python(code + "print(connect('2001:db8::1'))", protection, "job1").split("\n")
    protection.close()
    assert outside(before)
    assert outside(after) == any_network
    assert ["cannot be read" in note for note in notes] == [True] * (not any_network)


@pytest.mark.usefixtures("hidden_addresses")
def test_a_note_that_fails_does_not_end_the_supervisor(tmp_path: Path) -> None:
    """As where the terminal is gone: calls are still refused, one after the other."""

    def fail(_: str) -> None:
        raise OSError

    protection = begun(tmp_path / "run")
    protection._rules.note = fail
    code = CONNECT.replace("AF_INET", "AF_INET6") + STEP.format(False)
    code += "print(connect('2001:db8::1'), connect('2001:db8::1'))"
    assert python(code, protection, "job1") == "ECONNREFUSED ECONNREFUSED"
    protection.close()


def test_where_no_parent_listens_python_refuses(tmp_path: Path) -> None:
    """As where another program has taken the kernel's only listener."""
    from autotune.sandbox import inside

    code = f"from autotune.sandbox import inside\ninside.is_reading = lambda: False\n{CONNECT}"
    code += f"inside.announce_step(any_network=False)\nprint(connect({FAR!r}))"
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == errno.errorcode[errno.ECONNREFUSED], done.stderr
    assert inside.STEPPED[0].startswith("240.")


def test_an_end_while_calls_are_held_ends_the_supervisor(tmp_path: Path) -> None:
    """A process that is killed in a call, and a protection that closes before its processes end."""
    protection: Protection = begun(tmp_path / "run")
    code = (
        CONNECT
        + f"import os, signal, threading\nthreading.Timer(0.1, os.kill, (os.getpid(), 9)).start()\nconnect({FAR!r})"
    )
    assert run([sys.executable, "-c", code + "\nimport time; time.sleep(5)"], protection, "job1")[0] == -9
    protection.close()
