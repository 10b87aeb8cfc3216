"""What Slurm is told of each job, as submitit's own test of an sbatch writes it down; processes run elsewhere."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest
from submitit.core.utils import cloudpickle_dump
from submitit.slurm.slurm import SlurmJob

from autotune.errors import UsageError
from autotune.fleet import Job, MachineKind
from autotune.fleet.job import Reply
from autotune.fleet.slurm_engine import SlurmEngine

SBATCH = """#!/bin/sh
cat "$1" >> {folder}/submitted
echo "Submitted batch job $(wc -l < {folder}/submitted)"
"""


def with_slurm(folder: Path, monkeypatch: pytest.MonkeyPatch, sbatch: str = SBATCH) -> None:
    """Commands of Slurm's names, of which sbatch writes down what it gets."""
    for name, text in {
        "sbatch": sbatch,
        "srun": "#!/bin/sh\n",
        "scancel": "#!/bin/sh\n",
        "sacct": "#!/bin/sh\n",
    }.items():
        path = folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.format(folder=folder))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}/bin{os.pathsep}{os.environ['PATH']}")
    SlurmJob.watcher.clear()  # jobs of tests before had the same ids


def test_what_one_machine_asks_for_is_not_asked_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partition, constraint and GPUs stand in the script of their own job; each has a limit beyond its budget."""
    with_slurm(tmp_path, monkeypatch)
    engine = SlurmEngine(tmp_path / "jobs", local=False)
    engine.start(
        Job("big", ("--version",), 600), MachineKind(partition="gpu", constraint="h100", gpus=2, sbatch={"qos": "high"})
    )
    first = (tmp_path / "submitted").read_text()
    for line in (
        "--partition=gpu",
        "--constraint=h100",
        "--gpus-per-node=2",
        "--qos=high",
        "--time=13",
        "autotune-big",
    ):
        assert line in first
    (tmp_path / "submitted").unlink()
    engine.start(Job("small", ("--version",), 600), MachineKind(cpus=8))
    second = (tmp_path / "submitted").read_text()
    assert "--cpus-per-task=8" in second
    assert not [word for word in ("gpu", "h100", "qos") if word in second]


def test_what_is_left_holds_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hold secrets."""
    with_slurm(tmp_path, monkeypatch)
    engine = SlurmEngine(tmp_path / "jobs", local=False)
    engine.start(Job("any", ("--version",), 60), MachineKind())
    assert list((tmp_path / "jobs").glob("*/*_submitted.pkl"))
    engine.close()
    assert list((tmp_path / "jobs").iterdir())
    assert not list((tmp_path / "jobs").glob("*/*_submitted.pkl"))


def test_a_job_that_slurm_refuses_is_told_in_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a partition that does not exist; the other machines go on."""
    with_slurm(
        tmp_path, monkeypatch, "#!/bin/sh\necho 'sbatch: error: invalid partition specified: nope' >&2; exit 1\n"
    )
    engine = SlurmEngine(tmp_path / "jobs", local=False)
    engine.start(Job("any", ("--version",), 60), MachineKind(partition="nope"))
    (ending,) = engine.endings(0.1)
    assert (ending.machine, ending.fate) == ("any", "absent")
    assert "invalid partition" in ending.message


def told_by_sacct(folder: Path, state: str) -> None:
    """From now on sacct tells one state of all jobs."""
    (folder / "bin" / "sacct").write_text(
        f"#!/bin/sh\nprintf 'JobID|State|NodeList\\n%s|{state}|\\n' \"$(wc -l < {folder}/submitted)\"\n"
    )


def test_a_job_that_is_preempted_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Left to itself, submitit would wait for it for ever; it is tried once more."""
    with_slurm(tmp_path, monkeypatch)
    told_by_sacct(tmp_path, "PREEMPTED")
    engine = SlurmEngine(tmp_path / "jobs", local=False)
    engine.start(Job("any", ("--version",), 60), MachineKind())
    (ending,) = engine.endings(10.0)
    assert (ending.fate, ending.message) == ("lost", "it was preempted")


