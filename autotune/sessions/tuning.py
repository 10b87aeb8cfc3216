"""One tuning from end to end: look at the machine and the workload, search, confirm, save the result."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.runner import ProcessRunner, look_at_machine, make_runner
from autotune.doctor import Examination, examine_quickly, known_examination
from autotune.errors import AutotuneError, Interrupted, NothingFeasibleError, ResultFileError, UsageError, WorkloadError
from autotune.hardware import UNUSABLE, DeviceKind, Hardware
from autotune.knobs import Scalar, Space, TrainConfig, WorkloadFacts, build_space, limit_of, share_of_rank
from autotune.measuring import NumericsGuard, Point, Profile, Progress
from autotune.results.files import keep_document
from autotune.results.result import Evaluation, Result, Scaling, place_of_partial
from autotune.scripts import Script, ScriptIsolation
from autotune.scripts.changes import held_knobs
from autotune.scripts.facts import as_trained, record_of
from autotune.scripts.sameness import ScriptNumerics
from autotune.scripts.seen import SeenScript
from autotune.search.bursts import Bursts
from autotune.search.driver import Search
from autotune.search.evaluation import EVALUATION, evaluation_batch
from autotune.search.interrupts import Stop
from autotune.search.scaling import SCALING, scaling
from autotune.search.sharing import Shared
from autotune.search.stopping import EXPLAINING_SECONDS, Budget, sufficient_budget
from autotune.search.storage import open_study, remove_lock
from autotune.search.trials import TrialLog
from autotune.search.warm_start import Candidate, candidates, read_results
from autotune.sessions.opening import opened
from autotune.sessions.options import Options, missing_device, ranks_on, require_energy
from autotune.sessions.outputs import RESULT, require_replaceable, require_writable
from autotune.sessions.tuning_result import Findings, Setting, make_result

PEAKS_SHARE, PEAKS_MAX_SECONDS = 0.01, 1.5
"""Time to measure each peak of the hardware: a share of the budget, and the most seconds. Not tuned."""
PROFILE_MIN_SECONDS = 2.0
"""With less time remaining, no profile is taken. Not tuned."""


@dataclass
class Tuning:
    """A tuning in progress; its budget counts from the start of the command."""

    options: Options
    progress: Progress
    budget: Budget
    interrupts: Stop | None = None
    _notes: list[str] = field(default_factory=list, init=False)

    def run(self) -> tuple[Result, Path]:
        """Tunes, and returns the result with the path where the caller writes it.

        Raises:
            UsageError: An option, the target or the storage is wrong.
            WorkloadError: The user's code failed.
            NothingFeasibleError: No config could be trained.
            Interrupted: Asked to end before anything was measured. Later interrupts return a partial result.
        """
        require_writable(self.options.out or Path("results/…/result.json"))
        elsewhere = read_results(self.options.warm_start)
        for source, result in elsewhere:
            if result.ignored is not None:
                self._note(f"{source}: {result.ignored}")
        with self._opened() as isolation:
            setting, runner = self._examine(isolation)
            for note in setting.facts.notes:
                self._note(note)
            space = self._space(setting)
            if space.is_empty:
                self._note("nothing is left to search, so that the baseline alone is measured; --dry-run says why")
            own = Path("results") / setting.hardware.slug / f"{self.options.name}-{setting.device}.json"
            out = self.options.out or own
            tried = candidates(
                elsewhere, space, setting.hardware, fingerprint=setting.facts.fingerprint, device=setting.device,
                memory_limit_bytes=setting.memory_limit_bytes,
            )  # fmt: skip
            with _place(out) as for_partial:
                search = self._search(setting, space, runner, self._open_log(space, setting, out), tried)
                findings = self._measure(search, runner, setting)
                result = make_result(
                    search, setting, findings, tried=tried, notes=self._notes, seconds=self.budget.elapsed
                )
        if result.status == "partial" and for_partial != out:
            self._note(f"{out} stays as it is; this partial result is at {for_partial}")
            return result, for_partial
        return result, out

    def _examine(self, isolation: Isolation) -> tuple[Setting, ProcessRunner]:
        """Reads the machine's hardware, and checks the workload."""
        options = self.options
        seen = isolation.seen if isinstance(isolation, ScriptIsolation) else None
        self.progress.stage("probing")
        hardware, device = self._look_at_machine(isolation, seen)
        self.progress.stage("checking the workload")
        ranks = ranks_on(hardware, device, options.ranks)
        if isinstance(options.effective_batch, int):
            share_of_rank(options.effective_batch, ranks)
        runner = make_runner(
            isolation, hardware, device,
            memory_target=options.memory_target, note=self._note, seed=options.seed, ranks=ranks,
        )  # fmt: skip
        began, deadline = self.budget.elapsed, self.budget.preparing_seconds
        enough = sufficient_budget(began + 2 * deadline, 2 * deadline)
        facts = runner.check(deadline, options.explored, f"try --budget {enough:.0f}s")
        prepared = self.budget.elapsed
        # Now, since the script's files may be edited during the search.
        script = record_of(options.script, seen) if seen is not None else None
        return Setting(options, hardware, device, facts, prepared - began, prepared, seen, script), runner

    def _search(
        self, setting: Setting, space: Space, runner: ProcessRunner, log: TrialLog, tried: Sequence[Candidate]
    ) -> Search:
        """The search, with its share of the budget."""
        options, baseline = self.options, Point(config=setting.facts.baseline)
        kept = EVALUATION.seconds(self.budget.seconds) if options.evaluation else 0.0
        kept += SCALING.seconds(self.budget.seconds) if setting.searches_ranks else 0.0
        budget, limit = self.budget.shortened(kept), setting.memory_limit_bytes
        return Search(
            space,
            Bursts(baseline, runner, log, budget, self.progress, setting.device, limit, setting.facts),
            first=[candidate.proposal for candidate in tried if candidate.proposal is not None],
            utilization_target=options.utilization_target,
            at_least=options.at_least,
            seed=options.seed,
            by_sampler=options.sampler != "bayes",
            numerics=self._numerics(runner, baseline),
            note=self._note,
            headroom=setting.seen is None or bool(setting.seen.loaders),
        )

    def _measure(self, search: Search, runner: ProcessRunner, setting: Setting) -> Findings:
        """Runs the search and the measurements after it; after an interrupt, returns the findings so far.

        Raises:
            Interrupted: Asked to end before anything was measured.
        """
        findings = Findings()
        try:
            stopped_by = search.run()
            search.explain()
            if self.options.evaluation:
                findings.evaluation = self._evaluation(runner, search, setting.facts)
            if setting.searches_ranks:
                findings.scaling = self._scaling(runner, search)
            self._profile(runner, search, findings.profiles)
            findings.stopped_by = stopped_by
        except Interrupted:
            if not search.baseline_trains:  # a result without a measurement is useless
                raise
        return findings

    @property
    def notes(self) -> tuple[str, ...]:
        """All notes that the user has seen."""
        return tuple(self._notes)

    def look(self) -> tuple[SeenScript | None, Space, str | None]:
        """A dry run: what was seen in a script, what the search would try, and how files are protected.

        The first and the last are None for a `build()`.

        Raises:
            UsageError: An option or the target is wrong.
            WorkloadError: The workload cannot be tuned.
            Interrupted: Asked to end.
        """
        read_results(self.options.warm_start)
        with self._opened() as isolation:
            setting, _ = self._examine(isolation)
            protects = isolation.protects if isinstance(isolation, ScriptIsolation) else None
            return setting.seen, self._space(setting), protects

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Isolation]:
        """The isolation that runs the bursts."""
        options = self.options
        script = Script(options.script, options.writable, options.any_network) if options.script else None
        target = script or options.sent or options.target
        # Several ranks use all GPUs, and a script uses those that it asks for.
        on_gpu = options.device in {None, "cuda"} and options.ranks == 1 and script is None
        with opened(target, self.budget, self.progress, self.interrupts, self._note, on_gpu=on_gpu) as isolation:
            if isolation.fork_unsafe_reason is not None:
                self._note(f"each burst starts a fresh interpreter: {isolation.fork_unsafe_reason}")
            yield isolation

    def _space(self, setting: Setting) -> Space:
        """The space to search, by the options, the workload and the doctor's findings."""
        options, baseline = self.options, setting.facts.baseline
        examination = self._examined(setting)
        unsound = {(drop.knob, drop.value): drop.reason for drop in examination.drops}
        pinned, held = options.pinned, {}
        if setting.seen is not None:
            is_free = options.effective_batch == "free"
            held = held_knobs(setting.seen, batch_is_free=is_free)
            _require_changeable(options.pinned, baseline, held)
            unsound |= {("precision", "fp16"): "fp16 needs a GradScaler in the script"}
            if is_free:  # a script's accumulation stays
                pinned = {**pinned, "accumulation_steps": baseline.accumulation_steps}
        return build_space(
            setting.hardware,
            setting.facts,
            device=setting.device,
            effective_batch=setting.effective_batch,
            pinned=pinned,
            only=options.only,
            explored=options.explored,
            budget_seconds=options.budget_seconds,
            unsound=unsound,
            held=held,
            allow_numerics=options.allow_numerics,
        )

    def _numerics(self, runner: ProcessRunner, baseline: Point) -> NumericsGuard:
        """The guard that checks whether a config trains the same thing as the baseline."""
        if not self.options.script:
            return NumericsGuard(runner.agreement, baseline, self._note)
        return ScriptNumerics(runner.agreement, baseline, self._note, runner.losses)

    def _profile(self, runner: ProcessRunner, search: Search, profiles: dict[Point, Profile]) -> None:
        """Profiles the baseline and the answer into `profiles`, as far as the budget allows."""
        for point in dict.fromkeys((search.confirmation.answer(), search.baseline)):
            if search.log.measurement(point) is None or self.budget.remaining < PROFILE_MIN_SECONDS:
                continue
            self.progress.stage("profiling")
            with contextlib.suppress(AutotuneError):  # a failed profile is only missing
                profiles[point] = runner.profile(point, self.budget.remaining)

    def _evaluation(self, runner: ProcessRunner, search: Search, facts: WorkloadFacts) -> Evaluation | None:
        """The evaluation batch size; None, with a note, if there was no time or evaluating failed."""
        self.progress.stage("evaluation")
        plan, answer = BurstPlan(measure_seconds=EXPLAINING_SECONDS), search.confirmation.answer()
        evaluation = evaluation_batch(answer, runner, plan, self.budget, search.costs, facts.evaluation_samples)
        if evaluation is None:
            self._note("no evaluation batch size was found: there was no time, or evaluating failed")
        return evaluation

    def _scaling(self, runner: ProcessRunner, search: Search) -> Scaling | None:
        """How the speed scales with the number of ranks; None if there was no time."""
        self.progress.stage("fewer ranks")
        plan, answer = BurstPlan(measure_seconds=EXPLAINING_SECONDS), search.confirmation.answer()
        return scaling(answer, runner, plan, self.budget, search.costs)

    def _look_at_machine(self, isolation: Isolation, seen: SeenScript | None) -> tuple[Hardware, DeviceKind]:
        """The machine's hardware, read from the host and torch, and the device to train on."""
        seconds = min(PEAKS_MAX_SECONDS, PEAKS_SHARE * self.budget.seconds)
        hardware = look_at_machine(isolation, 10 + 10 * seconds, device=self.options.device, peak_seconds=seconds)
        device = self.options.device or hardware.default_device
        if seen is not None:
            hardware, device = as_trained(hardware, seen, self.options.device)
        if (why := hardware.unread.get(UNUSABLE)) is not None:
            if device == "cpu" and self.options.device is None:
                raise UsageError(
                    f"expected a build of torch for the GPU: {why}; install one, as https://pytorch.org/get-started "
                    "shows, or train on the CPU: --device cpu"
                )
            self._note(why)
        if device not in hardware.devices:
            raise missing_device(device, hardware)
        ranks = seen.ranks if seen is not None else ranks_on(hardware, device, self.options.ranks)
        require_energy(self.options.objective, hardware.device(device), ranks)
        return hardware, device

    def _examined(self, setting: Setting) -> Examination:
        """What the stored examination found in torch and the driver; limits and free memory are read anew."""
        folder = Path("results") / setting.hardware.slug
        examination = examine_quickly(setting.hardware, setting.device)
        if (stored := known_examination(folder, setting.hardware, setting.device)) is not None:
            lasting = (finding for finding in stored.findings if finding.point)
            examination = examination.model_copy(update={"findings": (*examination.findings, *lasting)})
        for finding in examination.findings:
            if finding.status == "does not hold":
                self._note(f"doctor: {finding.name}: {finding.found}; {finding.remedy}")
        return examination

    def _open_log(self, space: Space, setting: Setting, out: Path) -> TrialLog:
        options, facts = self.options, setting.facts
        same = {
            "target": options.target, "fingerprint": facts.fingerprint, "device": setting.device,
            "machine": setting.hardware.slug, "baseline": facts.baseline.model_dump_json(),
        }  # fmt: skip
        study = open_study(
            name=options.join or f"{options.name}-{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{os.getpid()}",
            storage=options.storage,
            journal=out.with_suffix(".journal"),
            sampler=options.sampler,
            seed=options.seed,
            attributes=same | {"objective": options.objective},
            resume=options.resume,
            join=options.join is not None,
        )
        shared = Shared(study, self._is_over, self.progress.note) if options.join is not None else None
        log = TrialLog(study, space, self._note, objective=options.goal, others=shared)
        if log.trials:
            whose = "other machines" if shared is not None else "an earlier run"
            reused = "1 burst" if len(log.trials) == 1 else f"{len(log.trials)} bursts"
            self._note(f"not run again, but reused: {reused} of {whose}")
        return log

    def _is_over(self) -> bool:
        """Whether the time is up or the run was interrupted."""
        return self.budget.remaining <= 0 or (self.interrupts is not None and self.interrupts.asked)

    def _note(self, text: str) -> None:
        self._notes.append(text)
        self.progress.note(text)


