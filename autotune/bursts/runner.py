"""Turns a point into a `Burst`: runs it in its own process and interprets how that ended."""

from __future__ import annotations

import math
import platform
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from autotune.bursts.hosts.endings import LONGER, could_start_no_thread, never_started, ran_out_of_memory, result_of
from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan, Request
from autotune.bursts.turns.contest import Contest
from autotune.bursts.turns.duet import play_round
from autotune.bursts.turns.player import Player
from autotune.errors import IsolationError, TargetError, WorkloadError
from autotune.hardware import Cpu, DeviceKind, Gpu, Hardware, merge, probe_host
from autotune.knobs import Scalar, WorkloadFacts, exchanges_coarsely
from autotune.measuring import Agreement, Burst, Outcome, Pair, Point, Profile, Scatter, pair_apart, worst
from autotune.units import format_bytes

START_SECONDS = 10.0
"""Time for a process to exist, including another import of the module if the forkserver was killed. Not tuned."""
TOO_LARGE = (
    "the data set reads {} from files, more than the {} of memory that could keep them: players of a duet train "
    "different samples, since the second to read them would read from memory"
)
UNSHARED = (
    "an iterable data set is not split among ranks: it must split itself, by torch.distributed.get_rank(), or "
    "each rank trains all of it"
)
NO_ROOM = "there is no memory for all players at once: whole bursts take turns, which is less certain"
FULL_TURN_SECONDS = 2.0
"""Length of a turn where each player frees its memory after it: allocating it again takes time. Not tuned."""
MOST_HALVINGS = 12
"""Most halvings of the batch when checking a workload: 4,096 samples become one."""
MEMORY = ("device_memory_bytes", "host_memory_bytes")
NOT_STARTED = (TargetError, WorkloadError, IsolationError)
"""Errors when a forkserver must be replaced, but the module's file is gone or no process can be started."""


class Runner(Protocol):
    """What the search needs: an object that runs points."""

    def run(self, point: Point, plan: BurstPlan, deadline_seconds: float) -> Burst:
        """Runs one burst, which ends soon after the deadline, whatever happens."""

    def play(self, points: Sequence[Point], plan: BurstPlan, deadline_seconds: float) -> list[Burst]:
        """Runs one round: several points in turn, on the same samples. Returns one burst each, in order."""

    def challenge(
        self,
        incumbent: Point | None,
        candidates: Sequence[Point],
        plan: BurstPlan,
        deadline_seconds: float,
        on_pair: Callable[[Point, Pair], None],
    ) -> list[tuple[Burst, Pair | None]]:
        """Plays candidates against the incumbent in the same turns; each leaves as soon as it is decided.

        The incumbent lives on between challenges, and so does a candidate that may take its place. One host plays all
        points that can share a process. A point in its own process that runs out of memory or crashes beside the
        incumbent runs again alone: there may be no room for two, and a lock, a port or a database may serve only one.

        Without an incumbent the candidates train alone. Each player trains as long as planned, or less if it is decided
        before. The challenge ends soon after the deadline, whatever happens. `on_pair` receives a candidate's pair
        after each turn.

        Returns:
            Each candidate's burst, and its speed over the incumbent's, or None if too little is known. The last
            candidates are missing if the first ones take too long to begin.
        """

    def close(self) -> None:
        """Ends all processes that live on between challenges."""