def test_a_job_that_is_lost_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm may queue it again, and the machine's next try would not be alone."""
    with_slurm(tmp_path, monkeypatch)
    (tmp_path / "bin" / "scancel").write_text(f"#!/bin/sh\necho $1 >> {tmp_path}/cancelled\n")
    told_by_sacct(tmp_path, "NODE_FAIL")
    monkeypatch.setattr(SlurmJob, "_results_timeout_s", 0)
    engine = SlurmEngine(tmp_path / "jobs", local=False)
    engine.start(Job("any", ("--version",), 60), MachineKind())
    (ending,) = engine.endings(10.0)
    assert ending.fate == "lost"
    assert (tmp_path / "cancelled").read_text().split()


@pytest.mark.parametrize(
    ("reply", "state", "fate", "cancelled"),
    [
        (Reply(130, "partial", ""), "RUNNING", "lost", True),
        (Reply(130, None, ""), "PREEMPTED", "lost", True),
        (Reply(0, "found", ""), "PENDING", "done", True),
        (Reply(0, "found", ""), "REQUEUED", "done", True),
        (Reply(0, "found", ""), "PREEMPTED", "done", True),
        (Reply(0, "found", ""), "COMPLETED", "done", False),
    ],
)
def test_a_job_does_not_run_again_by_itself(
    reply: Reply, state: str, fate: str, cancelled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm may requeue a preempted job, although it has replied."""
    with_slurm(tmp_path, monkeypatch)
    (tmp_path / "bin" / "scancel").write_text(f"#!/bin/sh\necho $1 >> {tmp_path}/cancelled\n")
    told_by_sacct(tmp_path, state)
    engine = SlurmEngine(tmp_path / "jobs", local=False)
    engine.start(Job("any", ("--version",), 60), MachineKind())
    cloudpickle_dump(("success", reply), engine._jobs["any"][0].paths.result_pickle)
    (ending,) = engine.endings(10.0)
    assert (ending.fate, ending.reply) == (fate, reply)
    engine.close()
    assert (tmp_path / "cancelled").exists() == cancelled


def test_a_result_does_not_wait_for_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the job was queued again is asked once it is stored; if Slurm does not answer, the fleet still ends."""
    with_slurm(tmp_path, monkeypatch)
    told_by_sacct(tmp_path, "COMPLETED")
    engine = SlurmEngine(tmp_path / "jobs", local=False)
    engine.start(Job("any", ("--version",), 60), MachineKind())
    cloudpickle_dump(("success", Reply(0, "found", "")), engine._jobs["any"][0].paths.result_pickle)
    asked: list[str] = []

    def ask(*_: object, now: bool = False) -> str:
        asked.append("now")
        raise OSError

    monkeypatch.setattr(engine._queue, "state", ask)
    (ending,) = engine.endings(10.0)
    assert (ending.fate, asked) == ("done", [])
    engine.close()
    assert asked
    assert not (tmp_path / "jobs").exists()


def test_a_file_that_cannot_be_removed_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network's file system refuses that at times."""
    with_slurm(tmp_path, monkeypatch)
    engine = SlurmEngine(tmp_path / "jobs", local=False)
    engine.start(Job("any", ("--version",), 60), MachineKind())

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "unlink", refuse)
    engine.close()


