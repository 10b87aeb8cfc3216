"""A job on a machine: the real command in a process of its own, which leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from autotune.fleet.job import FOLDER, RESULT, WARM_START, Job, Reply, reason_in, run_job
from tests.factories import make_result
from tests.processes import ROOT, has_measured


def test_a_job_finds_its_files_and_brings_back_what_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here `compare` reads a result that came along, and writes into the job's folder, which is gone afterwards."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    files = {"from-other.json": make_result().model_dump_json(by_alias=True)}
    arguments = ("compare", f"{FOLDER}/from-other.json", "--format=json", f"--out={FOLDER}/{RESULT}")
    reply = run_job(Job("any", arguments, 30.0, files=files))
    assert reply.status == 0, reply.log
    assert json.loads(reply.result or "")["groups"][0]["name"] == "digits"
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_fails_brings_back_its_words(tmp_path: Path) -> None:
    """Status and log tell why there is no result."""
    reply = run_job(Job("any", ("show", str(tmp_path / "none.json")), 30.0))
    assert (reply.status, reply.result) == (2, None)
    assert "error:" in reply.log


def test_variables_are_set_and_left_out_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the engine sets for its own purposes does not reach the training."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("COLUMNS", "80")
    code = 'import os, sys; sys.exit(f\'{os.environ.get("OMP_NUM_THREADS")} {os.environ["COLUMNS"]}\')'
    monkeypatch.setattr("autotune.fleet.job._BOOTSTRAP", code)
    reply = run_job(Job("any", (), 30.0, environment={"OMP_NUM_THREADS": None, "COLUMNS": "100"}))
    assert reply.log.strip() == "None 100"


def test_a_job_begins_with_what_is_known_when_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it sees by then counts, unless only a text that was sent is sure to be new; what is missing is left out."""
    code = "import sys; from pathlib import Path; print(*(Path(w.partition('=')[2]).read_text() for w in sys.argv[2:]))"
    monkeypatch.setattr("autotune.fleet.job._BOOTSTRAP", code)
    places = {name: tmp_path / name / "train.json" for name in ("waited", "elsewhere", "under-way", "copied")}
    for name, text in (("waited", "by now"), ("copied", "on the machine")):
        places[name].parent.mkdir()
        places[name].write_text(text)
    texts = {"waited": None, "elsewhere": "sent along", "under-way": None, "copied": "sent too"}
    known = {str(places[name]): text for name, text in texts.items()}
    for shares_files, copied in ((False, "sent too"), (True, "on the machine")):
        reply = run_job(Job("any", (WARM_START,), 30.0, known_results=known), shares_files=shares_files)
        assert reply.log.strip() == f"by now sent along {copied}"


@pytest.mark.parametrize(
    ("text", "how", "reason"),
    [
        ("", {}, "none"),
        ("Traceback\nerror: it is\n  too old\n", {"of_command": True}, "error: it is too old"),
        (f"error: no{' long' * 100} path\n", {"of_command": True}, f"error: no{' long' * 100}"[:400]),
        ("error: one of many\nOSError: no file\n", {}, "OSError: no file"),
        ("loading\nOSError: no file\n----\n", {"of_command": True}, "OSError: no file"),
        ("the node died\nits address: x\n", {"summary_first": True}, "the node died"),
        ("failed\nTraceback (most recent call last):\nOSError: no\n", {"summary_first": True}, "OSError: no"),
    ],
)
def test_an_output_says_why(text: str, how: dict[str, bool], reason: str) -> None:
    """In its last line, or from "error:" on for a command's own; Ray's own errors begin with what they say."""
    assert reason_in(text, "none", **how) == reason


@pytest.mark.parametrize(("text", "status"), [('{"status": "complete"}', -15), ('{"status": "partial"}', 130)])
def test_a_whole_result_counts_though_its_command_was_killed(
    text: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is cancelled while its command exits needs no second try."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    code = "import sys, time; open(sys.argv[2], 'w').write(sys.argv[3]); time.sleep(60)"
    monkeypatch.setattr("autotune.fleet.job._BOOTSTRAP", code)

    def interrupt() -> None:
        while not any(file.stat().st_size for file in tmp_path.glob(f"*/{RESULT}")):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    assert run_job(Job("any", (f"{FOLDER}/{RESULT}", text), 30.0)) == Reply(status, text, "")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_the_command_ends_with_the_engines_process(tmp_path: Path) -> None:
    """A worker that Ray kills leaves no tuning behind that would disturb the next one."""
    job = Job("any", ("--model", "tests.workloads.tiny:build", "--budget", "60s", f"--out={FOLDER}/x.json"), 60)
    code = f"from autotune.fleet.job import Job, run_job; run_job({job!r})"
    worker = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=os.environ | {"TMPDIR": str(tmp_path)})
    found: list[psutil.Process] = []
    ends = time.monotonic() + 60
    while len(found) < 3 and time.monotonic() < ends:  # the command, its forkserver, and somebody who trains
        found = psutil.Process(worker.pid).children(recursive=True)
        time.sleep(0.1)
    assert len(found) >= 3
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    _, alive = psutil.wait_procs(found, timeout=30)
    assert alive == []


@pytest.mark.slow
def test_a_job_that_is_cancelled_brings_home_what_it_has(tmp_path: Path) -> None:
    """As Ray cancels it, by an interruption of its process: the command ends in good order, with a partial result."""
    arguments = ("--model", "tests.workloads.tiny:build", "--budget", "120s", f"--out={FOLDER}/{RESULT}")
    code = (
        "import json, signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"from autotune.fleet.job import Job, run_job; print(json.dumps(vars(run_job({Job('any', arguments, 120)!r}))))"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ | {"TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE
    )
    ends = time.monotonic() + 100
    while not any(map(has_measured, tmp_path.glob("autotune-fleet-*/result.journal"))) and time.monotonic() < ends:
        time.sleep(0.2)
    worker.send_signal(signal.SIGINT)
    told, _ = worker.communicate(timeout=60)
    reply = Reply(**json.loads(told))
    assert reply.status == 130, reply.log
    assert json.loads(reply.result or "")["status"] == "partial"
    assert not list(tmp_path.glob("autotune-fleet-*"))
