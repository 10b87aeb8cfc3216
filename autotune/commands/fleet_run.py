"""What `autotune fleet` does: the commands for each machine, where their results are kept, and their comparison."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.commands import outputs
from autotune.commands.fleet_words import require_understood
from autotune.commands.options import Options
from autotune.commands.outputs import require_replaceable
from autotune.errors import ResultFileError, UsageError
from autotune.files import write_whole
from autotune.fleet import Campaign, Ending, Engine, Job, Plan
from autotune.fleet.job import FOLDER, RESULT, WARM_START
from autotune.hardware import slug
from autotune.results.compare import Comparison, compare
from autotune.results.cross_file import Cross
from autotune.results.files import Document, keep_document, parse_document
from autotune.results.gather import gather
from autotune.results.result import Result, read_result
from autotune.results.summary import verdict
from autotune.search.interrupts import Stop
from autotune.units import parse_duration

PAGE = "fleet.html"
OURS = ("--out", "--model", "--budget", "--dollars-per-hour", "--machine-name", "--warm-start", "--json", "--quiet")
"""Options of ``autotune`` that the fleet itself gives to each machine."""
ENVIRONMENT = "OMP_NUM_THREADS"
"""Ray sets it to a task's CPUs, one where none are asked for: with it, no baseline would be the user's."""
Tell = Callable[[str, str], None]


@dataclass(frozen=True)
class Wanted:
    """What a person asked for.

    Attributes:
        plan: The fleet.
        out: The folder for results.
        target: Of what is tuned; None where it is a script.
        script: The command that trains; empty where it is a target.
        budget: Of each machine, as it was typed.
        extra: Options of ``autotune`` for all machines.
    """

    plan: Plan
    out: Path
    target: str | None
    script: tuple[str, ...]
    budget: str
    extra: tuple[str, ...] = ()

    @classmethod
    def of(cls, plan: Plan, out: Path, *, model: str, budget: str, others: Sequence[str]) -> Wanted:
        """What the command line says.

        Raises:
            UsageError: It names nothing to tune, or two things, or an option that is the fleet's own, or that no
                machine would understand.
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
            if own := [word for word in owner if word.partition("=")[0] in OURS]:
                raise UsageError(f"{own[0]} is what the fleet gives to each machine itself; leave it out")
        if out.exists() and not out.is_dir():
            raise UsageError(f"--out: expected a folder, but {out} is a file; choose another")
        wanted = cls(plan, out, model or None, tuple(others) if is_script else (), budget, extra)
        require_replaceable("--out", out / PAGE, outputs.PAGE)
        for machine in plan.machines:
            words = tuple(word for word in wanted.command(machine) if word != WARM_START)
            require_understood(machine, words)
            require_replaceable("--out", wanted.place(machine), outputs.RESULT)
        return wanted

    @property
    def name(self) -> str:
        """What the files of its results are called."""
        return Options(target=self.target or "", script=self.script).name

    def place(self, machine: str) -> Path:
        """Where a machine's result is kept; the name holds the device where the options do."""
        words = " ".join([*self.extra, *self.plan.machines[machine].options])
        device = re.findall(r"--device[ =](\w+)", words)[-1:]
        return self.out / slug(machine) / f"{'-'.join([self.name, *device])}.json"

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
    """One fleet at work. As a context manager: ends what is under way.

    Args:
        wanted: What was asked for.
        tell: Told of each machine's steps.
        interrupts: Asks it to end.
    """

    wanted: Wanted
    tell: Tell
    interrupts: Stop
    interrupted: bool = field(default=False, init=False)
    _found: dict[str, Path] = field(default_factory=dict, init=False)
    _cleanup: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False)

    def __enter__(self) -> FleetRun:
        self.interrupts.pass_on_to(self._interrupt)
        self._engine = _engine_of(self.wanted.plan)
        self._cleanup.callback(self._engine.close)
        try:
            self.wanted.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._cleanup.close()
            raise UsageError(
                f"--out: the folder {self.wanted.out} cannot be made: {error.strerror}; choose another"
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def tune(self) -> list[Ending]:
        """Tunes on all machines at once; each begins with what is known when it comes to its turn."""
        for machine in self.wanted.plan.machines:
            self.tell(machine, f"tuning for {self.wanted.budget}")
        return self._campaign(self.wanted.plan.machines, self._keep_result).run(self._tuning)

    def cross(self) -> list[Ending]:
        """Measures each machine's config on every other one; of one machine, one after the other."""
        machines = list(self._found)
        endings = []
        for shift in range(1, len(machines)):  # each machine is busy once in a round
            origin = {machine: machines[(number + shift) % len(machines)] for number, machine in enumerate(machines)}
            if self.interrupted:
                break
            for machine, other in origin.items():
                self.tell(machine, f"trying the config of {other}")
            endings += self._campaign(machines, self._keep_cross).run(
                lambda machine, origin=origin: self._crossing(machine, origin[machine])  # type: ignore[misc]
            )
        return endings

    def comparison(self, samples: int | None, at_least: float | None) -> Comparison:
        """The fleet's results side by side, and what its machines' configs do on each other."""
        found = self._found.values()
        crosses = [folder for path in found if (folder := path.parent / "cross").is_dir()]
        return compare(gather([*found, *crosses]), samples, at_least)

    def write_page(self, page: str) -> str:
        """Writes the comparison's page; returns where it is."""
        path = self.wanted.out / PAGE
        try:
            write_whole(path, page)
        except OSError as error:
            return f"the page could not be written to {path}: {error.strerror or error}"
        return f"page: {path}"

    def _interrupt(self) -> None:
        self.interrupted = True

    def _campaign(self, machines: Iterable[str], keep: Callable[[str, str], str]) -> Campaign:
        kinds = {machine: self.wanted.plan.machines[machine] for machine in machines}
        return Campaign(self._engine, kinds, keep, self.tell, lambda: self.interrupted)

    def _job(
        self,
        machine: str,
        arguments: tuple[str, ...],
        *,
        files: dict[str, str] | None = None,
        known: dict[str, str | None] | None = None,
    ) -> Job:
        return Job(
            machine,
            arguments,
            parse_duration(self.wanted.budget),
            files=files or {},
            known=known or {},
            environment={ENVIRONMENT: os.environ.get(ENVIRONMENT)},
        )

    def _tuning(self, machine: str) -> Job:
        return self._job(machine, self.wanted.command(machine), known=self._known())

    def _known(self) -> dict[str, str | None]:
        """What each machine of the fleet has found, now or in a fleet before; None where that is still to come home."""
        known: dict[str, str | None] = {}
        for machine in self.wanted.plan.machines:
            path = self._found.get(machine, self.wanted.place(machine)).resolve()
            if not path.exists():
                known[str(path)] = None
                continue
            with contextlib.suppress(ResultFileError):  # what cannot be read is no start; a new one will replace it
                read_result(path)
                known[str(path)] = path.read_text("utf-8")
        return known

    def _crossing(self, machine: str, other: str) -> Job:
        files = {name: self._found[kind].read_text("utf-8") for name, kind in (("own", machine), ("theirs", other))}
        arguments = ("cross", f"{FOLDER}/theirs", f"--against={FOLDER}/own", f"--out={FOLDER}/{RESULT}")
        target = self.wanted.target
        trained = [f"--model={target}"] if target is not None else ["--", *self.wanted.script]
        device = f"--device={read_result(self._found[machine]).constraints.device}"  # a GPU's config is tried on a GPU
        return self._job(machine, (*arguments, device, f"--budget={self.wanted.budget}", *trained), files=files)

    def _keep_result(self, machine: str, text: str) -> str:
        result = parse_document(json.loads(text), f"the file of {machine}", Result)
        path = _kept(result, self.wanted.place(machine))
        self._found[machine] = path
        return f"{verdict(result)[1]}: {verdict(result)[2]}; {path}"

    def _keep_cross(self, machine: str, text: str) -> str:
        cross = parse_document(json.loads(text), f"the file of {machine}", Cross)
        folder = self.wanted.out / slug(machine) / "cross"
        path = _kept(cross, folder / f"{self.wanted.name}-{cross.device}-from-{slug(cross.config_of.machine)}.json")
        return f"{cross.finding}; {path}"


def _engine_of(plan: Plan) -> Engine:
    """The engine of a plan, for the programs in the working directory.

    Raises:
        UsageError: It is not installed, or cannot be reached.
    """
    if plan.engine == "ray":
        from autotune.fleet.ray_engine import RayEngine

        return RayEngine(plan.address, Path.cwd(), plan.excludes, plan.wait_seconds)
    from autotune.fleet.slurm_engine import SlurmEngine

    return SlurmEngine(Path(plan.folder) if plan.folder else None, local=plan.engine == "local", wait=plan.wait_seconds)


def _kept(record: Document, wanted: Path) -> Path:
    """Where a file lies: in the temporary folder, where its own cannot be written."""
    path, failure = keep_document(record, wanted)
    if path is None:
        raise failure or ResultFileError(f"the {record.NOUN} could be written nowhere")
    return path