def test_a_partial_result_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after Ctrl-C; a job without a result leaves its output."""
    with_slurm(tmp_path, monkeypatch)
    for result in ("partial", None):
        engine = SlurmEngine(tmp_path / "jobs", local=False)
        engine.start(Job("any", ("--version",), 60), MachineKind())
        cloudpickle_dump(("success", Reply(130, result, "")), engine._jobs["any"][0].paths.result_pickle)
        assert engine.endings(10.0)
        engine.close()
        assert (tmp_path / "jobs").exists() == (result is None)


def test_a_job_that_is_suspended_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Submitit calls that an end, and asks no more; the queue is asked then, which also tells how it goes on."""
    monkeypatch.setattr("autotune.fleet.slurm_engine.ASK_SECONDS", 0.0)
    monkeypatch.setattr("autotune.fleet.slurm_engine.RESULT_SECONDS", 0.2)
    with_slurm(tmp_path, monkeypatch)
    told_by_sacct(tmp_path, "SUSPENDED")
    told_by_squeue(tmp_path, "SUSPENDED")
    engine = SlurmEngine(tmp_path / "jobs", local=False)
    engine.start(Job("any", ("--version",), 60), MachineKind())
    assert not engine.endings(0.5)
    told_by_squeue(tmp_path, "RUNNING")
    assert not engine.endings(0.5)
    told_by_squeue(tmp_path, "NODE_FAIL")
    (ending,) = engine.endings(10.0)
    assert (ending.fate, "is over (node_fail)" in ending.message) == ("lost", True)


def test_a_job_that_has_begun_meanwhile_is_not_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What submitit knows of it may be old: Slurm is asked once more before it is given up."""
    with_slurm(tmp_path, monkeypatch)
    told_by_sacct(tmp_path, "PENDING")
    engine = SlurmEngine(tmp_path / "jobs", local=False, wait=0.5)
    engine.start(Job("any", ("--version",), 60), MachineKind())
    assert not engine.endings(0.1)
    told_by_sacct(tmp_path, "RUNNING")
    time.sleep(0.6)
    assert not engine.endings(0.1)


def test_srun_gets_all_cpus_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some versions bind a job to one of them that is not told so."""
    with_slurm(tmp_path, monkeypatch)
    engine = SlurmEngine(tmp_path / "jobs", local=False)
    engine.start(Job("any", ("--version",), 60), MachineKind(cpus=8))
    (line,) = [line for line in (tmp_path / "submitted").read_text().splitlines() if line.startswith("srun")]
    assert "--cpus-per-task=8" in line


def test_a_job_that_waits_for_too_long_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever set a limit is told, rather than kept."""
    with_slurm(tmp_path, monkeypatch)
    told_by_sacct(tmp_path, "PENDING")
    engine = SlurmEngine(tmp_path / "jobs", local=False, wait=0.1)
    engine.start(Job("any", ("--version",), 60), MachineKind())
    time.sleep(0.2)
    (ending,) = engine.endings(10.0)
    assert ending.fate == "absent"
    assert "in the queue" in ending.message


def test_without_slurm_the_engine_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is sent or made."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="login node"):
        SlurmEngine(tmp_path / "jobs", local=False)
    assert not (tmp_path / "jobs").exists()


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    """With what names another; no full disk is taken for that behind stdout."""
    (tmp_path / "jobs").write_text("")
    with pytest.raises(UsageError, match=r"jobs/\w+ cannot be made: Not a directory; name another as folder"):
        SlurmEngine(tmp_path / "jobs", local=True)


def told_by_squeue(folder: Path, state: str) -> None:
    """From now on the queue tells one state of all jobs, and accounting nothing."""
    path = folder / "bin" / "squeue"
    path.write_text(f"#!/bin/sh\necho {state}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_a_job_that_is_queued_again_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node was lost, and Slurm found another: it is not over. Without that it would be told as lost."""
    monkeypatch.setattr("autotune.fleet.slurm_engine.ASK_SECONDS", 0.0)
    monkeypatch.setattr("autotune.fleet.slurm_engine.RESULT_SECONDS", 0.5)
    with_slurm(tmp_path, monkeypatch)
    told_by_squeue(tmp_path, "NODE_FAIL")
    engine = SlurmEngine(tmp_path / "jobs", local=False)
    engine.start(Job("any", ("--version",), 60), MachineKind())
    assert not engine.endings(0.1)
    told_by_squeue(tmp_path, "RUNNING")
    time.sleep(0.6)
    assert not engine.endings(0.1)
    told_by_squeue(tmp_path, "NODE_FAIL")
    (ending,) = engine.endings(30.0)
    assert (ending.fate, "is over (node_fail)" in ending.message) == ("lost", True)