class ProcessRunner:
    """Runs bursts of one target on one device, each in a process of its own.

    Args:
        seed: Each burst's seed is drawn from it.
        memory_limit_bytes: Host memory of the process tree above which a burst ends as out of memory.
        memory_fraction: Cap on the GPU's memory.
        device_uuid: The NVIDIA GPU to watch.
        cache_bytes: Memory in which the system can keep the data set's files; None if unknown.
        ranks: In the baseline.
        note: Receives a message if memory is too small for rounds.
        device_bytes: GPU memory that other programs leave free; None if unknown.
        spills: Whether the GPU's driver moves memory to the host instead of failing, which is slow and goes unseen.
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
        device_bytes: int | None = None,
        spills: bool = False,
    ) -> None:
        self._isolation = isolation
        self._note = note
        self._device_bytes, self._spills = device_bytes, spills
        self._ranks = ranks
        self._cache_bytes = cache_bytes
        self._same_samples = True
        self._in_one_host = self._one_by_one = False
        self._count = 0
        self._largest_samples: tuple[int, ...] = ()
        self._worst: dict[Point, dict[str, int | None]] = {}
        self._living: list[Player] = []
        self._scatter = Scatter()
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
        self, deadline_seconds: float, explored: Mapping[str, tuple[Scalar, ...]] = {}, remedy: str = LONGER
    ) -> WorkloadFacts:
        """Checks the workload once; later bursts also train on its largest samples.

        If a step on the baseline's batch runs out of memory, a smaller batch is checked.

        Args:
            deadline_seconds: Time for the check.
            explored: Arguments that `build()` must accept, each with its values.
            remedy: Advice if the time is too short.

        Raises:
            TargetError, WorkloadError: What is wrong with it, with the remedy.
        """
        request = self._request.model_copy(update={"job": "check", "explored": dict(explored)})
        deadline = time.monotonic() + deadline_seconds
        ended = self._isolation.run(request, deadline_seconds)
        while request.halvings < MOST_HALVINGS and (
            ran_out_of_memory(ended)
            or (request.halvings > 0 and could_start_no_thread(ended))  # most likely of memory, which ran out before
        ):
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
            note = TOO_LARGE.format(format_bytes(files_bytes), format_bytes(self._cache_bytes))
            facts = facts.model_copy(update={"notes": (*facts.notes, note)})
        return facts if self._ranks == 1 else self._together(facts, deadline_seconds, remedy)

    def _together(self, facts: WorkloadFacts, deadline_seconds: float, remedy: str) -> WorkloadFacts:
        """The facts for several ranks: with their baseline, and the cost of exchanging gradients.

        Raises:
            WorkloadError: They cannot train it together.
        """
        baseline = facts.baseline.replace(ranks=self._ranks, find_unused_parameters=facts.unused_parameters > 0)
        request = self._request.model_copy(update={"job": "communication", "point": Point(config=baseline)})
        ended = self._isolation.run(request, deadline_seconds)
        notes = facts.notes
        share = None
        if ran_out_of_memory(ended):  # the search looks for a config that fits
            notes = (*notes, "the baseline's ranks ran out of memory together")
        else:
            what = f"training on {self._ranks} ranks"
            share = result_of(ended, what, remedy)["communication_fraction"]
        if facts.samples is None:
            notes = (*notes, UNSHARED)
        return facts.model_copy(update={"baseline": baseline, "communication_fraction": share, "notes": notes})

    def agreement(self, point: Point, steps: int, deadline_seconds: float) -> Agreement:
        """Trains a point and eager fp32 side by side, from one state and on the same batches.

        Each step of the optimizer takes one micro-batch.

        Raises:
            AutotuneError: It crashed, hung, or ran out of memory.
        """
        point = point if exchanges_coarsely(point.config) else _on_one_rank(point)
        request = self._request.model_copy(update={"job": "numerics", "point": point, "steps": steps})
        value = result_of(self._isolation.run(request, deadline_seconds), "the numerics check")
        return Agreement.model_validate(value)

    def losses(self, point: Point, steps: int, deadline_seconds: float) -> tuple[float, ...]:
        """The losses of a script's first steps, from the same seeds each time.

        Raises:
            AutotuneError: It crashed, hung, or ran out of memory.
        """
        update = {"job": "numerics", "point": point, "steps": steps, "losses_alone": True}
        ended = self._isolation.run(self._request.model_copy(update=update), deadline_seconds)
        return tuple(result_of(ended, "comparing losses")["losses"])

    def profile(self, point: Point, deadline_seconds: float) -> Profile:
        """Where a point's steps and samples spend their time.

        Raises:
            AutotuneError: It crashed, hung, or ran out of memory.
        """
        request = self._request.model_copy(update={"job": "profile", "point": _on_one_rank(point)})
        return Profile.model_validate(result_of(self._isolation.run(request, deadline_seconds), "the profile"))

    def run(self, point: Point, plan: BurstPlan, deadline_seconds: float) -> Burst:
        """Runs one burst, which ends soon after the deadline, whatever happens."""
        (burst,) = self._play([point], plan, deadline_seconds)
        return burst

    def play(self, points: Sequence[Point], plan: BurstPlan, deadline_seconds: float) -> list[Burst]:
        """Runs several points side by side, block by block in turn, on the same samples.

        If memory runs out beside others, or the allocator has to ask again, that says nothing about a point alone. From
        then on one host plays all points if they can share it, else whole bursts take turns. A point without any block
        still has an outcome. Where memory does not hold all of them at their peaks, each frees what it does not use.
        """
        self.close()  # its memory is needed
        deadline = time.monotonic() + deadline_seconds
        crowded: set[Point] = set()
        share = all(point.can_share_process(points[0]) for point in points)
        if self._is_full(points):
            plan = plan.model_copy(
                update={"frees": True, "turn_seconds": max(plan.turn_seconds or 0, FULL_TURN_SECONDS)}
            )
            self._in_one_host |= self._spills and share
            self._one_by_one |= self._spills and not share
        before = self._in_one_host, self._one_by_one
        if not self._one_by_one or len(points) == 1:
            bursts = self._play(points, plan, deadline_seconds)
            if _overflows(bursts) and share and not self._in_one_host:
                self._in_one_host = True
                bursts = self._play(points, plan, deadline - time.monotonic())
            if not _overflows(bursts):
                return bursts
            crowded = {burst.point for burst in bursts if _lacks_room(burst)}
            self._one_by_one = True
        ran: dict[Point, Burst] = {}
        for point in random.Random(self._count).sample(points, len(points)):
            ran[point] = self.run(point, plan, (deadline - time.monotonic()) / (len(points) - len(ran)))
        if crowded and all(_lacks_room(ran[point]) for point in crowded):  # the others took nothing from them
            self._in_one_host, self._one_by_one = before
        elif crowded:
            self._note(NO_ROOM)
        return [ran[point] for point in points]

    def _play(self, points: Sequence[Point], plan: BurstPlan, deadline_seconds: float) -> list[Burst]:
        self._count += 1
        seed = self._request.seed + 1000 * self._count
        requests = [
            self._request_for(point, plan, seed + (0 if self._same_samples else number), shares=self._in_one_host)
            for number, point in enumerate(points)
        ]
        began = time.monotonic()
        try:
            bursts = play_round(
                self._isolation, requests, plan, began + deadline_seconds, seed, in_one_host=self._in_one_host
            )
        except NOT_STARTED as error:
            return [never_started(point, error, time.monotonic() - began) for point in points]
        # The players wait for each other, so each is charged an equal share of the whole time.
        share = {"seconds": (time.monotonic() - began) / len(points)}
        return [self._with_worst(burst.model_copy(update=share), plan) for burst in bursts]

    def challenge(
        self,
        incumbent: Point | None,
        candidates: Sequence[Point],
        plan: BurstPlan,
        deadline_seconds: float,
        on_pair: Callable[[Point, Pair], None],
    ) -> list[tuple[Burst, Pair | None]]:
        """Plays candidates against the incumbent in the same turns; each leaves as soon as it is decided."""
        self._count += 1
        if incumbent is not None and self._is_full([incumbent, candidates[0]]):
            plan = plan.model_copy(update={"frees": True})
        # On the incumbent's samples, unless the second to read them would read from memory.
        seed = self._request.seed + (0 if self._same_samples else self._count)
        requests = [self._request_for(point, plan, seed, shares=True) for point in candidates]
        # Computing alone is compared with whole training; any other part, with the same part.
        whole = plan.model_copy(update={"part": "all"}) if plan.part == "compute" else plan
        partner = None
        if incumbent is not None:
            partner = self._request_for(incumbent, whole, self._request.seed, shares=True)
        began, (living, self._living) = time.monotonic(), (self._living, [])
        deadline = began + deadline_seconds
        contest = Contest(self._isolation, living, partner, requests, plan, deadline, self._scatter, on_pair)
        try:
            played = contest.play(self._request.seed + self._count)
        except NOT_STARTED as error:
            return [(never_started(point, error, time.monotonic() - began), None) for point in candidates]
        self._living = contest.living
        # They share the time that none of them cost by itself, such as the incumbent's turns.
        rest = max(0.0, time.monotonic() - began - math.fsum(burst.seconds for burst, _ in played)) / len(played)
        played = [
            (self._with_worst(burst.model_copy(update={"seconds": burst.seconds + rest}), plan), pair)
            for burst, pair in played
        ]
        return [self._alone_if_crowded(incumbent, burst, pair, plan, deadline) for burst, pair in played]

    def _alone_if_crowded(
        self, incumbent: Point | None, burst: Burst, pair: Pair | None, plan: BurstPlan, deadline: float
    ) -> tuple[Burst, Pair | None]:
        """Runs a candidate alone, and then the incumbent, if the candidate may have failed because of a neighbour.

        In its own process it may have found memory, a lock, a port or a database taken. On a CPU, memory may also run
        out in a process that both share: such a heap was seen to hold four times what the largest step takes.
        """
        spare_seconds = deadline - time.monotonic()
        if incumbent is None or spare_seconds <= 0:
            return burst, pair
        apart = not burst.point.can_share_process(incumbent)
        if _lacks_room(burst):
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

    def close(self) -> None:
        """Ends all processes that live on between challenges."""
        living, self._living = self._living, []
        for player in living:
            player.host.discard()

    def _is_full(self, points: Sequence[Point]) -> bool:
        """Whether the GPU's memory cannot hold all points at their peaks; an unknown peak counts as the highest known.

        Then a stopped process that keeps its unused memory would take it from the one that plays.
        """
        peaks = [self._worst.get(point, {}).get("device_memory_bytes") for point in points]
        highest = max((peak for peak in peaks if peak is not None), default=None)
        if self._device_bytes is None or highest is None or len(points) == 1:
            return False
        return sum(highest if peak is None else peak for peak in peaks) > self._device_bytes

    def _request_for(self, point: Point, plan: BurstPlan, seed: int, *, shares: bool) -> Request:
        """A request for a host; a point trains on the largest samples only the first time that it runs.

        Where a player shares its host, memory that it frees must not change the page faults of another.
        """
        largest = () if point in self._worst else self._largest_samples
        update = {"job": "host", "point": point, "plan": plan, "seed": seed, "largest_samples": largest}
        return self._request.model_copy(update=update | {"steady_malloc": shares})

    def _with_worst(self, burst: Burst, plan: BurstPlan) -> Burst:
        """A burst with the highest memory that its point has ever taken, if all of training ran.

        A part alone takes other memory, and the loader alone does not train on the largest samples.
        """
        measured = burst.measurement
        if measured is None or plan.part != "all":
            return burst
        before = self._worst.get(burst.point, {})
        memory = {name: worst([before.get(name), getattr(measured, name)]) for name in MEMORY}
        self._worst[burst.point] = memory
        return burst.model_copy(update={"measurement": measured.model_copy(update=memory)})


def _overflows(bursts: Sequence[Burst]) -> bool:
    """Whether one of several ran out of memory, or had to free its cache because of the others."""
    return len(bursts) > 1 and any(map(_lacks_room, bursts))


def _lacks_room(burst: Burst) -> bool:
    """Whether it ran out of memory, or the allocator had to free its cache and ask again."""
    return burst.outcome.is_memory or bool(burst.retried_allocation)


def _on_one_rank(point: Point) -> Point:
    """One rank of a point, on its share of the CPUs."""
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
    """Makes a runner for a device of this machine, which may use a share of its memory (`memory_target`).

    The other arguments are those of `ProcessRunner`.
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
        device_bytes=record.free_bytes if isinstance(record, Gpu) else None,
        spills="microsoft" in platform.release().lower(),  # WSL
    )


def _free_share(record: Gpu | Cpu) -> float:
    """Share of a GPU's memory that others leave free; torch caps a process by a share of all memory."""
    if not isinstance(record, Gpu) or not record.memory_total_bytes:
        return 1.0
    free = record.free_bytes if record.free_bytes is not None else record.memory_total_bytes  # 0: it is full
    return free / record.memory_total_bytes


def look_at_machine(
    isolation: Isolation, deadline_seconds: float, *, device: DeviceKind | None = None, peak_seconds: float = 0.0
) -> Hardware:
    """The machine as host and torch see it.

    Args:
        isolation: Where the child process comes from.
        deadline_seconds: Time for the child process.
        device: The device whose peaks are measured; the first accelerator when None.
        peak_seconds: Time for measuring the peaks; 0 measures none.

    Raises:
        WorkloadError: It failed, or took too long.
    """
    request = Request(job="probe", device=device, peak_seconds=peak_seconds)
    return merge(probe_host(), result_of(isolation.run(request, deadline_seconds), "probing the machine"))
