"""Runs jobs of a script: a look at it, runners, and traces of its numbers.

The script starts once with the recorder in it, and waits where its training loop begins; each job is forked from there.
If that is not safe, each job starts the script again.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.bursts.gpu_telemetry import GpuWatch
from autotune.bursts.hosts import cleanup
from autotune.bursts.hosts.child import Child
from autotune.bursts.hosts.compiler_cache import compiler_cache, share_headers
from autotune.bursts.hosts.endings import LONGER, OutOfTimeError, result_of
from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import Request
from autotune.bursts.hosts.running_job import Ended, Live
from autotune.errors import AutotuneError, Interrupted, IsolationError, WorkloadError
from autotune.hardware import CpuEnergy, GpuEnergy, open_energy
from autotune.knobs import affecting
from autotune.knobs.changes import changes_of
from autotune.knobs.registry import READS
from autotune.measuring import Point
from autotune.sandbox.protection import Protection
from autotune.sandbox.view import remove_folder
from autotune.scripts.child import ScriptChild
from autotune.scripts.facts import baseline_of, facts_of, loop_of, require_trainable
from autotune.scripts.looking import watch
from autotune.scripts.ranks import free_port
from autotune.scripts.script import QUIET, Script
from autotune.scripts.seen import SeenScript
from autotune.timing.protocol import FIRST, Command
from autotune.timing.usage import processes
from autotune.units import format_seconds

LOOK = "look"
SLOWER_START = 3.0
"""The script may take this many times as long to its loop as in the look, beside another process. Not tuned."""


class ScriptIsolation(Isolation):
    """Starts the processes of a script.

    Args:
        script: The script that trains.
        note: Receives notes for the user.
        forks: Whether processes are forked where that is safe; otherwise each one starts the script again.

    Raises:
        IsolationError: There is no temporary folder.
    """

    def __init__(self, script: Script, note: Callable[[str], None] = lambda _: None, *, forks: bool = True) -> None:
        super().__init__(script.text, note)
        self._spawning = self._spawning or not forks
        self._seen: SeenScript | None = None
        self._plain: Isolation | None = None
        self._gpus = GpuWatch((), processes)
        self._script = script
        self._starts = 0
        self._serves = False
        self._server_layer = ""
        self._courses: dict[int, Course] = {}
        self._traced: dict[int, dict[str, Any]] = {}
        self._without_effect: set[str] = set()
        self._pass_batches: int | None = None
        self._energy: BlockEnergy | None = None
        try:
            compiler_cache().mkdir(parents=True, exist_ok=True)
            self._protection = Protection(
                self._folder, note, script.writable, any_network=script.any_network, caches=[compiler_cache()]
            )
        except OSError as error:
            remove_folder(str(self._folder))
            raise IsolationError(
                f"no temporary folder could be made ({error}); free some space, or point TMPDIR at another disk"
            ) from error

    @property
    def seen(self) -> SeenScript:
        """What the look at the script saw; available after `start`."""
        assert self._seen is not None  # noqa: S101 - not read before `start`
        return self._seen

    @property
    def protects(self) -> str:
        """How this machine protects the user's files, in a sentence; available after `start`."""
        return self._protection.sentence

    @property
    def loop(self) -> dict[str, Any]:
        """The description by which the recorder finds the training loop again."""
        return loop_of(self.seen)

    def start(self, deadline_seconds: float) -> None:
        """Looks at the script: it trains a few steps as it is.

        Raises:
            WorkloadError: It does not train, or in a way that cannot be changed from outside.
            IsolationError: It could not be started.
            UsageError: This machine cannot protect files, and the user lets the script write to none.
            Interrupted: See `interrupt`.
        """
        if self._seen is not None:
            return
        self._protection.begin()
        plan = self._protection.offer.plan
        self._spawning |= plan is not None and not plan.stacks
        child = self._child({"role": "look", "seconds": deadline_seconds, "reads": READS}, LOOK)
        try:
            with self._attending(child):
                seen = watch(child, deadline_seconds, self._script, self._protection, LOOK)
        except WorkloadError as error:
            raise WorkloadError(f"{error}{self._protection.hint(f'{error} {child.stderr_tail()}')}") from None
        finally:
            child.stop_waiting()
            cleanup.end_processes(lambda: [*child.below(), *cleanup.members_of_run(str(self._folder), child.pid)])
            child.close()
            self._end_left()
            self._protection.drop(LOOK)
        require_trainable(seen, self._script)
        if hint := self._protection.hint(child.stderr_tail()):
            self._note(f"the script went on without what it was denied{hint}")
        self._seen = seen
        self._gpus = GpuWatch(seen.used_gpus, processes)
        # A script that opens CUDA or a process group is forked before it does so.
        if seen.fork_unsafe_reason is not None and not (self._spawning or seen.cuda_opened or seen.opens_group):
            self.fork_unsafe_reason = seen.fork_unsafe_reason
            self._spawn(seen.fork_unsafe_reason)

    def close(self) -> None:
        """Ends all remaining processes, and removes what the script has written in its layers."""
        self._gpus.close()
        self._end_all()
        self._end_left()
        self._protection.close()
        super().close()

    def run(self, request: Request, deadline_seconds: float) -> Ended:
        """Runs one job to its end, or kills its whole tree at the deadline.

        Raises:
            WorkloadError: The script no longer reaches its training loop.
            IsolationError: No process could be started.
            Interrupted: See `interrupt`.
        """
        deadline = time.monotonic() + deadline_seconds
        if request.job == "probe":
            return self._probed(request, deadline_seconds)
        if request.job == "check":
            facts = facts_of(self.seen, self._script).model_dump(mode="json")
            return Ended(message={"event": "result", "value": facts}, status=0, phase="done")
        if request.job == "numerics":
            return self._numbers(request, deadline)
        message = {"event": "failure", "outcome": "unsupported", "reason": f"a script has no job {request.job}"}
        return Ended(message=message, status=0)

    def _probed(self, request: Request, deadline_seconds: float) -> Ended:
        """Probes the machine in a process without the script, which starts beside it: both import torch."""
        if not self._spawning:
            self._launch_server()
        with Isolation(within=self._folder) as plain:
            self._plain = plain
            if self._interrupted:
                raise Interrupted
            plain.start(deadline_seconds)
            if not self._spawning:  # what still starts would take cores from the peaks
                self._ready_server(max(deadline_seconds, SLOWER_START * self.seen.seconds_to_loop))
            return plain.run(request, deadline_seconds)

    def interrupt(self) -> None:
        """Also ends the process that probes the machine."""
        super().interrupt()
        if self._plain is not None:
            self._plain.interrupt()

    def wait(self, live: Live, deadline: float, latest: float | None = None) -> dict[str, Any] | None:
        """The next event of a job. A script that has finished its training starts again."""
        event = super().wait(live, deadline, latest)
        while event is not None and event["event"] == "trained":
            began = time.monotonic()
            self._begin_again(live, deadline, event.get("error"))
            deadline += time.monotonic() - began
            event = super().wait(live, deadline, latest)
        if event is None or "player" not in event:
            return event
        course, player = self._courses[live.number], event["player"]
        if event["event"] == "block":
            joules = event["seen"].get("energy_joules")
            event["seen"] |= self._gpus.end()
            if joules is not None and len(self.seen.used_gpus) < 2:
                event["seen"]["energy_joules"] = joules  # without that of evaluations
            course.fruitless = False
            self._note_pass(event["own_pass"])
        elif event["event"] == "out":
            course.without(player)
            self._tell_without_effect(event)
        return event

    def command(self, live: Live, command: Command) -> None:
        """Sends a command to a host; one that has exited shows in its events."""
        if command.action == "train":
            self._gpus.begin()
        self._ask(live, self._courses[live.number].note(command))

    def _ask(self, live: Live, command: Command) -> None:
        """Sends a command in the recorder's format."""
        seat = command.seat
        if seat is not None:
            changes = changes_of(seat.point.config, baseline_of(self.seen))
            seat = {"changes": changes, "part": seat.plan.part, "seed": seat.seed}
        self._send(live, vars(command) | {"seat": seat})

    def _stop_whole(self, live: Live) -> None:
        """Stops a job, but not the launcher of its ranks, which keeps their place in a rendezvous with deadlines."""
        if not live.forked and not live.spared and isinstance(live.child, ScriptChild):  # once: workers go on meanwhile
            live.spared = live.child.launchers()
        super()._stop_whole(live)

    def end(self, live: Live, deadline: float) -> Ended:
        """Waits for the end of a job, kills it at the deadline, and leaves no process of it."""
        ended = super().end(live, deadline)
        self._courses.pop(live.number)
        self._drop(live)
        self._tell_without_effect(ended.message or {})
        return ended

    def discard(self, live: Live) -> None:
        """Kills a job with all its processes, whatever it is doing."""
        super().discard(live)
        self._courses.pop(live.number, None)
        self._drop(live)

    def open(self, request: Request, deadline_seconds: float) -> Live:
        """Starts a job; `wait` returns its events, and `end` must follow."""
        if request.job == "host" and self._energy is None and self.seen.ranks == 1:  # NVML shows the first GPU alone
            counter = open_energy(request.device, request.device_uuid)
            self._energy = BlockEnergy(counter) if counter is not None else None
        live = super().open(request, deadline_seconds)
        self._courses[live.number] = Course(request)
        return live

    def _hand_over(self, event: dict[str, Any], child: Child) -> None:
        """Gives an event to its job. A job that rests has sent its last event, and may be killed."""
        if self._energy is not None and event["event"] in {"phase", "ready", "block", "out"}:
            self._energy.note(event)
        if event["event"] != "rests":
            super()._hand_over(event, child)
            return
        for live in self._live:
            if event["number"] == live.number:
                live.ended, live.over = dataclasses.replace(live.ended, status=0), True

    def _kill(self, live: Live) -> None:
        """Ends all processes of a job, after suspending those that would go on when it ends."""
        if not live.forked and isinstance(live.child, ScriptChild):
            live.child.stop_waiting()
        super()._kill(live)

    def _stop_forkserver(self) -> None:
        """Ends the script that waits at its loop, after suspending what would go on when it ends."""
        server = self._forkserver
        if isinstance(server, ScriptChild):
            server.stop_waiting()
            cleanup.end_processes(lambda: [*server.below(), *cleanup.members_of_run(str(self._folder), server.pid)])
        super()._stop_forkserver()

    def _begin_again(self, live: Live, deadline: float, error: str | None) -> None:
        """Starts the script of a job again, and repeats the command that its end has interrupted."""
        number, course = live.number, self._courses[live.number]
        if course.fruitless and not (live.forked and course.request.job == "host"):
            message = {"event": "failure", "outcome": "crashed", "reason": why_fruitless(error)}
            live.ended = dataclasses.replace(live.ended, message=message)
            return
        if course.fruitless:
            if not self._spawning:
                self._note(
                    "each burst starts the script again: forked, it ends early, as scripts that watch the clock do"
                )
            self._spawning = True  # live jobs go on, then the server ends
        self._kill(live)
        if not live.forked:
            live.child.close()
        self._protection.drop(_layer(live))
        new = super().open(course.request, max(0.0, deadline - time.monotonic()))
        self._live.remove(new)
        take_over(live, new)
        self._courses[live.number] = self._courses.pop(number)
        for command in course.again():
            event = super().wait(live, deadline)  # the first steps of the earlier players
            if event is None or event["event"] == "trained":
                live.inbox.extend([event] if event is not None else [])
                return
            self._ask(live, command)

    def _child_for_job(self, request: Request, deadline: float) -> ScriptChild:
        """The script at its loop; a new run of it if it cannot be forked."""
        if not self._spawning:
            server = self._ready_server(max(0.0, deadline - time.monotonic()))
            if self.fork_unsafe_reason is None:
                return server
            self._spawn(self.fork_unsafe_reason)
        orders = {"role": "job", "loop": self.loop, "changes": self._changes(request)}
        return self._child(orders, _layer(request))

    def _spawn(self, why: str) -> None:
        """Makes each further job start the script again."""
        self._stop_forkserver()
        self._spawning = True
        self._note(f"each burst starts the script again: {why}")

    def _launch_server(self) -> ScriptChild:
        """Starts the script, which will wait at its loop."""
        self._stop_forkserver()
        early = self.seen.first_argv if self.seen.cuda_opened else None
        self._starts += 1
        self._server_layer = f"server{self._starts}"
        server = self._child({"role": "serve", "loop": self.loop, "before_cuda": early}, self._server_layer)
        self._forkserver, self._serves = server, False
        return server

    def _ready_server(self, seconds: float) -> ScriptChild:
        """The script, waiting at its loop; started again if it was killed."""
        server = self._forkserver
        if not (isinstance(server, ScriptChild) and server.alive):
            server = self._launch_server()
        if self._serves:
            return server
        deadline = time.monotonic() + seconds
        with self._attending(server):
            event = server.next_event(deadline)
            while event is not None and event["event"] not in {"serves", "end", "woken"}:
                event = server.next_event(deadline)
        if event is not None and event["event"] == "serves":
            self.fork_unsafe_reason, self._serves = event["fork_unsafe_reason"], True
            server.are_at_loop(event.get("pids", [event["pid"]]))
            return server
        tail = server.stderr_tail()
        self._stop_forkserver()
        if event is not None and event["event"] == "woken":
            raise Interrupted
        if event is not None and self._protection.forget_start():
            self._note(
                "the script does not start with files that an earlier start prepared: each start prepares them again"
            )
            return self._ready_server(max(0.0, deadline - time.monotonic()))
        if event is None:
            raise self._out_of_time(seconds)
        raise WorkloadError(
            f"{self._script.name} did not reach the training loop that it had reached before; it must do the same "
            f"each time it starts; last output: {tail.splitlines()[-1][:300] if tail else 'none'}"
        )

    def _out_of_time(self, seconds: float) -> OutOfTimeError:
        """Why the script is not at its loop: it had less time than it took in the look, or took longer than then."""
        name, before = self._script.name, self.seen.seconds_to_loop
        if seconds < before:
            rest = f"only {format_seconds(seconds)} were" if seconds >= 1 else "no time was"
            why = f"{name} takes {format_seconds(before)} to reach its training loop, and {rest} left for that"
        else:
            why = f"{name} did not reach its training loop within {format_seconds(seconds)}"
            why += f", where it had taken {format_seconds(before)} before"
        return OutOfTimeError(f"{why}; {LONGER}")

    def _tell_without_effect(self, message: dict[str, Any]) -> None:
        """Notes which knobs have no effect in the script, once for each."""
        if new := {*message.get("without_effect", ())} - self._without_effect:
            self._without_effect |= new
            self._note(f"left out: {message['reason']}")

    def _note_pass(self, batches: int | None) -> None:
        """Makes the epochs of all further bursts end where the script abandons its loader."""
        if batches is not None and self._pass_batches is None:
            self._pass_batches = batches
            self._note(f"the script begins its loader again after every {batches:,} batches: so do bursts")

    def _drop(self, live: Live) -> None:
        """Discards what a job has written."""
        self._protection.drop(_layer(live))
        if self._spawning and not self._live:
            self._stop_forkserver()
            self._end_left()

    def _end_left(self) -> None:
        """Ends processes that the script has left running, in any session and environment."""
        cleanup.end_processes(lambda: cleanup.members_of_run(str(self._folder)))

    def _child(self, orders: dict[str, Any], layer: str) -> ScriptChild:
        sandbox = self._protection.orders(layer)
        orders = {**orders, "shared": str(self._protection.shared), "sandbox": sandbox}
        ranks = self._seen.ranks if self._seen is not None else 1  # the look listens to each rank by itself
        return ScriptChild(self._script, orders, self._environment(), self._folder, self._protection, layer, ranks)

    def _environment(self) -> dict[str, str]:
        """Sends compiled code to autotune's own cache: code that is written elsewhere is lost with its layer.

        Temporary files have a folder of their own: a script that clears it removes none of autotune's files.
        """
        cache, environment, temporary = compiler_cache(), super()._environment(), self._made_temporary()
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(cache), "TRITON_CACHE_DIR": str(cache / "triton")}
        return {**environment, **QUIET, **caches, "TMPDIR": str(temporary)}

    def _made_temporary(self) -> Path:
        """The folder for temporary files; made again if a burst without a private view has removed it."""
        temporary = self._folder / "tmp"
        with self._protection.storing():
            temporary.mkdir(exist_ok=True)
        share_headers(temporary)
        return temporary

    def _line(self, request: Request) -> str:
        """A request in the recorder's format."""
        if not self._spawning:
            self._made_temporary()
        order = {**request.model_dump(mode="json"), "trace": self._traced.get(request.number)}
        order["pass_batches"] = self._pass_batches
        order["layer"] = None if self._spawning else self._protection.prepare_fork(_layer(request), self._server_layer)
        return json.dumps({**order, "changes": self._changes(request), "port": free_port()})

    def _changes(self, request: Request) -> dict[str, Any]:
        return changes_of(request.point.config, baseline_of(self.seen))

    def _numbers(self, request: Request, deadline: float) -> Ended:
        """Compares what a config computes with the unchanged script, or returns its losses alone."""
        if not request.losses_alone:
            return self._compare(request, deadline)
        return self._traced_run(request, {"steps": request.steps, "file": None, "noise": 0, "exact": True}, deadline)

    def _traced_run(self, request: Request, trace: dict[str, Any], deadline: float) -> Ended:
        """Runs the script's first steps, and returns their losses."""
        self._traced = {self._count + 1: trace}  # `open` will give the job the next number
        return self.end(self.open(request, max(0.0, deadline - time.monotonic())), deadline)

    def _compare(self, request: Request, deadline: float) -> Ended:
        """Runs the script's first steps twice unchanged, and once with the changes to its arithmetic."""
        config, baseline = request.point.config, baseline_of(self.seen)
        arithmetic = {name: getattr(config, name) for name in affecting("arithmetic") if name != "batch_size"}
        candidate = Point(config=baseline.replace(**arithmetic))
        file = self._protection.shared / f"gradient{self._count}"
        traces: list[dict[str, Any]] = []
        began = time.monotonic()
        try:
            for seed, point in ((0, Point(config=baseline)), (1, Point(config=baseline)), (0, candidate)):
                trace = {"steps": request.steps, "file": str(file), "noise": seed}
                ended = self._traced_run(request.model_copy(update={"point": point}), trace, deadline)
                try:
                    traces.append(result_of(ended, "the numerics check"))
                except AutotuneError:
                    return ended
        finally:
            file.unlink(missing_ok=True)
        value = {**dict(zip(("reference", "control", "candidate"), traces, strict=True)), "has_batch_norm": False}
        return Ended(message={"event": "result", "value": value}, status=0, seconds=time.monotonic() - began)


