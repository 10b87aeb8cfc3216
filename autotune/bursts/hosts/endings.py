"""Turns the end of a job into a burst with its outcome, or into the value that was requested."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Sequence
from typing import Any, NamedTuple

from autotune.bursts.hosts.protocol import PIPE_LOST_STATUS, raise_reported
from autotune.bursts.hosts.running_job import Ended
from autotune.errors import ConfigError, WorkloadError
from autotune.measuring import Burst, Measurement, Outcome, Point
from autotune.sandbox.system import KILL
from autotune.timing.failing import causes_of, exhausted, outcome_of, sentence_of

LONGER = "give a longer --budget"
CAUSE_SECONDS = 0.5
"""Wait after the first failure of a rank: its cause may be another rank's death by a signal, which shows within this
time."""
_LOST = re.compile(r"gloo|nccl|processgroup|connection (was )?(closed|reset)|broken pipe", re.IGNORECASE)
"""Matches the first line of torch's error when another rank is gone."""
NO_THREAD_TEXTS = ("libgomp: Thread creation failed", "OMP: Error #34")
"""What OpenMP prints when it can start no thread, before it ends the process: GNU's (`gomp_team_start`) by exit(), and
LLVM's and Intel's (`__kmp_create_worker`) by a signal. pthread_create's EAGAIN, all they know, has two causes."""
NO_THREAD = " (OpenMP could start no thread: no memory for its stack, or a limit on processes and threads is reached)"


class OutOfTimeError(WorkloadError):
    """A process did not reach the start of its jobs in time; nothing is known to be wrong."""


def burst_from(point: Point, ended: Ended) -> Burst:
    """The burst that an ended job stands for: read from its message, else from its exit status."""
    message = ended.message or {}
    measurement, reason = None, None
    if isinstance(message.get("value"), Measurement):
        outcome, measurement = Outcome.OK, message["value"]
    elif message.get("event") == "failure":
        outcome, reason = Outcome(message["outcome"]), message["reason"]
        if outcome is Outcome.CRASHED and ended.killed_by_kernel and "SIGKILL" in reason:  # one of its workers
            outcome = Outcome.HOST_OOM
    elif ended.timed_out:
        outcome, reason = Outcome.TIMEOUT, f"it was still in its phase {ended.phase!r} after {ended.seconds:.1f} s"
    else:
        killed = ended.killed_by_kernel and ended.status == -KILL
        outcome = Outcome.HOST_OOM if killed else Outcome.CRASHED
        printed = ended.stderr_tail.splitlines()
        reason = describe_end(ended) + (f"; last output: {printed[-1].strip()[:300]}" if printed else "")
    phase = "done" if outcome is Outcome.OK else ended.phase
    return Burst(
        point=point,
        outcome=outcome,
        measurement=measurement,
        reason=reason,
        without_effect=tuple(message.get("without_effect", ())),
        phase=phase,
        seconds=ended.seconds,
    )


class RankFailure(NamedTuple):
    """A rank's number, the event of its failure, and whether it ended without reporting one itself."""

    rank: int
    event: dict[str, Any]
    is_silent: bool


def cause_among(failures: Sequence[RankFailure], ranks: int) -> dict[str, Any]:
    """The event of the failure that made the other ranks fail, with its rank named.

    The others lose their connections, and may report that before a silent death is noticed.
    """

    def lost_another(event: dict[str, Any]) -> bool:
        return event.get("outcome") == Outcome.CRASHED.value and _LOST.search(event["reason"]) is not None

    rank, event, _ = min(failures, key=lambda failure: 1 if failure.is_silent else 2 * lost_another(failure.event))
    named = {"reason": f"on rank {rank} of {ranks}: {event['reason']}"} if event["event"] == "failure" else {}
    return event | named


def ran_out_of_memory(ended: Ended) -> bool:
    """Whether a check of a workload ran out of memory."""
    message = ended.message or {}
    outcomes = {outcome.value for outcome in Outcome if outcome.is_memory}
    reported = message.get("out_of_memory") or message.get("outcome") in outcomes
    return bool(reported) or (ended.killed_by_kernel and ended.status == -KILL)


