"""One tuning from end to end: look at the machine and the workload, search, confirm, and make the result."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from autotune import __version__
from autotune.bursts.isolation import Isolation
from autotune.bursts.runner import ProcessRunner, look_at_machine, make_runner
from autotune.errors import AutotuneError, Interrupted, NothingFeasibleError, UsageError
from autotune.hardware.model import DeviceKind, Hardware, slug
from autotune.knobs.config import Scalar
from autotune.knobs.facts import WorkloadFacts
from autotune.knobs.space import Space, build_space
from autotune.measuring.numerics import NumericsGuard
from autotune.measuring.profiles import Profile
from autotune.measuring.records import Point
from autotune.measuring.speedup import Speedup
from autotune.results.result import Constraints, Result, SearchRecord, Side, TrialRecord, WorkloadRecord
from autotune.search.diagnosis import Evidence, copy_ceiling, diagnose
from autotune.search.driver import Search, StoppedBy
from autotune.search.interrupts import Interrupts
from autotune.search.progress import Progress
from autotune.search.stopping import Budget
from autotune.search.storage import open_study
from autotune.search.trials import Trial, TrialLog, measuring_fraction
from autotune.search.warm_start import Candidate, candidates, read_results, records
from autotune.wording import ratio_text

PEAKS_SHARE, PEAKS_MAX_SECONDS = 0.01, 1.5
PROFILE_MIN_SECONDS = 2.0
"""With less than this left, no profile is begun."""


@dataclass(frozen=True)
class Options:
    """What the person asked for; the fields are the options of the command line.

    Attributes:
        effective_batch: A number; ``"free"``; None holds the baseline's.
        explored: Values for keyword arguments of ``build()``.
        warm_start: Result files of other machines, whose configs are tried first.
    """

    target: str
    budget_seconds: float = 600.0
    device: DeviceKind | None = None
    out: Path | None = None
    effective_batch: int | str | None = None
    memory_target: float = 0.9
    utilization_target: float = 0.95
    pinned: dict[str, Scalar] = field(default_factory=dict)
    only: tuple[str, ...] | None = None
    max_workers: int | None = None
    explored: dict[str, tuple[Scalar, ...]] = field(default_factory=dict)
    warm_start: tuple[Path, ...] = ()
    sampler: str = "tpe"
    seed: int = 0
    storage: str | None = None
    resume: bool = False


class Tuning:
    """A tuning in progress.

    Args:
        options: What the person asked for.
        progress: Who is told.
        budget: The wall clock; it has been running since the command began.
        interrupts: The signals that end it in good order.
    """

    def __init__(
        self, options: Options, progress: Progress, budget: Budget, interrupts: Interrupts | None = None
    ) -> None:
        self.options = options
        self._progress = progress
        self._budget = budget
        self._interrupts = interrupts
        self._notes: list[str] = []
        self._candidates: list[Candidate] = []

    def run(self) -> tuple[Result, Path]:
        """Tunes; returns the result and where it belongs. The caller writes it.

        Raises:
            UsageError: An option, the target or the storage is wrong.
            WorkloadError: The user's code failed.
            NothingFeasibleError: No config could be trained.
            Interrupted: Asked to end before anything was measured; later, a partial result is returned.
        """
        options = self.options
        elsewhere = read_results(options.warm_start)
        for source, result in elsewhere:
            if result.ignored is not None:
                self._note(f"{source}: {result.ignored}")
        with Isolation(options.target) as isolation:
            if self._interrupts is not None:
                self._interrupts.pass_on_to(isolation.interrupt)
            self._progress.stage("importing")
            isolation.start(self._budget.preparing)
            if isolation.fork_unsafe_reason is not None:
                self._note(f"each burst starts a fresh interpreter: {isolation.fork_unsafe_reason}")
            self._progress.stage("probing")
            hardware, device = self._look_at_machine(isolation)
            self._progress.stage("checking the workload")
            runner = make_runner(isolation, hardware, device, memory_target=options.memory_target, seed=options.seed)
            facts = runner.check(self._budget.preparing, options.explored)
            for note in facts.notes:
                self._note(f"bursts leave out {note}")
            space = self._make_space(hardware, facts, device)
            out = options.out or Path("results") / hardware.slug / f"{slug(options.target)}.json"
            with writable(out):
                log = self._open_log(space, facts, device, out)
            self._candidates = candidates(
                elsewhere,
                space,
                hardware,
                fingerprint=facts.fingerprint,
                device=device,
                memory_limit_bytes=self._memory_limit_bytes(hardware, device),
            )
            search = Search(
                space,
                Point(config=facts.baseline),
                runner,
                log,
                self._budget,
                self._progress,
                first=[candidate.proposal for candidate in self._candidates if candidate.proposal is not None],
                utilization_target=options.utilization_target,
                seed=options.seed,
                memory_limit_bytes=self._memory_limit_bytes(hardware, device),
                device=device,
                numerics=NumericsGuard(runner.agreement, Point(config=facts.baseline), self._note),
            )
            profiles: dict[Point, Profile] = {}
            try:
                stopped_by = search.run()
                search.confirmation.ablate()
                profiles = self._profile(runner, search)
            except Interrupted:
                if search.log.best() is None:  # a result without a figure would serve nobody
                    raise
                stopped_by = "interrupted"
        return self._make_result(search, hardware, device, facts, stopped_by, profiles), out

    def _profile(self, runner: ProcessRunner, search: Search) -> dict[Point, Profile]:
        """Where the baseline and the answer spend their time, as far as there is time to see it."""
        found: dict[Point, Profile] = {}
        for point in dict.fromkeys((search.confirmation.answer(), search.baseline)):
            measured = search.log.measurement(point)
            if measured is None or self._budget.remaining < PROFILE_MIN_SECONDS:
                continue
            self._progress.stage("profiling")
            with contextlib.suppress(AutotuneError):  # a profile that fails explains nothing, and costs nothing else
                found[point] = runner.profile(point, self._budget.remaining)
        return found

    def _look_at_machine(self, isolation: Isolation) -> tuple[Hardware, DeviceKind]:
        """The machine as host and torch see it, and the device to train on."""
        seconds = min(PEAKS_MAX_SECONDS, PEAKS_SHARE * self._budget.seconds)
        hardware = look_at_machine(isolation, 10 + 10 * seconds, device=self.options.device, peak_seconds=seconds)
        device = self.options.device or hardware.default_device
        if device not in hardware.devices:
            found = ", ".join(hardware.devices)
            raise UsageError(f"--device {device} was asked for, but this machine offers {found}")
        return hardware, device

    def _memory_limit_bytes(self, hardware: Hardware, device: DeviceKind) -> int | None:
        """What a burst may take of the device's memory; None where it is not known."""
        return hardware.memory_limit_bytes(device, self.options.memory_target)

    def _effective_batch(self, facts: WorkloadFacts) -> int | None:
        """Samples of an optimizer step that every candidate holds; None when free."""
        wanted = self.options.effective_batch
        if wanted is None:
            return facts.baseline.effective_batch
        return wanted if isinstance(wanted, int) else None

    def _make_space(self, hardware: Hardware, facts: WorkloadFacts, device: DeviceKind) -> Space:
        options = self.options
        return build_space(
            hardware,
            facts,
            device=device,
            effective_batch=self._effective_batch(facts),
            pinned=options.pinned,
            only=options.only,
            max_workers=options.max_workers,
            explored=options.explored,
            budget_seconds=options.budget_seconds,
        )

    def _open_log(self, space: Space, facts: WorkloadFacts, device: DeviceKind, out: Path) -> TrialLog:
        options = self.options
        created = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S")
        study = open_study(
            name=f"{slug(options.target)}-{created}-{os.getpid()}",
            storage=options.storage,
            journal=out.with_suffix(".journal"),
            sampler=options.sampler,
            seed=options.seed,
            attributes={"target": options.target, "fingerprint": facts.fingerprint, "device": device},
            resume=options.resume,
        )
        log = TrialLog(study, space, self._note)
        if log.trials:
            self._note(f"{len(log.trials)} bursts of an earlier run are known and not run again")
        return log

    def _make_result(
        self, search: Search, hardware: Hardware, device: DeviceKind, facts: WorkloadFacts, stopped_by: StoppedBy,
        profiles: Mapping[Point, Profile],
    ) -> Result:  # fmt: skip
        """The result of what is known, however the search ended."""
        trials = search.log.trials
        if stopped_by != "interrupted" and search.log.best() is None:
            failure = next((t.burst for t in trials if t.burst.point == search.baseline), None)
            why = f"; the baseline ended as {failure.outcome.value}: {failure.reason}" if failure else ""
            raise NothingFeasibleError(f"none of {len(trials)} bursts could be trained to its end{why}")
        best, speedup, reason = judge(search)
        warm_start = records(self._candidates, trials, best, search.baseline)
        side = {
            point: Side(config=point.config, parameters=point.parameters, measurement=search.log.measurement(point))
            for point in (search.baseline, best)
        }
        seconds = self._budget.elapsed
        return Result(
            status="partial" if stopped_by == "interrupted" else "complete",
            created=datetime.now(timezone.utc),
            workload=WorkloadRecord(
                target=facts.target, name=facts.name, parameters=best.parameters, samples=facts.samples,
                fingerprint=facts.fingerprint, model=facts.model,
            ),
            hardware=hardware,
            software=hardware.software.model_copy(update={"autotune": __version__}),
            baseline=side[search.baseline],
            best=side[best],
            speedup=speedup,
            speedup_reason=reason,
            ablation=search.confirmation.ablation(),
            numerics=search.confirmation.verdict(best),
            constraints=self._constraints(device, facts, hardware),
            stopped_by=stopped_by,
            search=SearchRecord(
                seconds=seconds,
                bursts=sum(not trial.resumed for trial in trials),
                outcomes=dict(Counter(trial.burst.outcome.value for trial in trials)),
                measuring_fraction=measuring_fraction(trials, seconds),
                resumed_bursts=sum(trial.resumed for trial in trials),
                disturbed_bursts=sum(trial.burst.disturbance is not None for trial in trials),
                repeated_bursts=sum(trial.burst.repeats for trial in trials),
                drift=search.drift.largest,
                noisy=search.drift.noisy,
                skipped_knobs=dict(search.space.skipped),
                notes=tuple(self._notes),
                warm_start=warm_start,
            ),
            trials=tuple(trial_record(trial, search.baseline) for trial in trials),
            diagnosis=diagnose(
                self._evidence(search, best, hardware, device, facts, profiles.get(best)), profiles.get(search.baseline)
            ),
        )  # fmt: skip

    def _evidence(
        self, search: Search, best: Point, hardware: Hardware, device: DeviceKind, facts: WorkloadFacts,
        profile: Profile | None,
    ) -> Evidence | None:  # fmt: skip
        """All that is known of the answer."""
        measured = search.log.measurement(best)
        if measured is None:
            return None
        return Evidence(
            config=best.config,
            measured=measured,
            ceilings=search.ceilings.of(best) | {"copy": copy_ceiling(hardware, device, facts)},
            device=device,
            cpus=hardware.cpu.budget,
            memory_limit_bytes=self._memory_limit_bytes(hardware, device),
            profile=profile,
        )

    def _constraints(self, device: DeviceKind, facts: WorkloadFacts, hardware: Hardware) -> Constraints:
        options = self.options
        return Constraints(
            budget_seconds=options.budget_seconds,
            device=device,
            effective_batch=self._effective_batch(facts),
            memory_target=options.memory_target,
            memory_limit_bytes=self._memory_limit_bytes(hardware, device),
            utilization_target=options.utilization_target,
            max_workers=options.max_workers,
            pinned=dict(options.pinned),
            only=options.only,
            explored=dict(options.explored),
            sampler=options.sampler,
            seed=options.seed,
        )

    def _note(self, text: str) -> None:
        self._notes.append(text)
        self._progress.note(text)


