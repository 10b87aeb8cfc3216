"""Jobs on Slurm through submitit, or as processes of this machine."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.errors import INTERRUPTED_STATUS, UsageError
from autotune.fleet.campaign import Ending, Fate
from autotune.fleet.job import GRACE_SECONDS, Job, Reply, reason_in, run_job
from autotune.fleet.plan import MachineKind

FOLDER = ".autotune-fleet"
"""Lies in the working directory, which a cluster's nodes commonly share; `folder` in the fleet file names another."""
LIMIT_SECONDS = 120.0
"""Slurm's time limit beyond the job's own: Slurm must not end a job that ends by itself. Not tuned."""
POLL_SECONDS = 0.5
LOST = {"NODE_FAIL", "BOOT_FAIL", "INTERRUPTED"}
"""States of jobs that did nothing wrong; the last is submitit's, for a process that a signal ended."""
PREEMPTED = "PREEMPTED"
QUEUED = {"PENDING", "REQUEUED", "CONFIGURING"}
GOING_ON = {"SUSPENDED", "RESIZING", "CONFIGURING"}
"""States that submitit takes for a job's end, and stops asking, though Slurm continues the job."""
UNKNOWN, GONE = "UNKNOWN", "GONE"
"""Slurm's accounting does not know the job, or there is no accounting; the queue no longer knows it either."""
OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "DEADLINE", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL", GONE}
ASK_SECONDS, RESULT_SECONDS = 5.0, 20.0
"""Time between two queries of the queue, which all users share; and how long after its job's end a result may appear,
since changes on other machines are seen late. Not tuned."""


