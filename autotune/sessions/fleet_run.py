"""Runs `autotune fleet`: makes the commands for each machine, stores the results, and compares them."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.errors import ResultFileError, UsageError
from autotune.files import write_whole
from autotune.fleet import Campaign, Ending, Engine, Job, Plan
from autotune.fleet.job import FOLDER, RESULT, WARM_START
from autotune.hardware import slug
from autotune.results.compare import Comparison, compare
from autotune.results.cross_file import Cross
from autotune.results.files import Document, keep_document, parse_document
from autotune.results.gather import gather
from autotune.results.result import Result, place_of_partial, read_result
from autotune.results.summary import verdict
from autotune.search.interrupts import Stop
from autotune.sessions import outputs
from autotune.sessions.options import Options, words_of
from autotune.sessions.outputs import require_replaceable
from autotune.units import parse_duration

PAGE = "fleet.html"
OURS = frozenset(
    word
    for name in ("out", "model", "budget", "dollars_per_hour", "machine_name", "warm_start", "json", "quiet")
    for word in words_of(name)
)
"""Options of ``autotune`` that the fleet itself passes to each machine."""
REFUSED = {
    "--dry-run": "a machine would tune nothing, and bring no result",
    "--version": "a machine would tune nothing, and bring no result",
    "--patch": "all machines would write into the same script; use autotune patch with the result that you choose",
    "--resume": "each job starts in a new folder, which has nothing to continue",
}
"""Options of ``autotune`` that no job of a fleet can have, with the reason."""
ENVIRONMENT = "OMP_NUM_THREADS"
"""Ray sets it to the number of a task's CPUs, 1 by default, which would change the user's baseline."""
Report = Callable[[str, str], None]
RequireUnderstood = Callable[[str, Sequence[str]], None]
"""Raises `UsageError` if a machine, given by name, would refuse a command line."""


@dataclass(frozen=True)
class FleetRequest:
    """The fleet, what to tune on it, and the options."""

    plan: Plan
    folder: Path  # for results
    target: str | None  # the model to tune; None for a script
    script: tuple[str, ...]  # the training command; empty for a model
    budget: str  # of each machine, as typed
    extra: tuple[str, ...] = ()  # options of ``autotune`` for all machines

    @classmethod
    def of(
        cls,
        plan: Plan,
        folder: Path,
        require_understood: RequireUnderstood,
        *,
        model: str,
        budget: str,
        others: Sequence[str],
    ) -> FleetRequest:
        """Checks the command line, and makes the request.

        Raises:
            UsageError: The command line names nothing to tune, or two workloads, or an option that the fleet itself
                passes, or one that a machine would refuse.
        """
        parse_duration(budget)
        is_script = bool(others) and not others[0].startswith("-")
        if bool(model) == is_script:
            raise UsageError(
                "expected --model, or a script's command after --, and not both; such as --model train:build, or "
                "-- python train.py"
            )
        extra = () if is_script else tuple(others)
        for owner in (extra, *(kind.options for kind in plan.machines.values())):
            if own := [word for word in owner if not OURS.isdisjoint({word.partition("=")[0], word[:2]})]:
                raise UsageError(f"{own[0]} is an option that the fleet itself passes to each machine; leave it out")
            if wrong := [word for word in owner if word in REFUSED]:
                raise UsageError(f"{wrong[0]} is for a single tuning: {REFUSED[wrong[0]]}; leave it out")
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"--folder: expected a folder, but {folder} is a file; choose another")
        request = cls(plan, folder, model or None, tuple(others) if is_script else (), budget, extra)
        require_replaceable("--folder", folder / PAGE, outputs.PAGE)
        for machine in plan.machines:
            words = tuple(word for word in request.command(machine) if word != WARM_START)
            require_understood(machine, words)
            place = request.place(machine)
            for path in (place, place_of_partial(place)):
                require_replaceable("--folder", path, outputs.RESULT)
        return request

    @property
    def name(self) -> str:
        """File name of the results, without device and ending."""
        return Options(target=self.target or "", script=self.script).name

    def place(self, machine: str) -> Path:
        """Path of a machine's result; the name holds the device if the options do."""
        words = " ".join([*self.extra, *self.plan.machines[machine].options])
        device = re.findall(r"--device[ =](\w+)", words)[-1:]
        return self.folder / slug(machine) / f"{'-'.join([self.name, *device])}.json"

    def command(self, machine: str) -> tuple[str, ...]:
        """The arguments of ``autotune`` on a machine."""
        kind = self.plan.machines[machine]
        price = [f"--dollars-per-hour={kind.dollars_per_hour:g}"] if kind.dollars_per_hour is not None else []
        name = f"--machine-name={machine}"
        common = [f"--budget={self.budget}", f"--out={FOLDER}/{RESULT}", name, *price, WARM_START]
        own = [*self.extra, *kind.options]
        if self.target is None:
            return ("run", *common, *own, "--", *self.script)
        return (f"--model={self.target}", *common, *own)


