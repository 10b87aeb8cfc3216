"""An independent loop in which sides alternate: all alive, in processes of their own, in short turns, in random order.

While one trains, the others are stopped (SIGSTOP to the process group, workers and all), so that what else goes on at
the machine meets all sides alike. A turn is as many samples on each side and takes about half a second, and the rate is
samples over seconds. Nothing of `autotune.bursts` is used: this is what its figures are judged by.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TypeVar

from pydantic import BaseModel

from autotune.results.result import Side
from benchmarks.fresh import foreign_since, watched
from benchmarks.stopwatch import Ready, Turn
from benchmarks.trainee import PLAIN, Request, Summary, serve

Told = TypeVar("Told")
TURN_SECONDS = 0.5
LONGEST_TURN = 4
"""Times as long as wanted; a step that is longer is its side's alone. Chosen."""
WARMUP_SECONDS = 10.0
"""Of a side, left out of each round; as long as a side trains in it at most."""
PATIENCE_SECONDS = 900.0
"""For an answer: compiling takes minutes."""
END_SECONDS = 30.0


class Run(BaseModel):
    """What one side realised in one round.

    Attributes:
        samples_per_second: Over all its turns.
        timed_seconds: Length of those.
        warmup_seconds: What was left out: from building the workload on.
        epochs_crossed: Ends of epochs within the turns.
        last_loss: To see that it trains.
        not_in_effect: What a framework's integration says of knobs that are not.
        foreign_cpu_fraction: Of all CPUs, what processes of others took during the round.
        turns: Samples and seconds of each.
    """

    samples_per_second: float
    timed_seconds: float
    warmup_seconds: float
    epochs_crossed: int
    last_loss: float
    not_in_effect: tuple[str, ...] = ()
    foreign_cpu_fraction: float | None = None
    turns: tuple[tuple[int, float], ...] = ()


class Alternating:
    """A side that is alive; stopped but for its turns.

    Args:
        request: What it trains.

    Attributes:
        turns: So far.
        ready: What it said when it was warm.
    """

    def __init__(self, request: Request) -> None:
        self.turns: list[Turn] = []
        self.ready = Ready(0.0, 0.0)
        self._request = request
        context = multiprocessing.get_context("spawn")
        self._wire, self._theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(self._theirs, request))

    def __enter__(self) -> Alternating:
        """Starts its process, which imports what it needs and waits."""
        self._process.start()
        self._theirs.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()

    @property
    def seconds(self) -> float:
        """Of its turns so far."""
        return math.fsum(turn.seconds for turn in self.turns)

    @property
    def samples(self) -> int:
        """Of its turns so far."""
        return sum(turn.samples for turn in self.turns)

    def warm_up(self) -> None:
        """Lets it build its model and train until it is warm.

        Raises:
            AutotuneError, RuntimeError: It failed.
        """
        self._wire.send(None)
        self.ready = self._told(Ready)
        self._signal(signal.SIGSTOP)

    def take_turn(self, samples: int) -> Turn:
        """Lets it train so many samples.

        Raises:
            AutotuneError, RuntimeError: It failed.
        """
        self._wire.send(samples)
        self._signal(signal.SIGCONT)
        turn = self._told(Turn)
        self._signal(signal.SIGSTOP)
        self.turns.append(turn)
        return turn

    def end(self) -> Run:
        """Lets it end by itself; what it did.

        Raises:
            AutotuneError, RuntimeError: It failed.
        """
        self._wire.send(None)
        self._signal(signal.SIGCONT)
        summary = self._told(Summary)
        self._process.join(END_SECONDS)
        seconds = self.seconds
        return Run(
            samples_per_second=sum(turn.samples for turn in self.turns) / seconds,
            timed_seconds=seconds,
            warmup_seconds=self.ready.warmup_seconds,
            epochs_crossed=sum(turn.epochs for turn in self.turns),
            last_loss=summary.last_loss,
            not_in_effect=summary.not_in_effect,
            turns=tuple((turn.samples, turn.seconds) for turn in self.turns),
        )

    def _told(self, kind: type[Told]) -> Told:
        """What it says next."""
        gives_up = time.monotonic() + PATIENCE_SECONDS
        while not self._wire.poll(1.0):
            if not self._process.is_alive() and not self._wire.poll():
                raise RuntimeError(f"{self._what()} ended with exit status {self._process.exitcode}")
            if time.monotonic() > gives_up:
                raise RuntimeError(f"{self._what()} said nothing for {PATIENCE_SECONDS:.0f} s")
        try:
            message = self._wire.recv()
        except EOFError:
            raise RuntimeError(f"{self._what()} ended without a word") from None
        if isinstance(message, BaseException):
            raise message
        assert isinstance(message, kind)
        return message

    def _what(self) -> str:
        return f"{self._request.target} in the {self._request.loop} loop"

    def _signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.killpg(self._process.pid, number)

    def _kill(self) -> None:
        if self._process.pid is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):  # gone, or not yet a group of its own
            self._signal(signal.SIGKILL)
        self._process.kill()
        self._process.join()


