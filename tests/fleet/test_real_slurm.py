"""`autotune fleet` on a real Slurm: a controller and two nodes of one CPU each on this machine, without accounting."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.fleet import Job, MachineKind, slurm_engine
from autotune.fleet.job import FOLDER, RESULT
from autotune.fleet.slurm_engine import SlurmEngine
from autotune.results.result import read_result
from tests.processes import ROOT, budget, run

PROGRAMS = ("munged", "slurmctld", "slurmd")
STARTING_SECONDS = 60.0
CONFIGURATION = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
NodeName=first NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 Feature=fast
NodeName=second NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 Feature=slow
PartitionName=main Nodes=first,second Default=YES State=UP
"""
FLEET = """engine = "slurm"
[machines.fast]
constraint = "fast"
dollars_per_hour = 3.0
[machines.slow]
constraint = "slow"
dollars_per_hour = 1.0
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.getuid() != 0 or any(shutil.which(name, path="/usr/sbin:/usr/bin") is None for name in PROGRAMS),
        reason="needs root, slurmctld, slurmd and munged (Debian: slurm-wlm and munge)",
    ),
]


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens at."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="module")
def configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cluster's configuration, while the cluster runs."""
    folder = tmp_path_factory.mktemp("slurm")
    path, key = folder / "slurm.conf", folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    path.write_text(CONFIGURATION.format(host=socket.gethostname(), ports=free_ports(3), folder=folder))
    (folder / "cgroup.conf").touch()
    for name in ("state", "spool-first", "spool-second"):
        (folder / name).mkdir()
    environment = os.environ | {"SLURM_CONF": str(path)}
    files = {"key-file": key, "socket": "munge.socket", "pid-file": "munge.pid", "log-file": "munge.log",
             "seed-file": "munge.seed"}  # fmt: skip
    commands = [
        ["munged", "--foreground", "--force", *(f"--{option}={folder / file}" for option, file in files.items())],
        ["slurmctld", "-D"],
        *(["slurmd", "-D", "-N", node] for node in ("first", "second")),
    ]
    daemons = []
    for number, command in enumerate(commands):
        with (folder / f"{number}-{command[0]}.out").open("w") as out:
            words = [f"/usr/sbin/{command[0]}", *command[1:]]
            daemons.append(subprocess.Popen(words, env=environment, stdout=out, stderr=out, start_new_session=True))
        time.sleep(0.5)
    ends = time.monotonic() + STARTING_SECONDS
    while "idle" not in (told := said("sinfo", "--noheader", "--format=%T", environment=environment)).split():
        assert time.monotonic() < ends, told + "".join(file.read_text() for file in folder.glob("*.out"))
        time.sleep(0.5)
    yield path
    said("scancel", "--user=root", environment=environment)
    for daemon in reversed(daemons):
        daemon.terminate()
        daemon.wait(30)


@pytest.fixture(autouse=True)
def cluster(configuration: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Slurm's commands find."""
    monkeypatch.setenv("SLURM_CONF", str(configuration))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def said(*words: str, environment: dict[str, str] | None = None) -> str:
    """What a command prints."""
    answer = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    return answer.stdout + answer.stderr


def test_kinds_are_tuned_by_constraint_and_compared(tmp_path: Path) -> None:
    """Two nodes at once, on the folder that they share; prices name the cheaper one, and nothing is left queued."""
    (tmp_path / "fleet.toml").write_text(FLEET)
    (tmp_path / "mine.py").write_text((ROOT / "tests" / "workloads" / "tiny.py").read_text())
    finished = run(
        ["fleet", "fleet.toml", "--model", "mine:build", "--budget", budget(15), "--", "--only=precision"], tmp_path
    )
    assert finished.status == 0, finished.err
    results = {name: read_result(tmp_path / "results" / name / "mine-build.json") for name in ("fast", "slow")}
    assert {name: result.status for name, result in results.items()} == {"fast": "complete", "slow": "complete"}
    assert "cheapest: slow" in finished.err
    assert said("squeue", "--noheader") == ""


def test_a_job_that_somebody_cancels_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without accounting the queue says so: it is not waited for for ever."""
    monkeypatch.setattr(slurm_engine, "ASK_SECONDS", 0.2)
    monkeypatch.setattr(slurm_engine, "RESULT_SECONDS", 0.5)
    engine = SlurmEngine(tmp_path / "jobs", local=False)
    engine.start(Job("any", ("--version",), 60), MachineKind(sbatch={"hold": True}))
    assert not engine.endings(1.0)
    said("scancel", "--user=root")
    (ending,) = engine.endings(60.0)
    assert (ending.machine, ending.fate) == ("any", "failed")
    assert "is over (cancelled) and has left no result" in ending.message


def test_a_job_that_slurm_requeues_is_lost_and_does_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a preemption does, which interrupts the job first."""
    monkeypatch.setattr(slurm_engine, "ASK_SECONDS", 0.2)
    engine = SlurmEngine(tmp_path / "jobs", local=False)
    workload = ("--model", "tests.workloads.tiny:build", "--budget", "60s", f"--out={FOLDER}/{RESULT}")
    engine.start(Job("any", workload, 60), MachineKind())
    assert not engine.endings(4.0)
    said("scontrol", "requeue", engine._jobs["any"][0].job_id)
    (ending,) = engine.endings(60.0)
    assert (ending.fate, ending.reply and ending.reply.status) == ("lost", 130)
    assert said("squeue", "--noheader", "--states=PENDING,RUNNING") == ""


def test_a_job_that_waits_for_too_long_is_taken_back(tmp_path: Path) -> None:
    """The queue is asked where there is no accounting."""
    engine = SlurmEngine(tmp_path / "jobs", local=False, wait=0.5)
    engine.start(Job("any", ("--version",), 60), MachineKind(sbatch={"hold": True}))
    (ending,) = engine.endings(60.0)
    assert ending.fate == "absent"
    assert "in the queue" in ending.message
    assert said("squeue", "--noheader") == ""


def test_a_constraint_that_no_node_has_is_told(tmp_path: Path) -> None:
    """In Slurm's own words."""
    engine = SlurmEngine(tmp_path / "jobs", local=False)
    engine.start(Job("any", ("--version",), 60), MachineKind(constraint="h100"))
    (ending,) = engine.endings(10.0)
    assert (ending.fate, ending.machine) == ("absent", "any")
    assert "feature" in ending.message.lower()