@dataclass
class FleetRun:
    """One run of a fleet. As a context manager, it ends running jobs on exit."""

    request: FleetRequest
    report: Report
    interrupts: Stop
    interrupted: bool = field(default=False, init=False)
    _paths: dict[str, Path] = field(default_factory=dict, init=False)
    _cleanup: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False)

    def __enter__(self) -> FleetRun:
        self.interrupts.pass_on_to(self._interrupt)
        self._engine = _engine_of(self.request.plan)
        self._cleanup.callback(self._engine.close)
        try:
            self.request.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._cleanup.close()
            raise UsageError(
                f"--folder: the folder {self.request.folder} cannot be made: {error.strerror}; choose another"
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def tune(self) -> list[Ending]:
        """Tunes on all machines at once; each starts from the results that exist when its job starts."""
        for machine in self.request.plan.machines:
            self.report(machine, f"tuning for {self.request.budget}")
        return self._campaign(self.request.plan.machines, self._keep_result).run(self._tuning)

    def cross(self) -> list[Ending]:
        """Measures each machine's config on every other machine; each machine measures one at a time."""
        machines = list(self._paths)
        endings = []
        for shift in range(1, len(machines)):  # each machine is busy once in a round
            origin = {machine: machines[(number + shift) % len(machines)] for number, machine in enumerate(machines)}
            if self.interrupted:
                break
            for machine, other in origin.items():
                self.report(machine, f"trying the config of {other}")
            ended = self._campaign(machines, self._keep_cross).run(
                lambda machine, origin=origin: self._crossing(machine, origin[machine])  # type: ignore[misc]
            )
            endings += [
                replace(ending, outcome=f"did not measure the config of {origin[ending.machine]}") for ending in ended
            ]
        return endings

    def comparison(self, samples: int | None, at_least: float | None) -> Comparison:
        """The fleet's results side by side, and the crosses between its machines."""
        paths = self._paths.values()
        crosses = [folder for path in paths if (folder := path.parent / "cross").is_dir()]
        return compare(gather([*paths, *crosses]), samples, at_least)

    def write_page(self, page: str) -> str:
        """Writes the comparison's page; returns a sentence with its path, or why it could not be written."""
        path = self.request.folder / PAGE
        try:
            write_whole(path, page)
        except OSError as error:
            return f"the page could not be written to {path}: {error.strerror or error}"
        return f"page: {path}"

    def _interrupt(self) -> None:
        self.interrupted = True

    def _campaign(self, machines: Iterable[str], keep: Callable[[str, str], str]) -> Campaign:
        kinds = {machine: self.request.plan.machines[machine] for machine in machines}
        return Campaign(self._engine, kinds, keep, self.report, lambda: self.interrupted)

    def _job(
        self,
        machine: str,
        arguments: tuple[str, ...],
        *,
        files: dict[str, str] | None = None,
        known_results: dict[str, str | None] | None = None,
    ) -> Job:
        return Job(
            machine,
            arguments,
            parse_duration(self.request.budget),
            files=files or {},
            known_results=known_results or {},
            environment={ENVIRONMENT: os.environ.get(ENVIRONMENT)},
        )

    def _tuning(self, machine: str) -> Job:
        return self._job(machine, self.request.command(machine), known_results=self._known_results())

    def _known_results(self) -> dict[str, str | None]:
        """Text of each machine's result file by path, from this or an earlier run; None where there is none yet."""
        results: dict[str, str | None] = {}
        for machine in self.request.plan.machines:
            path = self._paths.get(machine, self.request.place(machine)).resolve()
            if not path.exists():
                results[str(path)] = None
                continue
            with contextlib.suppress(ResultFileError):  # an unreadable file cannot help; the new result replaces it
                read_result(path)
                results[str(path)] = path.read_text("utf-8")
        return results

    def _crossing(self, machine: str, other: str) -> Job:
        files = {name: self._paths[kind].read_text("utf-8") for name, kind in (("own", machine), ("theirs", other))}
        arguments = ("cross", f"{FOLDER}/theirs", f"--against={FOLDER}/own", f"--out={FOLDER}/{RESULT}")
        target = self.request.target
        trained = [f"--model={target}"] if target is not None else ["--", *self.request.script]
        device = f"--device={read_result(self._paths[machine]).constraints.device}"  # a GPU's config is tried on a GPU
        return self._job(machine, (*arguments, device, f"--budget={self.request.budget}", *trained), files=files)

    def _keep_result(self, machine: str, text: str) -> str:
        result = parse_document(json.loads(text), f"the file of {machine}", Result)
        home = self.request.place(machine)
        place = place_of_partial(home) if result.status == "partial" else home
        path = _kept(result, place)
        self._paths[machine] = path
        stays = f"; the earlier result stays in {home}" if place != home else ""
        return f"{verdict(result)[1]}: {verdict(result)[2]}; {path}{stays}"

    def _keep_cross(self, machine: str, text: str) -> str:
        cross = parse_document(json.loads(text), f"the file of {machine}", Cross)
        folder = self.request.folder / slug(machine) / "cross"
        path = _kept(cross, folder / f"{self.request.name}-{cross.device}-from-{slug(cross.config_of.machine)}.json")
        return f"{cross.finding}; {path}"


def _engine_of(plan: Plan) -> Engine:
    """The engine of a plan, for the code in the working directory.

    Raises:
        UsageError: It is not installed, or cannot be reached.
    """
    if plan.engine == "ray":
        from autotune.fleet.ray_engine import RayEngine

        return RayEngine(plan.address, Path.cwd(), plan.excludes, plan.wait_seconds)
    from autotune.fleet.slurm_engine import SlurmEngine

    return SlurmEngine(Path(plan.folder) if plan.folder else None, local=plan.engine == "local", wait=plan.wait_seconds)


def _kept(record: Document, place: Path) -> Path:
    """Writes a record and returns its path: in the temporary folder if `place` cannot be written."""
    path, failure = keep_document(record, place)
    if path is None:
        raise failure or ResultFileError(f"the {record.NOUN} could be written nowhere")
    return path
