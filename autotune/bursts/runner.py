"""Turns a point into a Burst: sends it to a process of its own and reads how that ended."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from autotune.bursts.contest import Challenged, Contest
from autotune.bursts.duet import play_round
from autotune.bursts.endings import LONGER, burst_from, counted, never_started, ran_out_of_memory, result_of
from autotune.bursts.isolation import Isolation
from autotune.bursts.protocol import BurstPlan, Request
from autotune.errors import IsolationError, TargetError, WorkloadError
from autotune.hardware import Cpu, DeviceKind, Gpu, Hardware, merge, probe_host
from autotune.knobs import WorkloadFacts, exchanges_coarsely
from autotune.measuring import Agreement, Burst, Outcome, Pair, Point, Profile, pair_apart, worst
from autotune.units import format_bytes

START_SECONDS = 10.0
"""For a process to exist, importing the module anew should the forkserver have been killed. Chosen."""
TOO_LARGE = (
    "the data set reads {} from files, more than the {} of memory that could keep them: sides of a duet train "
    "different samples, since whoever reads second would read from memory"
)
UNSHARED = (
    "an iterable data set is not shared out among ranks: it must do so itself, by torch.distributed.get_rank(), or "
    "each rank trains all of it"
)
NO_ROOM = "there is no memory for all sides at once: whole bursts take turns, which is less certain"
MOST_HALVINGS = 12
"""Of a batch, to look at a workload with: 4,096 samples become one."""
MEMORY = ("device_memory_bytes", "host_memory_bytes")
NOT_STARTED = (TargetError, WorkloadError, IsolationError)
"""The forkserver had to be replaced, and the module's file is gone, or the system has no process left."""