def could_start_no_thread(ended: Ended) -> bool:
    """Whether OpenMP ended the process because it could start no thread: no memory was left, or no room for threads."""
    is_silent = ended.message is None and not ended.timed_out
    return is_silent and any(text in ended.stderr_tail for text in NO_THREAD_TEXTS)


def never_started(point: Point, error: Exception, seconds: float) -> Burst:
    """A burst whose process could not be started; results of other bursts are kept."""
    outcome = Outcome.TIMEOUT if isinstance(error, OutOfTimeError) else Outcome.CRASHED
    return Burst(point=point, outcome=outcome, reason=str(error), seconds=seconds)


def counted(burst: Burst, turns: Sequence[int]) -> Burst:
    """A burst with only its blocks that count; without any, it timed out while warming up."""
    measured = burst.measurement
    if measured is None:
        return burst
    kept = tuple(measured.blocks[turn] for turn in turns if turn < len(measured.blocks))
    if not kept:
        return burst.model_copy(
            update={
                "outcome": Outcome.TIMEOUT,
                "measurement": None,
                "reason": "it was still warming up when time was up",
            }
        )
    spent = math.fsum(block.seconds for block in measured.blocks) - math.fsum(block.seconds for block in kept)
    update = {"blocks": kept, "warmup_seconds": measured.warmup_seconds + max(0.0, spent)}
    return burst.model_copy(update={"measurement": measured.model_copy(update=update)})


def result_of(ended: Ended, what: str, remedy: str = LONGER) -> dict[str, Any]:
    """The value that a job returned; `remedy` helps where the time was too short.

    Raises:
        TargetError, WorkloadError: It reported an error, crashed, or hung.
    """
    message = ended.message or {}
    if message.get("event") == "result":
        value: dict[str, Any] = message["value"]
        return value
    if message.get("event") == "error":
        raise_reported(message)
    if message.get("event") == "failure":
        raise WorkloadError(f"{what} failed: {message['reason']}; fix it and run again")
    if ended.timed_out:
        raise WorkloadError(
            f"{what} did not finish within {ended.seconds:.0f} s; make build() or the dataset faster, or {remedy}"
        )
    raise WorkloadError(f"{what} failed: {describe_end(ended)}; last output: {ended.stderr_tail or 'none'}")


def describe_end(ended: Ended) -> str:
    """An exit status in words."""
    if ended.status is None:
        return "the process could not be ended"
    cause = NO_THREAD if could_start_no_thread(ended) else ""
    if ended.status < 0:
        try:
            name = signal.Signals(-ended.status).name
        except ValueError:
            name = f"signal {-ended.status}"
        by = " (the kernel's out-of-memory killer)" if ended.killed_by_kernel and ended.status == -KILL else ""
        return f"the process was killed by {name}{by}{cause}"
    if ended.status == PIPE_LOST_STATUS:
        return "the process closed file descriptors that were not its own, and with them the pipe for its result"
    return f"the process ended by itself with exit status {ended.status}{cause}"


def classify(error: BaseException, *, compiled: bool = False, device: str = "cpu") -> tuple[Outcome, str]:
    """The outcome that an exception in a burst stands for, and a sentence that names it.

    Args:
        error: What ended the burst.
        compiled: Whether the config compiles, so that a failure in the compiler is the config's.
        device: The device kind; host memory that runs out under a GPU is ``host_oom``.
    """
    outcome, reason = outcome_of(error, device, compiled=compiled, unsupported=(ConfigError,))
    return Outcome(outcome), reason


def device_failed(error: BaseException) -> bool:
    """Whether a GPU refuses all further work of this process, as after an illegal access; not when it is out of memory.

    Torch names such errors by their device, and raises them at some later call.
    """
    sentences = [sentence_of(cause) for cause in causes_of(error)]  # the text of a user's error may raise itself
    failed = any("CUDA error" in text or "HIP error" in text for text in sentences)
    return failed and not any(exhausted(cause, "cuda") for cause in causes_of(error))