def _require_changeable(pinned: Mapping[str, Scalar], baseline: TrainConfig, held: Mapping[str, str]) -> None:
    """Refuses pins that would have no effect.

    Raises:
        UsageError: A knob is pinned to a value that it cannot take.
    """
    for knob, value in pinned.items():
        own, most = getattr(baseline, knob), limit_of(value)
        if knob in held and (value != own if most is None else own is not None and own > most):
            raise UsageError(f"--pin {knob}{'=' if most is None else ''}{value}: {held[knob]}")


@contextlib.contextmanager
def _place(out: Path) -> Iterator[Path]:
    """Makes the folder of a result; if nothing was measured, removes what was made there.

    Yields:
        The path for a partial result.

    Raises:
        UsageError: Another file is there, or its folder is not writable.
    """
    for_partial = place_of_partial(out)
    for place in (out, for_partial):
        require_replaceable("--out", place, RESULT)
    require_writable(out)
    journal = out.with_suffix(".journal")
    made = [parent for parent in out.absolute().parents if not parent.exists()]
    resumes = journal.exists()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out: the folder {out.parent} cannot be made: {error.strerror}; choose another") from error
    try:
        yield for_partial
    except (Interrupted, NothingFeasibleError, UsageError, WorkloadError):  # else --resume goes on
        if not resumes:
            journal.unlink(missing_ok=True)
        remove_lock(journal)
        for folder in made:
            with contextlib.suppress(OSError):  # someone else has put a file there
                folder.rmdir()
        raise
    remove_lock(journal)


