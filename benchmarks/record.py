"""Records a surface: real bursts of every config of a reduced grid, in random order, to replay searches on.

    python -m benchmarks.record digits              # twenty minutes on a quiet machine; can be broken off and resumed
    python -m benchmarks.record digits --seconds 300

Each config trains in turn with the baseline, block by block, in two rounds of fresh processes that are far apart in the
order; in one where it is compiled, which takes most of the time. Its parts, the computing and the loader alone, run
alone, once. A burst that something else disturbed runs again, now and once more in the end. The compiler's cache is a
fresh folder, so that the first to compile a graph pays for it, as in a first search.

Writes benchmarks/surfaces/<name>.jsonl.gz when all is there; until then <name>.jsonl beside it.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from autotune.bursts.hosts import isolation
from autotune.bursts.hosts.endings import result_of
from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan, Part, Request
from autotune.bursts.runner import ProcessRunner
from autotune.bursts.turns.duet import TURN_SECONDS
from autotune.hardware import merge, probe_host
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Measurement, Point
from benchmarks.surfaces import (
    FOLDER,
    GRIDS,
    Header,
    Record,
    Surface,
    compute_part,
    graph_of,
    loader_part,
    read_surface,
    surface_path,
)

PROCESSES = 2
"""Of a config that is not compiled. A ratio is off by 1.5 % for the process alone (`standing.PROCESS_SPREAD`)."""
MAX_TRIES = 3
DEADLINE_SECONDS = 120.0
WHOLE = BurstPlan(measure_seconds=1.0, turn_seconds=TURN_SECONDS)
PART = BurstPlan(measure_seconds=0.6)


class Task(NamedTuple):
    """A burst to be recorded."""

    config: TrainConfig
    part: Part
    process: int


def tasks_of(name: str, baseline: TrainConfig) -> list[Task]:
    """All bursts of a surface, in one random order; a config's second, if it has one, comes in the second half."""
    configs = GRIDS[name].configs(baseline)
    parts: list[tuple[TrainConfig, Part]] = [
        *((config, "compute") for config in dict.fromkeys(map(compute_part, configs))),
        *((config, "loader") for config in dict.fromkeys(loader_part(config, baseline) for config in configs)),
    ]
    rng = random.Random(name)
    again = [config for config in configs if config.compile_mode is None]
    rounds = [[Task(config, "all", number) for config in (again if number else configs)] for number in range(PROCESSES)]
    rounds[0] += [Task(config, part, 0) for config, part in parts]
    for tasks in rounds:
        rng.shuffle(tasks)
    return [task for tasks in rounds for task in tasks]


def code_hash(target: str) -> str:
    """Hash of the workload's source and of what runs bursts."""
    module = Path(*target.partition(":")[0].split(".")).with_suffix(".py")
    sources = [module, *sorted(Path(isolation.__file__).parent.glob("*.py"))]
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]


def record(name: str, seconds: float) -> Surface:
    """Records what is missing of a surface, for so many seconds at most."""
    ends = time.monotonic() + seconds
    unfinished = FOLDER / f"{name}.jsonl"
    target = GRIDS[name].target
    with Isolation(target) as isolated:
        isolated.start(DEADLINE_SECONDS)
        runner = ProcessRunner(isolated, "cpu", seed=0)
        if not unfinished.exists():
            probed = result_of(isolated.run(Request(job="probe", device="cpu"), DEADLINE_SECONDS), "probing")
            header = Header(
                name=name,
                created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
                code=code_hash(target),
                hardware=merge(probe_host(), probed),
                facts=runner.check(DEADLINE_SECONDS, {}),
            )
            unfinished.write_text(header.model_dump_json() + "\n", encoding="utf-8")
        else:
            runner.check(DEADLINE_SECONDS, {})
        surface = read_surface(unfinished)
        if surface.header.code != code_hash(target):
            sys.exit(f"{unfinished} was begun with other code; delete it to begin again")
        left = _left(surface)
        for count, task in enumerate(left):
            if time.monotonic() > ends:
                break
            surface = _run(task, surface, runner, unfinished)
            _tell(surface, count, len(left), ends)
    if not _left(surface):
        _finish(surface, unfinished)
    return surface


