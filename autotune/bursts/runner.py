"""Turns a point into a Burst: sends it to a process of its own and reads how that ended."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from pydantic import ValidationError

from autotune.bursts.contest import Contest
from autotune.bursts.duet import play_round
from autotune.bursts.isolation import Isolation
from autotune.bursts.live import Ended
from autotune.bursts.protocol import PIPE_LOST_STATUS, BurstPlan, Request, raise_reported
from autotune.errors import IsolationError, TargetError, WorkloadError
from autotune.hardware import Cpu, DeviceKind, Gpu, Hardware, merge, probe_host
from autotune.knobs import WorkloadFacts
from autotune.measuring import Agreement, Burst, Measurement, Outcome, Pair, Point, Profile
from autotune.units import format_bytes

LONGER = "give a longer --budget"
TOO_LARGE = (
    "the data set reads {} from files, more than the {} of memory that could keep them: sides of a duet train "
    "different samples, since whoever reads second would read from memory"
)
NOT_STARTED = (TargetError, WorkloadError, IsolationError)
"""The forkserver had to be replaced, and the module's file is gone, or the system has no process left."""
KILL = 9
"""SIGKILL, which the kernel's out-of-memory killer sends; Windows has no name for it."""


class Runner(Protocol):
    """What the search needs: something that runs a point."""

    def run(self, point: Point, plan: BurstPlan, deadline_seconds: float) -> Burst:
        """Runs one burst; it is over, whatever happens, soon after the deadline."""

    def play(self, points: Sequence[Point], plan: BurstPlan, deadline_seconds: float) -> list[Burst]:
        """Runs several points side by side, block by block in turn; one burst each, in the order of the points."""

    def challenge(
        self,
        incumbent: Point | None,
        candidate: Point,
        plan: BurstPlan,
        deadline_seconds: float,
        told: Callable[[Pair], None],
    ) -> tuple[Burst, Pair | None]:
        """Plays a candidate against the incumbent, which lives on between challenges, as the winner does.

        Args:
            incumbent: None: the candidate trains alone.
            candidate: What to run.
            plan: How long each side trains at most; less when it is decided before.
            deadline_seconds: Soon after which it is over, whatever happens.
            told: What is known after each turn.

        Returns:
            The candidate's burst, and its speed over the incumbent's; None where too little was seen of that.
        """

    def close(self) -> None:
        """Ends the incumbent."""