@dataclass(frozen=True)
class Saved:
    """A result and its file."""

    result: Result  # partial if the tuning was interrupted
    path: Path | None  # None if it could not be written
    failure: ResultFileError | None  # why the file is not at the requested path; None if it is

    def write_page(self) -> tuple[Path | None, str | None]:
        """Writes the report beside the result, unless the result had to be written elsewhere.

        Returns:
            The report's path, and the reason if it could not be made.
        """
        if self.path is None or self.failure is not None:
            return None, None
        try:
            from autotune.report import write_report

            return write_report(self.result, self.path), None
        except Exception as error:  # noqa: BLE001 - the result is written; without its report it is still complete
            again = f"autotune report {shlex.quote(str(self.path))}"
            return None, f"the report could not be made: {error}; '{again}' tries again"


def tune_and_save(options: Options, progress: Progress, budget: Budget, stop: Stop) -> Saved:
    """Tunes, and writes the result; opens the progress. `stop` ends the tuning early, with a partial result.

    Raises:
        AutotuneError: As `Tuning.run`.
        Interrupted: Asked to end before the first burst ended.
    """
    try:
        with progress:
            result, place = Tuning(options, progress, budget, stop).run()
    except Interrupted:
        raise Interrupted("interrupted before the first burst ended; nothing was written") from None
    with stop.held():
        path, failure = keep_document(result, place)
    return Saved(result, path, failure)
