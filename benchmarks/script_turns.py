"""Two runs of one script side by side, as it is and launched with a result: alive together, in turns, from outside.

While one trains the other is stopped (SIGSTOP to its process group, workers and all), so that what else goes on at the
machine meets both alike. Steps are counted by `benchmarks.step_clock`, which knows torch's hook and nothing of
autotune. What is compared are steps over seconds of training: evaluation is left out, as `autotune run` leaves it out,
and told beside.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.ratios import bootstrap_interval, paired_ratio

CLOCK = Path(__file__).parent / "step_clock"
TURN_SECONDS = 0.7
WARM_SECONDS, WARM_STEPS = 6.0, 20
"""Of training, at least, before anything is timed: compiling lies in the first steps."""
PATIENCE_SECONDS = 300.0
"""For a step: starting, compiling, evaluating may come before it."""
FEWEST_TURNS = 8
POLL_SECONDS = 0.005


@dataclass(frozen=True)
class Moment:
    """What a script's clock says.

    Attributes:
        steps: So far.
        ended: When the last one ended, in seconds in which it was not stopped.
        evaluated: Seconds of evaluating by then.
    """

    steps: int
    ended: float
    evaluated: float


@dataclass
class Run:
    """A script that is alive; as a context manager, ends it with all that it has started.

    Args:
        command: That runs it.
        folder: Where.
        environment: Variables besides one's own.
        counts: What a step is: ``steps`` or ``backwards``.
        clock: The file that its clock keeps.

    Attributes:
        turns: Steps, seconds of training, and seconds of evaluation, of each turn so far.
    """

    command: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    counts: str
    clock: Path
    turns: list[tuple[int, float, float]] = field(default_factory=list)

    def __enter__(self) -> Run:
        self.clock.write_bytes(bytes(32))
        with self.clock.open("r+b") as file:
            self._shared = memoryview(mmap.mmap(file.fileno(), 0)).cast("d")
        orders = json.dumps({"file": str(self.clock), "counts": self.counts})
        self._process = subprocess.Popen(
            self.command, cwd=self.folder, env={**os.environ, **self.environment, "STEP_CLOCK": orders},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @property
    def moment(self) -> Moment:
        """What its clock says now; it must not be writing."""
        return Moment(int(self._shared[1]), float(self._shared[2]), float(self._shared[3]))

    @property
    def ended(self) -> bool:
        """Whether it has run to its end."""
        return self._process.poll() is not None

    def stop(self) -> None:
        """From here on it takes no time."""
        os.killpg(self._process.pid, signal.SIGSTOP)
        self._since = time.perf_counter()

    def go_on(self) -> None:
        """Time goes on for it."""
        self._shared[0] += time.perf_counter() - self._since
        os.killpg(self._process.pid, signal.SIGCONT)

    def take_turn(self) -> bool:
        """Lets it train for a turn, a step at least; whether it is still there."""
        before, began = self.moment, time.perf_counter()
        self.go_on()
        while not self.ended and time.perf_counter() - began < PATIENCE_SECONDS:
            time.sleep(POLL_SECONDS)
            if time.perf_counter() - began >= TURN_SECONDS and self._shared[1] > before.steps:
                break
        if self.ended:
            return False
        self.stop()
        after = self.moment
        evaluated = after.evaluated - before.evaluated
        self.turns.append((after.steps - before.steps, after.ended - before.ended - evaluated, evaluated))
        return after.steps > before.steps


def warm_up(runs: Sequence[Run]) -> str | None:
    """Starts them together, and stops each once it is warm; why one never was."""
    first: dict[int, tuple[int, float]] = {}
    cold, gives_up = set(range(len(runs))), time.monotonic() + PATIENCE_SECONDS
    while cold:
        time.sleep(POLL_SECONDS)
        for number in list(cold):
            run, now = runs[number], runs[number].moment
            if run.ended or time.monotonic() > gives_up:
                return f"'{' '.join(map(str, run.command))}' took {now.steps} steps, too few to be warm"
            if now.steps:
                steps, since = first.setdefault(number, (now.steps, time.perf_counter()))
                if now.steps - steps >= WARM_STEPS and time.perf_counter() - since >= WARM_SECONDS:
                    run.stop()
                    cold.discard(number)
    return None


def rate(turns: Sequence[tuple[int, float, float]], *, evaluated: bool = False) -> float:
    """Steps a second over some turns, with evaluation or without."""
    seconds = math.fsum(training + (evaluating if evaluated else 0.0) for _, training, evaluating in turns)
    return sum(steps for steps, _, _ in turns) / max(seconds, 1e-9)


def compared(plain: Run, launched: Run, seconds: float, rng: random.Random) -> dict[str, Any]:
    """How much faster the launched one trains, with a 95 % interval resampled from pairs of turns.

    Args:
        plain: The script as it is.
        launched: The script with a result.
        seconds: Of training, on each side.
        rng: Draws the order in each pair.
    """
    with plain, launched:
        if (why := warm_up((plain, launched))) is not None:
            return {"failed": why}
        while min(math.fsum(turn[1] for turn in run.turns) for run in (plain, launched)) < seconds:
            if not all(run.take_turn() for run in rng.sample((plain, launched), k=2)):
                break
    pairs = list(zip(plain.turns, launched.turns, strict=False))
    if len(pairs) < FEWEST_TURNS:
        return {"failed": f"it ended after {len(pairs)} turns"}
    return {
        "turns": len(pairs),
        "ratio": _ratio(pairs),
        "ci95": list(bootstrap_interval(pairs, _ratio)),
        "with_evaluation": _ratio(pairs, evaluated=True),
        "steps_per_second": {"plain": rate(plain.turns), "launched": rate(launched.turns)},
    }


def compared_in_pairs(make: Callable[[], tuple[Run, Run]], count: int, seconds: float) -> dict[str, Any]:
    """The same over some pairs of processes, since two of one config differ all their lives; two of them at least.

    Args:
        make: Makes the script as it is, and launched.
        count: Of pairs.
        seconds: Of training, on each side of each.
    """
    pairs = [compared(*make(), seconds, random.Random(number)) for number in range(count)]
    counted = [pair for pair in pairs if "failed" not in pair]
    if len(counted) < 2:
        why = next((pair["failed"] for pair in pairs if "failed" in pair), f"{count} pairs are too few")
        return {"failed": why, "pairs": pairs}
    found = paired_ratio(*zip(*(pair["steps_per_second"].values() for pair in counted), strict=True))
    return {"ratio": found.ratio, "ci95": list(found.ci95), "pairs": pairs}


def _ratio(pairs: Sequence[tuple[Any, Any]], *, evaluated: bool = False) -> float:
    plain, launched = zip(*pairs, strict=True)
    return rate(launched, evaluated=evaluated) / rate(plain, evaluated=evaluated)


def beside(folder: Path) -> Path:
    """A copy of the folder that a script runs in, so that two runs do not meet in its files."""
    copy = folder.with_name(f"{folder.name}-launched")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    return copy