def _task(record: Record) -> Task:
    return Task(record.burst.point.config, record.part, record.process)


def _left(surface: Surface) -> list[Task]:
    """What has not been recorded, or was disturbed each time, a few times at most."""
    tried = Counter(map(_task, surface.records))
    done = {_task(record) for record in surface.records if record.burst.disturbance is None}
    tasks = tasks_of(surface.header.name, surface.header.facts.baseline)
    return [task for task in tasks if task not in done and tried[task] < MAX_TRIES]


def _run(task: Task, surface: Surface, runner: ProcessRunner, unfinished: Path) -> Surface:
    """Runs one burst and writes it down."""
    plan = (WHOLE if task.part == "all" else PART).model_copy(update={"part": task.part})
    seen = {graph_of(record.burst.point.config) for record in surface.records if record.part != "loader"}
    graph = graph_of(task.config)
    point, beside = Point(config=task.config), None
    if task.part == "all":
        baseline, burst = runner.play([Point(config=surface.header.facts.baseline), point], plan, DEADLINE_SECONDS)
        if burst.measurement is not None:
            burst, beside = burst.model_copy(update={"seconds": _own_seconds(burst.measurement)}), baseline.measurement
    else:
        burst = runner.run(point, plan, DEADLINE_SECONDS)
    cold = graph is not None and task.part != "loader" and graph not in seen
    made = Record(part=task.part, process=task.process, cold=cold, burst=burst, baseline=beside)
    with unfinished.open("a", encoding="utf-8") as file:
        file.write(made.model_dump_json() + "\n")
    return Surface(surface.header, (*surface.records, made))


def _own_seconds(measured: Measurement) -> float:
    """What a process took by itself: the sides of a round wait for each other."""
    return measured.start_seconds + measured.build_seconds + measured.warmup_seconds + measured.measure_seconds


def _tell(surface: Surface, count: int, total: int, ends: float) -> None:
    burst = surface.records[-1].burst
    rate = f"{burst.rate:8.1f}/s" if burst.rate else burst.outcome.value
    what = burst.point.changes_text(Point(config=surface.header.facts.baseline))
    left = max(0.0, ends - time.monotonic())
    disturbed = f" ({burst.disturbance})" if burst.disturbance else ""
    print(
        f"{count + 1}/{total} {surface.records[-1].part:8}{rate} {burst.seconds:5.1f} s {what}{disturbed}"
        f" | {left:.0f} s left",
        flush=True,
    )


def _finish(surface: Surface, unfinished: Path) -> None:
    """Packs the recording, of each task the last burst; the same lines always give the same bytes."""
    last = {_task(record): record for record in surface.records}
    text = "".join(line.model_dump_json() + "\n" for line in (surface.header, *last.values()))
    surface_path(surface.header.name).write_bytes(gzip.compress(text.encode(), mtime=0))
    unfinished.unlink()


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry; returns the exit status: 1 when something is left to be recorded."""
    parser = argparse.ArgumentParser(description="Records a surface.")
    parser.add_argument("name", choices=sorted(GRIDS))
    parser.add_argument("--seconds", type=float, default=3600.0, help="at most; what is left is recorded another time")
    options = parser.parse_args(arguments)
    cache = Path(tempfile.gettempdir()) / f"autotune-record-{options.name}"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    if not (FOLDER / f"{options.name}.jsonl").exists():
        shutil.rmtree(cache, ignore_errors=True)
    surface = record(options.name, options.seconds)
    spent = sum(record.burst.seconds for record in surface.records)
    left = len(_left(surface))
    print(f"{options.name}: {len(surface.records)} bursts in {spent:.0f} s, {left} left")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