def alternate(
    requests: Mapping[str, Request], seconds: float, rng: random.Random, turn_seconds: float = TURN_SECONDS
) -> dict[str, Run]:
    """One round: a fresh process for each side, all alive, in turns until each has trained so many seconds in the mean.

    Args:
        requests: What to train, by name.
        seconds: Of training.
        rng: Draws the order, which is another one in each turn.
        turn_seconds: About, in the mean over the sides.
    """
    since = watched()
    with contextlib.ExitStack() as stack:
        sides = {
            name: stack.enter_context(Alternating(requests[name]))
            for name in rng.sample(list(requests), k=len(requests))
        }
        for side in sides.values():  # one after the other, all having been imported at the same time
            side.warm_up()
        rate = statistics.geometric_mean(side.ready.samples_per_second for side in sides.values())
        sizes = sizes_of_turns({name: step_of(request) for name, request in requests.items()}, turn_seconds * rate)
        due = 0
        while math.fsum(side.seconds for side in sides.values()) < seconds * len(sides):
            for name in rng.sample(list(sides), k=len(sides)):
                if sides[name].samples <= due:
                    sides[name].take_turn(sizes[name])
            due += min(sizes.values())
        runs = {name: sides[name].end() for name in requests}
    foreign = foreign_since(since)
    return {name: run.model_copy(update={"foreign_cpu_fraction": foreign}) for name, run in runs.items()}


def step_of(request: Request) -> int:
    """The samples of an optimizer step."""
    return Side.model_validate_json(request.side_json).config.effective_batch


def sizes_of_turns(steps: Mapping[str, int], wanted: float) -> dict[str, int]:
    """The samples of each side's turn: the same, but for sides whose step is far longer than a turn should be.

    Those take a step at a time, and wait until the others have trained as many: else a batch of thousands would make
    turns of all that last for a quarter of a minute.

    Args:
        steps: The samples of each side's step.
        wanted: About so many samples.
    """
    usual = [step for step in steps.values() if step <= LONGEST_TURN * wanted] or [min(steps.values())]
    size = samples_of_a_turn(usual, wanted)
    return {name: size if step <= max(usual) else step for name, step in steps.items()}


def samples_of_a_turn(steps: Sequence[int], wanted: float) -> int:
    """Whole optimizer steps of all sides; where those have too little in common, of the longest.

    Args:
        steps: The samples of each side's step.
        wanted: About so many samples.
    """
    unit = math.lcm(*steps)
    if unit > 2 * wanted:
        unit = max(steps)
    return unit * max(1, round(wanted / unit))


def realise_in(
    loops: Sequence[str], target: str, sides: Mapping[str, Side], device: str, seconds: float, rounds: int,
    seed: int = 0,
) -> dict[str, dict[str, list[Run]]]:  # fmt: skip
    """Trains each side for so many seconds in all, in rounds of fresh processes.

    Args:
        loops: `PLAIN` and frameworks, one after the other in random order; the sides of one are alive together.
        target: The workload.
        sides: By name.
        device: ``cpu``, ``cuda`` or ``mps``.
        seconds: Of training, for each side in each loop.
        rounds: That they are split over.
        seed: Of the order, and of the samples that are drawn.

    Returns:
        The runs of each loop, by side.
    """
    runs: dict[str, dict[str, list[Run]]] = {loop: {name: [] for name in sides} for loop in loops}
    rng = random.Random(seed)
    each = seconds / rounds
    for number in range(rounds):
        for loop in rng.sample(list(loops), k=len(loops)):
            requests = {
                name: Request(
                    target, side.model_dump_json(), device, rng.randrange(2**31), min(WARMUP_SECONDS, each), loop
                )
                for name, side in sides.items()
            }
            for name, run in alternate(requests, each, rng).items():
                runs[loop][name].append(run)
                where = "" if len(loops) == 1 else f"{loop} "
                print(
                    f"  round {number + 1}, {where}{name:8} {run.samples_per_second:9.1f} samples/s; "
                    f"other processes took {run.foreign_cpu_fraction or 0:.0%} of the CPUs",
                    file=sys.stderr,
                )
    return runs


def realise(
    target: str, sides: Mapping[str, Side], device: str, seconds: float, rounds: int, seed: int = 0
) -> dict[str, list[Run]]:
    """Trains each side in the plain loop, as `realise_in` does."""
    return realise_in((PLAIN,), target, sides, device, seconds, rounds, seed)[PLAIN]