class SlurmEngine:
    """Runs jobs by submitit.

    Args:
        folder: Folder for jobs and their output, which all nodes must see; None for one in the working directory.
            Files are removed if each job brought a result.
        local: Whether jobs run as processes of this machine.
        wait: Seconds that a job may stay in the queue; None for no limit.

    Raises:
        UsageError: submitit is not installed, there is no Slurm here, or the folder cannot be made.
    """

    def __init__(self, folder: Path | None, *, local: bool, wait: float | None = None) -> None:
        try:
            import submitit
        except ImportError:
            raise UsageError("the engine slurm needs submitit, which is not installed; pip install submitit") from None
        self._folder = (folder or Path(FOLDER)).resolve() / f"{time.time_ns():x}"
        try:
            self._folder.mkdir(mode=0o700, parents=True)  # jobs hold the command with its secrets
        except OSError as error:
            raise UsageError(
                f"the folder {self._folder} cannot be made: {error.strerror or error}; name another as folder in the "
                "fleet file"
            ) from error
        self._local, self._wait = local, wait
        # A new executor for each job: the parameters of one job would carry over to the next.
        self._make: Callable[[], Any] = functools.partial(
            submitit.AutoExecutor, self._folder, cluster="local" if local else "slurm"
        )
        try:
            self._make()
        except RuntimeError as error:
            self._remove_folder()
            raise UsageError(
                f"the engine slurm cannot be used: {error}; run it on a login node of the cluster"
            ) from None
        self._jobs: dict[str, tuple[Any, float]] = {}
        self._queue = _Queue()
        self._refused: list[Ending] = []
        self._replied: list[Any] = []  # jobs that Slurm may have queued again
        self._failed = False

    def start(self, job: Job, kind: MachineKind) -> None:
        """Submits a job."""
        if self._local and kind.gpus is None:  # submitit would hide all GPUs
            visible = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES")}
            job = replace(job, environment=job.environment | visible)
        limit = job.budget_seconds + GRACE_SECONDS + LIMIT_SECONDS
        parameters = {
            "name": f"autotune-{job.machine}",
            "timeout_min": math.ceil(limit / 60),
            "gpus_per_node": kind.gpus,
            "cpus_per_task": kind.cpus,
            # srun 22.05 to 23.02 does not inherit this from sbatch, and binds the job to one CPU.
            "slurm_srun_args": [f"--cpus-per-task={kind.cpus}"] if kind.cpus else None,
            "slurm_partition": kind.partition,
            "slurm_constraint": kind.constraint,
            "slurm_additional_parameters": dict(kind.sbatch) or None,
        }
        try:
            executor = self._make()
            executor.update_parameters(**{name: value for name, value in parameters.items() if value is not None})
            self._jobs[job.machine] = executor.submit(run_submitted, job), time.monotonic()
        except Exception as error:  # noqa: BLE001 - sbatch refuses in many ways, and submitit passes them on
            self._refused.append(Ending(job.machine, "absent", message=reason_in(str(error))))

    def endings(self, seconds: float) -> Sequence[Ending]:
        """Returns the jobs that have ended; waits up to `seconds` for the first one."""
        ends = time.monotonic() + seconds
        while True:
            refused, self._refused = self._refused, []
            endings = [*refused, *self._ended()]
            if endings or time.monotonic() >= ends:
                return endings
            self._cancel_requeued()
            time.sleep(min(POLL_SECONDS, max(0.0, ends - time.monotonic())))

    def cancel(self) -> None:
        """Cancels all jobs; they have some seconds to end in good order."""
        for job, _ in self._jobs.values():
            _cancel(job)

    def close(self) -> None:
        """Cancels the remaining jobs, and removes all commands, and all files if each job brought a result."""
        self.cancel()
        self._cancel_requeued()
        for file in self._folder.glob("*.pkl"):
            if not file.match("*_result.pkl"):  # a command, which may hold secrets
                with contextlib.suppress(OSError):
                    file.unlink()
        if not self._failed and not self._jobs:
            self._remove_folder()

    def _remove_folder(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # other fleets or the user use it
            self._folder.parent.rmdir()

    def _ended(self) -> list[Ending]:
        endings = []
        for machine, (job, since) in list(self._jobs.items()):
            if job.done() and not _goes_on(job):
                ending = self._ending(machine, job)
            elif (state := self._queue.state(job)) == PREEMPTED:  # submitit waits: Slurm may queue the job again
                ending = Ending(machine, "lost", message="it was preempted")
            elif self._queue.seconds_over(job) > RESULT_SECONDS:
                fate: Fate = "lost" if state in LOST else "failed"
                reason = f"Slurm's job {job.job_id} is over ({state.lower()}) and has left no result"
                ending = Ending(machine, fate, message=f"{reason}; its last output: {reason_in(job.stderr() or '')}")
            elif self._wait is not None and time.monotonic() - since > self._wait and self._queue.holds(job):
                ending = Ending(machine, "absent", message=f"it waited for longer than {self._wait:.0f} s in the queue")
            else:
                continue
            del self._jobs[machine]
            self._failed |= ending.reply is None or ending.reply.result is None
            # Slurm may queue it again, even after its reply; it would run beside the next try, or for nothing.
            if ending.fate != "done":
                _cancel(job)
            elif not self._local:
                self._replied.append(job)
            endings.append(ending)
        return endings

    def _cancel_requeued(self) -> None:
        """Cancels jobs that Slurm has queued again after their reply; not before it is returned, as this may take long.

        Each is looked at once.
        """
        while self._replied:
            job = self._replied.pop()
            with contextlib.suppress(Exception):  # Slurm may not answer
                if self._queue.state(job, now=True) in {PREEMPTED, *QUEUED}:
                    _cancel(job)

    @staticmethod
    def _ending(machine: str, job: Any) -> Ending:
        error = job.exception()
        if error is None:
            reply: Reply = job.result()
            if reply.status == INTERRUPTED_STATUS:  # as before a preemption; the campaign knows if the user did it
                return Ending(machine, "lost", reply, "it was interrupted")
            return Ending(machine, "done", reply)
        fate: Fate = "lost" if _first_word(job.state) in LOST else "failed"
        return Ending(machine, fate, message=reason_in(str(error)))


def _cancel(job: Any) -> None:
    with contextlib.suppress(Exception):  # it may be over, or Slurm may not answer
        job.cancel(check=False)


def _goes_on(job: Any) -> bool:
    """Whether a job has not ended, though submitit says so."""
    return _first_word(job.state) in GOING_ON and not job.paths.result_pickle.exists()


class _Queue:
    """States of jobs: from Slurm's accounting, which submitit reads, else from the queue."""

    def __init__(self) -> None:
        self._answers: dict[str, tuple[float, str]] = {}
        self._over: dict[str, float] = {}

    def state(self, job: Any, *, now: bool = False) -> str:
        """A job's state, in a word.

        Args:
            job: The job, as submitit returned it.
            now: Whether to ask again: what submitit knows may be ten minutes old.
        """
        state = _first_word(job.watcher.get_state(job.job_id, mode="force") if now else job.state)
        if state in {UNKNOWN, *GOING_ON} and shutil.which("squeue") is not None:
            asked_at, state = self._answers.get(job.job_id, (-math.inf, UNKNOWN))
            if now or time.monotonic() - asked_at >= ASK_SECONDS:
                state = _by_queue(job.job_id)
                self._answers[job.job_id] = time.monotonic(), state
            if state in OVER:
                self._over.setdefault(job.job_id, time.monotonic())
            else:
                self._over.pop(job.job_id, None)  # Slurm queues a job again whose node was lost
        return state

    def seconds_over(self, job: Any) -> float:
        """Seconds since the queue first reported that a job is over; 0 if it does not report that, or is not asked."""
        over = self._over.get(job.job_id)
        return time.monotonic() - over if over is not None else 0.0

    def holds(self, job: Any) -> bool:
        """Whether a job still waits in the queue."""
        return self.state(job) in QUEUED and self.state(job, now=True) in QUEUED


def _by_queue(job_id: str) -> str:
    """A job's state in the queue; `UNKNOWN` if the queue does not answer."""
    words = ["squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job_id}"]
    try:
        answer = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return UNKNOWN
    if answer.returncode == 0:
        return _first_word(answer.stdout) or GONE
    return GONE if "invalid job id" in answer.stderr.lower() else UNKNOWN


def run_submitted(job: Job) -> Reply:
    """Runs a job under Slurm. `scancel` sends SIGTERM, which submitit would only log, and SIGKILL much later."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return run_job(job, shares_files=True)


def _first_word(state: object) -> str:
    """The first word of a state such as ``CANCELLED by 1000``."""
    return (str(state).split() or [""])[0]