def _layer(job: Request | Live) -> str:
    """The name of a job's layer."""
    return f"job{job.number}"


class Course:
    """The commands of a job, so that a new process can repeat them when the script has finished its training.

    Attributes:
        request: The job.
        fruitless: Whether no block was trained since the script began, so that restarting it would not help.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.fruitless = True
        self._last_command: Command | None = None
        self._begins = 0  # where the last requested block begins
        self._joined: dict[int, Command] = {}
        self._first_plays = True
        self._ends: dict[int, int] = {}  # by player: where its last block ends in the stream of samples
        self._anew: set[int] = set()  # players whose streams have begun again at another place

    def note(self, command: Command) -> Command:
        """Records a command; returns the one to send, which may have to name where its block begins."""
        player, until = command.player, command.until
        if until is not None:
            self._begins = self._ends.get(player, 0) if command.start is None else command.start
            self._ends[player] = until
            if player in self._anew:
                self._anew.discard(player)
                command = dataclasses.replace(command, start=self._begins)
        elif command.action == "join":
            self._joined[player] = command
        elif command.action == "leave":
            self.without(player)
        self._last_command = command
        return command

    def without(self, player: int) -> None:
        """Records that a player is out or has left."""
        self._joined.pop(player, None)
        self._first_plays &= player != FIRST

    def again(self) -> list[Command]:
        """The commands for a restarted process whose first player is ready; the last one was interrupted."""
        self.fruitless = True
        if self._last_command is None:
            return []
        last = self._last_command
        if last.action == "train":
            last = dataclasses.replace(last, start=self._begins)
        joins = [command for command in self._joined.values() if command is not last]
        self._anew = {FIRST, *self._joined} - {last.player}
        leaves = [] if self._first_plays else [Command(action="leave", player=FIRST)]
        return [*joins, *leaves, last]


def why_fruitless(error: str | None) -> str:
    """Why restarting the script would not help, and what would.

    Args:
        error: The error by which the script ended after a whole epoch; None if it ended normally.
    """
    if error is None:
        return "the script ended before one block was trained; have it train longer, by more steps or epochs"
    return (
        "the script failed before one block was trained, after it had drawn a whole epoch, which never ends in a burst "
        f"({error}); make epochs longer, or size nothing by the length of an epoch"
    )


def take_over(live: Live, new: Live) -> None:
    """Moves a live job to another process, for all that hold it."""
    for field in dataclasses.fields(Live):
        if field.name not in {"began", "kills_before"}:
            setattr(live, field.name, getattr(new, field.name))


class BlockEnergy:
    """Adds the energy of each block to the event that reports it, without that of evaluations in the block.

    The script's parent reads it: the script may lack NVML, or the right to read a counter.
    """

    def __init__(self, counter: CpuEnergy | GpuEnergy) -> None:
        self._counter = counter
        self._began: float | None = None  # joules at the block's begin, raised by those of its evaluations
        self._evaluates: float | None = None  # joules at the begin of an evaluation

    def note(self, event: dict[str, Any]) -> None:
        """Notes an event of the script as soon as it arrives."""
        now, phase = self._counter.joules(), event.get("phase")
        if phase == "evaluate":
            self._evaluates = now
        elif phase == "train":
            resumes = self._began is not None and self._evaluates is not None and now is not None
            self._began = self._began + now - self._evaluates if resumes else now  # type: ignore[operator]
            self._evaluates = None
        elif event["event"] != "phase":
            if event["event"] == "block" and self._began is not None and now is not None:
                event["seen"]["energy_joules"] = now - self._began
            self._began = self._evaluates = None