class Runner(Protocol):
    """What the search needs: something that runs a point."""

    def run(self, point: Point, plan: BurstPlan, deadline_seconds: float) -> Burst:
        """Runs one burst; it is over, whatever happens, soon after the deadline."""

    def play(self, points: Sequence[Point], plan: BurstPlan, deadline_seconds: float) -> list[Burst]:
        """One round: runs several points in turn, on the same samples; one burst each, in the order of the points."""

    def challenge(
        self,
        incumbent: Point | None,
        candidates: Sequence[Point],
        plan: BurstPlan,
        deadline_seconds: float,
        told: Callable[[Point, Pair], None],
    ) -> list[tuple[Burst, Pair | None]]:
        """Plays candidates against the incumbent in the same turns; each leaves as soon as it is decided.

        The incumbent lives on between challenges, and so does a candidate that may take its place. One host plays all
        that differ in nothing that only a new process has. Another one, which ran out of memory or crashed beside the
        incumbent's process, runs again alone: there may be no room for two, and a lock, a port or a database may be for
        one.

        Args:
            incumbent: None: the candidates train without one.
            candidates: What joins.
            plan: How long each player trains at most; less when it is decided before.
            deadline_seconds: Soon after which it is over, whatever happens.
            told: Hears what is known of a candidate after each turn.

        Returns:
            Each candidate's burst, and its speed over the incumbent's; None where too little was seen of that. There
            may be fewer than candidates: the last ones do not play where the first take too long to begin.
        """

    def close(self) -> None:
        """Ends all that lives between challenges."""


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
        ranks: Processes that train together in the baseline.
        note: Receives a sentence where memory is too small for rounds.
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
        ranks: int = 1,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._isolation = isolation
        self._note = note
        self._ranks = ranks
        self._cache_bytes = cache_bytes
        self._same_samples = True
        self._in_one_host = self._one_by_one = False
        self._count = 0
        self._largest_samples: tuple[int, ...] = ()
        self._worst: dict[Point, dict[str, int | None]] = {}
        self._contest = Contest(isolation, seed)
        self._request = Request(
            job="host",
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

        Where a step on the baseline's batch runs out of memory, a smaller one is looked at.

        Args:
            deadline_seconds: What it may take.
            parameter_names: Arguments that `build()` will be asked to take.
            remedy: What helps where the time is too short.

        Raises:
            TargetError, WorkloadError: What is wrong with it, with the remedy.
        """
        request = self._request.model_copy(update={"job": "check", "parameter_names": tuple(parameter_names)})
        deadline = time.monotonic() + deadline_seconds
        ended = self._isolation.run(request, deadline_seconds)
        while ran_out_of_memory(ended) and request.halvings < MOST_HALVINGS:
            request = request.model_copy(update={"halvings": request.halvings + 1})
            ended = self._isolation.run(request, max(0.0, deadline - time.monotonic()))
        value = result_of(ended, "checking the workload", remedy)
        reason = self._isolation.fork_unsafe_reason
        facts = WorkloadFacts.model_validate({**value, "fork_safe": reason is None, "fork_unsafe_reason": reason})
        self._largest_samples = facts.largest_samples
        self._request = self._request.model_copy(update={"sample_wait_fraction": facts.sample_wait_fraction})
        files_bytes = facts.sample_file_bytes * (facts.samples or 0)
        if self._cache_bytes is not None and files_bytes > self._cache_bytes:
            self._same_samples = False
            told = TOO_LARGE.format(format_bytes(files_bytes), format_bytes(self._cache_bytes))
            facts = facts.model_copy(update={"notes": (*facts.notes, told)})
        return facts if self._ranks == 1 else self._together(facts, deadline_seconds, remedy)

    def _together(self, facts: WorkloadFacts, deadline_seconds: float, remedy: str) -> WorkloadFacts:
        """What was found, for several ranks: the baseline is theirs, and what exchanging gradients takes is known.

        Raises:
            WorkloadError: They cannot train it together.
        """
        baseline = facts.baseline.replace(ranks=self._ranks, find_unused_parameters=facts.unused_parameters > 0)
        request = self._request.model_copy(update={"job": "communication", "point": Point(config=baseline)})
        ended = self._isolation.run(request, deadline_seconds)
        notes = facts.notes
        share = None
        if ran_out_of_memory(ended):  # the search looks for what fits
            notes = (*notes, "the baseline's ranks ran out of memory together")
        else:
            what = f"training on {self._ranks} ranks"
            share = result_of(ended, what, remedy)["communication_fraction"]
        if facts.samples is None:
            notes = (*notes, UNSHARED)
        return facts.model_copy(update={"baseline": baseline, "communication_fraction": share, "notes": notes})

    def agreement(self, point: Point, steps: int, deadline_seconds: float) -> Agreement:
        """Trains a point and eager fp32 side by side, from one state and on the same batches.

        Args:
            point: What is compared with eager fp32.
            steps: Optimizer steps, of one micro-batch each.
            deadline_seconds: What it may take.

        Raises:
            AutotuneError: It crashed, hung, or ran out of memory.
        """
        point = point if exchanges_coarsely(point.config) else _on_one_rank(point)
        request = self._request.model_copy(update={"job": "numerics", "point": point, "steps": steps})
        value = result_of(self._isolation.run(request, deadline_seconds), "the numerics check")
        return Agreement.model_validate(value)

    def losses(self, point: Point, steps: int, deadline_seconds: float) -> tuple[float, ...]:
        """The losses of a script's first steps, from the same seeds each time.

        Args:
            point: What trains.
            steps: Optimizer steps.
            deadline_seconds: What it may take.

        Raises:
            AutotuneError: It crashed, hung, or ran out of memory.
        """
        asked = {"job": "numerics", "point": point, "steps": steps, "losses_alone": True}
        ended = self._isolation.run(self._request.model_copy(update=asked), deadline_seconds)
        return tuple(result_of(ended, "comparing losses")["losses"])

    def profile(self, point: Point, deadline_seconds: float) -> Profile:
        """Where a point's steps and samples spend their time.

        Raises:
            AutotuneError: It crashed, hung, or ran out of memory.
        """
        request = self._request.model_copy(update={"job": "profile", "point": _on_one_rank(point)})
        return Profile.model_validate(result_of(self._isolation.run(request, deadline_seconds), "the profile"))

    def run(self, point: Point, plan: BurstPlan, deadline_seconds: float) -> Burst:
        """Runs one burst; it is over, whatever happens, soon after the deadline."""
        (burst,) = self._play([point], plan, deadline_seconds)
        return burst

    def play(self, points: Sequence[Point], plan: BurstPlan, deadline_seconds: float) -> list[Burst]:
        """Runs several points side by side, block by block in turn, on the same samples.

        Memory that runs out beside others says nothing about a point alone: from then on one host plays all, where they
        can share it, and else whole bursts alternate. What takes part in no block has its outcome.
        """
        self.close()  # its memory is needed
        deadline = time.monotonic() + deadline_seconds
        if not self._one_by_one or len(points) == 1:
            bursts = self._play(points, plan, deadline_seconds)
            share = all(point.can_share_process(points[0]) for point in points)
            if _overflows(bursts) and share and not self._in_one_host:
                self._in_one_host = True
                bursts = self._play(points, plan, deadline - time.monotonic())
            if not _overflows(bursts):
                return bursts
            self._one_by_one = True
            self._note(NO_ROOM)
        ran: dict[Point, Burst] = {}
        for point in random.Random(self._count).sample(points, len(points)):
            ran[point] = self.run(point, plan, (deadline - time.monotonic()) / (len(points) - len(ran)))
        return [ran[point] for point in points]

    def _play(self, points: Sequence[Point], plan: BurstPlan, deadline_seconds: float) -> list[Burst]:
        self._count += 1
        seed = self._request.seed + 1000 * self._count
        requests = [
            self._request_for(point, plan, seed + (0 if self._same_samples else number)).model_copy(
                update={"steady_malloc": self._in_one_host}
            )
            for number, point in enumerate(points)
        ]
        began = time.monotonic()
        try:
            played = play_round(
                self._isolation, requests, plan, began + deadline_seconds, seed, in_one_host=self._in_one_host
            )
        except NOT_STARTED as error:
            return [never_started(point, error, time.monotonic() - began) for point in points]
        # The players wait for each other: each is charged its share of the time that all took.
        share = {"seconds": (time.monotonic() - began) / len(points)}
        bursts = [burst_from(point, ended) for point, ended in zip(points, played.ended, strict=True)]
        return [self._with_worst(counted(burst, played.counted).model_copy(update=share), plan) for burst in bursts]

    def challenge(
        self,
        incumbent: Point | None,
        candidates: Sequence[Point],
        plan: BurstPlan,
        deadline_seconds: float,
        told: Callable[[Point, Pair], None],
    ) -> list[tuple[Burst, Pair | None]]:
        """Plays candidates against the incumbent in the same turns; each leaves as soon as it is decided."""
        self._count += 1
        wanted = [self._candidate(point, plan) for point in candidates]
        # Computing alone is compared with the whole; what is evaluated, with what is.
        whole = plan.model_copy(update={"part": "all"}) if plan.part == "compute" else plan
        partner = self._in_search(incumbent, whole, self._request.seed) if incumbent is not None else None
        began = time.monotonic()
        try:
            came = self._contest.challenge(partner, wanted, plan, began + deadline_seconds, told)
        except NOT_STARTED as error:
            return [(never_started(point, error, time.monotonic() - began), None) for point in candidates]
        # What they did not cost by themselves, the incumbent's turns say, they share.
        rest = max(0.0, time.monotonic() - began - math.fsum(one.seconds for one in came)) / len(came)
        played = [
            self._judged(point, one, plan, one.seconds + rest) for point, one in zip(candidates, came, strict=False)
        ]
        return [self._alone_if_crowded(incumbent, *one, plan, began + deadline_seconds) for one in played]

    def _alone_if_crowded(
        self, incumbent: Point | None, burst: Burst, pair: Pair | None, plan: BurstPlan, deadline: float
    ) -> tuple[Burst, Pair | None]:
        """Runs a candidate alone, and then the incumbent, where a neighbour may be why the candidate failed.

        That is memory, a lock, a port or a database that its own process found taken; and on a CPU memory in a process
        that both share: such a heap was seen to hold four times what the largest step takes.
        """
        spare_seconds = deadline - time.monotonic()
        if incumbent is None or spare_seconds <= 0:
            return burst, pair
        apart = not burst.point.can_share_process(incumbent)
        if burst.outcome.is_memory:
            crowded = apart or self._request.device == "cpu"
        else:
            crowded = apart and burst.outcome is Outcome.CRASHED
        if not crowded:
            return burst, pair
        self.close()
        own = self.run(burst.point, plan, spare_seconds)
        seconds = burst.seconds + own.seconds
        if own.rate is not None and own.seconds < spare_seconds:
            theirs = self.run(incumbent, plan, spare_seconds - own.seconds)
            seconds += theirs.seconds
            pair = pair_apart(incumbent, own.rate / theirs.rate) if theirs.rate is not None else None
        return own.model_copy(update={"seconds": seconds}), pair

    def _judged(self, point: Point, came: Challenged, plan: BurstPlan, seconds: float) -> tuple[Burst, Pair | None]:
        """A candidate's burst, and its pair."""
        if came.ended is not None:
            burst = burst_from(point, came.ended)
        else:
            burst = Burst(point=point, outcome=Outcome.OK, measurement=came.measured, phase="done", seconds=0.0)
        burst = counted(burst, came.counted).model_copy(update={"seconds": seconds})
        return self._with_worst(burst, plan), came.pair if burst.ok else None

    def close(self) -> None:
        """Ends all that lives between challenges."""
        self._contest.close()

    def _candidate(self, point: Point, plan: BurstPlan) -> Request:
        """Its samples are those of the incumbent, unless the second to read them would read from memory."""
        seed = self._request.seed + (0 if self._same_samples else self._count)
        return self._in_search(point, plan, seed)

    def _in_search(self, point: Point, plan: BurstPlan, seed: int) -> Request:
        """A player in a host that others share: what one of them frees must not change the page faults of another."""
        return self._request_for(point, plan, seed).model_copy(update={"steady_malloc": True})

    def _request_for(self, point: Point, plan: BurstPlan, seed: int) -> Request:
        """What a host is asked to start with; on the largest samples it trains the first time that it runs."""
        largest = () if point in self._worst else self._largest_samples
        update = {"job": "host", "point": point, "plan": plan, "seed": seed, "largest_samples": largest}
        return self._request.model_copy(update=update)

    def _with_worst(self, burst: Burst, plan: BurstPlan) -> Burst:
        """A burst with the highest memory that its point has been seen to take, if it trained as a whole.

        A part alone takes other memory, and the loader's trains on no largest samples: the point has still to do so.
        """
        measured = burst.measurement
        if measured is None or plan.part != "all":
            return burst
        before = self._worst.get(burst.point, {})
        memory = {name: worst([before.get(name), getattr(measured, name)]) for name in MEMORY}
        self._worst[burst.point] = memory
        return burst.model_copy(update={"measurement": measured.model_copy(update=memory)})


def _overflows(bursts: Sequence[Burst]) -> bool:
    """Whether memory ran out for one of several."""
    return len(bursts) > 1 and any(burst.outcome.is_memory for burst in bursts)


def _on_one_rank(point: Point) -> Point:
    """What one rank of a point computes, on its part of the CPUs; where only that is looked at."""
    config = point.config
    if config.ranks == 1:
        return point
    threads = config.num_threads or max(1, probe_host().cpu.budget // config.ranks)
    return point.model_copy(update={"config": config.replace(ranks=1, num_threads=threads)})


def make_runner(
    isolation: Isolation,
    hardware: Hardware,
    device: DeviceKind,
    *,
    memory_target: float,
    note: Callable[[str], None],
    seed: int = 0,
    ranks: int = 1,
) -> ProcessRunner:
    """Bursts on a device of this machine that may take a share of its memory.

    Args:
        isolation: Where processes come from.
        hardware: The machine.
        device: The device to train on.
        memory_target: Share of the memory that may be used.
        note: Receives a sentence where memory is too small for rounds.
        seed: Each burst's seed is drawn from it.
        ranks: Processes that train together in the baseline.
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
        ranks=ranks,
        note=note,
    )


def _free_share(record: Gpu | Cpu) -> float:
    """Of a GPU's memory, what others leave: the cap on what a process takes is a share of all of it."""
    if not isinstance(record, Gpu) or not record.memory_total_bytes:
        return 1.0
    free = record.free_bytes if record.free_bytes is not None else record.memory_total_bytes  # 0: it is full
    return free / record.memory_total_bytes


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