def trial_record(trial: Trial, baseline: Point) -> TrialRecord:
    """A trial as the result file keeps it."""
    burst = trial.burst
    measured = burst.measurement
    changes = {knob: now for knob, (_, now) in burst.point.config.changes_from(baseline.config).items()}
    return TrialRecord(
        stage=trial.stage,
        reason=trial.reason,
        changes=changes | {k: v for k, v in burst.point.parameters.items() if baseline.parameters.get(k) != v},
        outcome=burst.outcome,
        failure=burst.reason,
        samples_per_second=burst.rate,
        seconds=burst.seconds,
        compile_seconds=measured.compile_seconds if measured else None,
        memory_bytes=measured.device_memory_bytes if measured else None,
        disturbance=burst.disturbance,
    )


def judge(search: Search) -> tuple[Point, Speedup | None, str | None]:
    """The point to recommend, its confirmed speed-up, and the reason when there is none.

    Only a confirmed gain displaces the baseline: else the baseline is the answer.
    """
    confirmed = search.confirmation.confirmed()
    if confirmed:
        answer = search.confirmation.answer()
        winner = next((one for one in confirmed if one.point == answer), None)
        if winner is not None:
            return winner.point, winner.speedup, None
        top = confirmed[0]
        low, high = (ratio_text(end) for end in top.speedup.ci95)
        return (
            search.baseline,
            None,
            (
                "nothing was faster than the baseline beyond doubt: "
                f"the best candidate reached {ratio_text(top.speedup.ratio)} "
                f"(95 % interval {low} – {high}, {top.speedup.pairs} pairs)"
            ),
        )
    best = search.log.best()
    if best is None or best.burst.point == search.baseline:
        return search.baseline, None, "nothing was faster than the baseline"
    return (
        search.baseline,
        None,
        ("the search found a faster config, but there was no time to confirm it; give a longer --budget, or --resume"),
    )


@contextlib.contextmanager
def writable(out: Path) -> Iterator[None]:
    """Makes sure that the result can be written, before anything is spent on finding it.

    Raises:
        UsageError: The path is a folder, or its folder cannot be written to.
    """
    if out.suffix in {".html", ".journal"}:  # the page and the trials lie beside the result, under these names
        raise UsageError(f"--out expects the result's own file, such as {out.with_suffix('.json')}, but {out} came")
    if out.is_dir():
        raise UsageError(f"--out expects a file such as {out / 'result.json'}, but {out} is a folder")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out: the folder {out.parent} cannot be made: {error.strerror}; choose another") from error
    if not os.access(out.parent, os.W_OK):
        raise UsageError(f"--out: the folder {out.parent} cannot be written to; choose another")
    yield