class ProcessRunner:
    """Runs bursts of one target on one device, each in a process of its own.

    Args:
        isolation: Where processes come from.
        device: The device to train on.
        seed: Each burst's seed is drawn from it, so that every burst sees other samples.
        memory_limit_bytes: Host memory of the process tree above which a burst ends as out of memory.
        memory_fraction: Cap on the GPU's memory.
        device_uuid: Of the NVIDIA GPU to watch.
        cache_bytes: Memory in which the system can keep the data set's files; None where that is not known.
    """

    def __init__(
        self,
        isolation: Isolation,
        device: DeviceKind,
        *,
        seed: int = 0,
        memory_limit_bytes: int | None = None,
        memory_fraction: float | None = None,
        device_uuid: str | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        self._isolation = isolation
        self._cache_bytes = cache_bytes
        self._same_samples = True
        self._count = 0
        self._contest = Contest(isolation, seed)
        self._request = Request(
            job="burst",
            target=isolation.target,
            device=device,
            seed=seed,
            memory_limit_bytes=memory_limit_bytes,
            memory_fraction=memory_fraction,
            device_uuid=device_uuid,
        )

    def check(
        self, deadline_seconds: float, parameter_names: Iterable[str] = (), remedy: str = LONGER
    ) -> WorkloadFacts:
        """Looks at the workload once; bursts from then on also train on its largest samples.

        Args:
            deadline_seconds: What it may take.
            parameter_names: Arguments that `build()` will be asked to take.
            remedy: What helps where the time is too short.

        Raises:
            TargetError, WorkloadError: What is wrong with it, with the remedy.
        """
        request = self._request.model_copy(update={"job": "check", "parameter_names": tuple(parameter_names)})
        value = result_of(self._isolation.run(request, deadline_seconds), "checking the workload", remedy)
        reason = self._isolation.fork_unsafe_reason
        facts = WorkloadFacts.model_validate({**value, "fork_safe": reason is None, "fork_unsafe_reason": reason})
        self._request = self._request.model_copy(update={"largest_samples": facts.largest_samples})
        files_bytes = facts.sample_file_bytes * (facts.samples or 0)
        if self._cache_bytes is not None and files_bytes > self._cache_bytes:
            self._same_samples = False
            told = TOO_LARGE.format(format_bytes(files_bytes), format_bytes(self._cache_bytes))
            facts = facts.model_copy(update={"notes": (*facts.notes, told)})
        return facts

    def agreement(self, point: Point, steps: int, deadline_seconds: float) -> Agreement:
        """Trains a point and eager fp32 side by side, from one state and on the same batches.

        Args:
            point: What is compared with eager fp32.
            steps: Optimizer steps, of one micro-batch each.
            deadline_seconds: What it may take.

        Raises:
            AutotuneError: It crashed, hung, or ran out of memory.
        """
        request = self._request.model_copy(update={"job": "numerics", "point": point, "steps": steps})
        value = result_of(self._isolation.run(request, deadline_seconds), "the numerics check")
        return Agreement.model_validate(value)

    def profile(self, point: Point, deadline_seconds: float) -> Profile:
        """Where a point's steps and samples spend their time.

        Raises:
            AutotuneError: It crashed, hung, or ran out of memory.
        """
        request = self._request.model_copy(update={"job": "profile", "point": point})
        return Profile.model_validate(result_of(self._isolation.run(request, deadline_seconds), "the profile"))

    def run(self, point: Point, plan: BurstPlan, deadline_seconds: float) -> Burst:
        """Runs one burst; it is over, whatever happens, soon after the deadline."""
        self._count += 1
        seed = self._request.seed + 1000 * self._count
        request = self._request.model_copy(update={"point": point, "plan": plan, "seed": seed})
        began = time.monotonic()
        try:
            ended = self._isolation.run(request, deadline_seconds)
        except NOT_STARTED as error:
            return _never_started(point, error, time.monotonic() - began)
        return burst_from(point, ended)

    def play(self, points: Sequence[Point], plan: BurstPlan, deadline_seconds: float) -> list[Burst]:
        """Runs several points side by side, block by block in turn, on the same samples.

        What did not fit into memory beside the others, and what takes part in no block, is told as its outcome.
        """
        self._count += 1
        seed = self._request.seed + 1000 * self._count
        base = self._request.model_copy(update={"job": "runner", "plan": plan, "seed": seed})
        requests = [
            base.model_copy(update={"point": point, "seed": seed + (0 if self._same_samples else number)})
            for number, point in enumerate(points)
        ]
        self.close()  # its memory is needed
        began = time.monotonic()
        try:
            played = play_round(self._isolation, requests, plan, began + deadline_seconds, seed)
        except NOT_STARTED as error:
            return [_never_started(point, error, time.monotonic() - began) for point in points]
        # The sides wait for each other: each is charged its share of the time that all took.
        share = {"seconds": (time.monotonic() - began) / len(points)}
        bursts = [burst_from(point, ended) for point, ended in zip(points, played.ended, strict=True)]
        return [_counted(burst, played.counted).model_copy(update=share) for burst in bursts]

    def challenge(
        self,
        incumbent: Point | None,
        candidate: Point,
        plan: BurstPlan,
        deadline_seconds: float,
        told: Callable[[Pair], None],
    ) -> tuple[Burst, Pair | None]:
        """Plays a candidate against the incumbent, which lives on between challenges, as the winner does."""
        base = self._request.model_copy(update={"job": "runner", "plan": plan})
        self._count += 1
        seed = base.seed + (0 if self._same_samples else self._count)
        wanted = base.model_copy(update={"point": candidate, "seed": seed})
        partner = base.model_copy(update={"point": incumbent}) if incumbent is not None else None
        began = time.monotonic()
        try:
            came = self._contest.challenge(partner, wanted, plan, began + deadline_seconds, told)
        except NOT_STARTED as error:
            return _never_started(candidate, error, time.monotonic() - began), None
        if came.ended is not None:
            burst = burst_from(candidate, came.ended)
        else:
            burst = Burst(point=candidate, outcome=Outcome.OK, measurement=came.measured, phase="done", seconds=0.0)
        burst = _counted(burst, came.counted).model_copy(update={"seconds": time.monotonic() - began})
        return burst, came.pair if burst.ok else None

    def close(self) -> None:
        """Ends the incumbent."""
        self._contest.close()


def _never_started(point: Point, error: Exception, seconds: float) -> Burst:
    """A burst for which there was no process: what others found must not be lost for that."""
    return Burst(point=point, outcome=Outcome.CRASHED, reason=str(error), seconds=seconds)


def _counted(burst: Burst, counted: Sequence[int]) -> Burst:
    """A burst of those of its blocks that count; one that has none was ended before it showed anything."""
    measured = burst.measurement
    if measured is None:
        return burst
    kept = tuple(measured.blocks[turn] for turn in counted if turn < len(measured.blocks))
    if not kept:
        return burst.model_copy(
            update={
                "outcome": Outcome.TIMEOUT,
                "measurement": None,
                "reason": "it was still warming up when time was up",
            }
        )
    spent = math.fsum(block.seconds for block in measured.blocks) - math.fsum(block.seconds for block in kept)
    update = {"blocks": kept, "warmup_seconds": measured.warmup_seconds + max(0.0, spent), "steady": True}
    return burst.model_copy(update={"measurement": measured.model_copy(update=update)})


def make_runner(
    isolation: Isolation, hardware: Hardware, device: DeviceKind, *, memory_target: float, seed: int = 0
) -> ProcessRunner:
    """Bursts on a device of this machine that may take a share of its memory.

    Args:
        isolation: Where processes come from.
        hardware: The machine.
        device: The device to train on.
        memory_target: Share of the memory that may be used.
        seed: Each burst's seed is drawn from it.
    """
    record = hardware.device(device)
    return ProcessRunner(
        isolation,
        device,
        seed=seed,
        memory_limit_bytes=hardware.memory_limit_bytes("cpu", memory_target),
        memory_fraction=None if device == "cpu" else memory_target * _free_share(record),
        device_uuid=record.uuid if isinstance(record, Gpu) else None,
        cache_bytes=hardware.memory.available_bytes,
    )


def _free_share(record: Gpu | Cpu) -> float:
    """Of a GPU's memory, what others leave: the cap on what a process takes is a share of all of it."""
    if not isinstance(record, Gpu) or not record.memory_total_bytes:
        return 1.0
    return (record.free_bytes or record.memory_total_bytes) / record.memory_total_bytes


def burst_from(point: Point, ended: Ended) -> Burst:
    """The burst that an ended job stands for: read from its message, else from its exit status."""
    message = ended.message or {}
    measurement, reason = None, None
    if message.get("event") == "result":
        try:
            outcome, measurement = Outcome.OK, Measurement.model_validate(message["value"])
        except ValidationError as error:
            outcome, reason = Outcome.CRASHED, f"what it measured is no measurement: {error.errors()[0]['msg']}"
    elif message.get("event") == "failure":
        outcome, reason = Outcome(message["outcome"]), message["reason"]
        if outcome is Outcome.CRASHED and ended.killed_by_kernel and "SIGKILL" in reason:  # one of its workers
            outcome = Outcome.HOST_OOM
    elif message.get("event") == "error":
        outcome, reason = Outcome.CRASHED, message["message"]
    elif ended.timed_out:
        outcome, reason = Outcome.TIMEOUT, f"it was still in its phase {ended.phase!r} after {ended.seconds:.1f} s"
    else:
        killed = ended.killed_by_kernel and ended.status == -KILL
        outcome = Outcome.HOST_OOM if killed else Outcome.CRASHED
        printed = ended.stderr_tail.splitlines()
        reason = describe_end(ended) + (f"; last output: {printed[-1].strip()[:300]}" if printed else "")
    phase = "done" if outcome is Outcome.OK else ended.phase
    return Burst(
        point=point, outcome=outcome, measurement=measurement, reason=reason, phase=phase, seconds=ended.seconds
    )


def look_at_machine(
    isolation: Isolation, deadline_seconds: float, *, device: DeviceKind | None = None, peak_seconds: float = 0.0
) -> Hardware:
    """The machine as host and torch see it.

    Args:
        isolation: Where the child runs that asks torch.
        deadline_seconds: For that child.
        device: Whose peaks are measured; the first accelerator when None.
        peak_seconds: What measuring the peaks may take; 0 measures none.

    Raises:
        WorkloadError: It failed, or took too long.
    """
    request = Request(job="probe", device=device, peak_seconds=peak_seconds)
    return merge(probe_host(), result_of(isolation.run(request, deadline_seconds), "probing the machine"))


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
    if ended.status < 0:
        try:
            name = signal.Signals(-ended.status).name
        except ValueError:
            name = f"signal {-ended.status}"
        by = " (the kernel's out-of-memory killer)" if ended.killed_by_kernel and ended.status == -KILL else ""
        return f"the process was killed by {name}{by}"
    if ended.status == PIPE_LOST_STATUS:
        return "the process closed file descriptors that were not its own, and with them the way to tell its result"
    return f"the process ended by itself with exit status {ended.status}"
