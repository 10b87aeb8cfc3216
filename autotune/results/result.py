"""The content of a result file: what was tuned, what it gained, and how the search went."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field, computed_field

from autotune.errors import ResultFileError
from autotune.hardware import DeviceKind, Hardware, Software
from autotune.knobs import KNOBS, ModelFacts, Parameters, Scalar, TrainConfig, WorkloadFacts
from autotune.measuring import (
    SAMPLES_PER_SECOND,
    Growth,
    Headroom,
    KnownInterval,
    Measurement,
    Numerics,
    Objective,
    ObjectiveName,
    Outcome,
    Point,
    Profile,
    SideName,
    Speedup,
    objective_named,
)
from autotune.results.files import Document, read_document
from autotune.secrets import masked_command
from autotune.stored import Dollars, Figure, Seconds, Share, Stored, Whole

Words = Annotated[tuple[str, ...], AfterValidator(masked_command)]
"""A command, or part of one, without its secrets."""
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


CONFIRM, UNINTERRUPTED = PROVING = "confirm", "uninterrupted"
"""Stages of a search that prove; their failures are the finalist's own."""


class Site(Stored):
    """A call in one of the script's files."""

    file: str
    line: Whole
    end: tuple[Whole, Whole] | None = Field(
        default=None, description="its last line, and the column behind it in bytes of UTF-8; null before Python 3.11"
    )
    kind: str | None = Field(default=None, description="the class that it creates")
    parameters: tuple[str, ...] = Field(default=(), description="its positional arguments")
    accepts: tuple[str, ...] | None = Field(default=None, description="its keyword arguments; null: any")
    shared: bool = Field(default=False, description="it creates other loaders too")


class SourceRecord(Stored):
    """The files of a script, as they were when it was measured."""

    main: str | None = Field(description="the file that was run, relative to autotune's folder; null: none of yours")
    folder: str = Field(description="where the script ran, relative to autotune's folder")
    argv: Words = Field(default=(), description="the words that the file was run with")
    files: dict[str, Sha256] = Field(default_factory=dict, description="hash of each file that is named here")
    loaders: tuple[Site | None, ...] = Field(
        default=(), description="those that feed training; null: created elsewhere"
    )
    optimizers: tuple[Site | None, ...] = ()
    may_change_data: bool = Field(default=False, description="the script seems to change its data between epochs")
    has_autotune: bool = Field(default=False, description="the script's interpreter can import autotune")


def _known_knobs(config: Any) -> Any:
    """A config without the knobs of a newer autotune, which this one cannot apply; `Document.ignored` names them."""
    return {knob: config[knob] for knob in config if knob in KNOBS} if isinstance(config, dict) else config


class ScriptRecord(Stored):
    """A training script that was tuned unchanged."""

    command: Words = Field(description="the words that started it; *** stands for a secret")
    loop: dict[str, Any] = Field(description="identifies its training loop")
    gpus: tuple[tuple[str, ...], ...] = Field(default=(), description="by rank, UUIDs of the NVIDIA GPUs that it used")
    source: SourceRecord = Field(description="where its settings are set, so that they can be changed")


class WorkloadRecord(Stored):
    """The workload that was trained."""

    target: str
    name: str
    parameters: Parameters = Field(default_factory=dict)
    samples: Whole | None
    fingerprint: str
    model: ModelFacts | None = Field(default=None, description="compared with that of your training")
    flops_per_sample: Figure | None = Field(
        default=None, description="of a training step's matrix products, convolutions and attention"
    )
    padding_fraction: Share | None = Field(
        default=None, description="of a batch's tokens; null: batches do not show it"
    )
    script: ScriptRecord | None = Field(default=None, description="null: a build()")

    @classmethod
    def of(cls, facts: WorkloadFacts, parameters: Parameters, script: ScriptRecord | None = None) -> WorkloadRecord:
        """The record of a workload whose facts are known, trained with some arguments of `build()`."""
        values = {name: getattr(facts, name) for name in cls.model_fields.keys() - {"parameters", "script"}}
        return cls(parameters=parameters, script=script, **values)


class Side(Stored):
    """A config and its measurement."""

    config: Annotated[TrainConfig, BeforeValidator(_known_knobs)]
    parameters: Parameters = Field(default_factory=dict)
    measurement: Measurement | None

    @property
    def point(self) -> Point:
        """The config and the arguments of `build()`."""
        return Point(config=self.config, parameters=self.parameters)

    @classmethod
    def of(cls, point: Point, measurement: Measurement | None) -> Side:
        """A point and its measurement."""
        return cls(config=point.config, parameters=point.parameters, measurement=measurement)


class AblationRow(Stored):
    """What one changed knob was worth: the estimate of the search's model from all pairs that played."""

    knob: str
    before: str
    after: str
    ratio: Figure = Field(description="score of the answer, over its score with this knob unchanged")
    ci95: KnownInterval = Field(description="the model's; where it holds 1, the change may be worth nothing")


class Constraints(Stored):
    """The request, and the limits of the search."""

    objective: ObjectiveName = Field(default=SAMPLES_PER_SECOND.name, description="what was maximised")
    at_least: Share | None = Field(default=None, description="of the fastest config's rate, to be kept; null: any")
    budget_seconds: Seconds
    device: DeviceKind
    effective_batch: Whole | None = Field(description="None: free")
    memory_target: Share
    memory_limit_bytes: Whole | None = None
    utilization_target: Share
    pinned: dict[str, Scalar] = Field(default_factory=dict, description="knob: its value, or <= and the highest")
    only: tuple[str, ...] | None = None
    explored: dict[str, tuple[Scalar, ...]] = Field(default_factory=dict)
    sampler: str
    seed: int = Field(ge=-(2**63), lt=2**64)


class WarmStartRecord(Stored):
    """Another machine's result that the search started from, and whether it helped."""

    source: str = Field(description="the result file")
    machine: str
    same_workload: bool = Field(description="the fingerprints are alike")
    changes: dict[str, Scalar] = Field(description="its config here: knobs that differ from the baseline")
    adapted: tuple[str, ...] = Field(default=(), description="what had to be changed for this machine")
    samples_per_second: Figure | None
    helped: bool = Field(description="faster than the baseline, and at once near the answer's rate")
    verdict: str


class SearchRecord(Stored):
    """How the search went."""

    seconds: Seconds
    bursts: Whole
    outcomes: dict[str, Whole]
    measuring_fraction: Share = Field(description="share of the seconds spent in warm-up and timed steps")
    resumed_bursts: Whole = 0
    disturbed_bursts: Whole = Field(default=0, description="bursts disturbed by other load or throttling")
    warm_start: tuple[WarmStartRecord, ...] = ()
    skipped_knobs: dict[str, str] = Field(default_factory=dict, description="knob: why it was not searched")
    notes: tuple[str, ...] = ()


class CardState(Stored):
    """A GPU's clock, power and temperature in one round of a proof."""

    sm_clock_mhz: Figure = Field(description="median")
    sm_clock_min_mhz: Figure | None = None
    power_watts: Figure | None = Field(default=None, description="mean")
    temperature_celsius: float | None = Field(default=None, description="highest")
    clock_limits: tuple[str, ...] = Field(default=(), description="what held the clocks down, as NVML names it")


class TrialRecord(Stored):
    """One burst of the search."""

    stage: str
    turn: Whole | None = Field(
        default=None, description="trials with the same number challenged the same partner, block by block"
    )
    reason: str = Field(description="why it was run")
    changes: dict[str, Scalar] = Field(default_factory=dict, description="knobs and arguments unlike the baseline's")
    outcome: Outcome
    failure: str | None = Field(default=None, description="why it did not end well")
    samples_per_second: Figure | None = None
    score: Figure | None = Field(
        default=None, description="by the objective, through its duet where it had one; null where that is the rate"
    )
    partner: dict[str, Scalar] | None = Field(
        default=None, description="in a duet: what the other side changed from the baseline; null where it ran alone"
    )
    ratio: Figure | None = Field(default=None, description="in a duet: its score over the partner's")
    ci95: KnownInterval | None = Field(default=None, description="of that ratio")
    seconds: Seconds = Field(description="from the request until the last process has ended")
    compile_seconds: Seconds | None = None
    memory_bytes: Whole | None = Field(default=None, description="of the device, at its peak")
    disturbance: str | None = None
    card: CardState | None = Field(default=None, description="in a round on an NVIDIA GPU")

    @property
    def ok(self) -> bool:
        """Whether it ended well."""
        return self.outcome is Outcome.OK


class PeakShare(Stored):
    """The share of this machine's peak that a part of training reaches."""

    side: SideName
    part: Literal["compute", "memory", "loading"]
    reached: Figure = Field(
        description="FLOP/s of the model; least bytes per second that weights, gradients, optimizer and batches move; "
        "samples per second"
    )
    peak: Figure = Field(gt=0, description="of a matrix product; of a copy in the device's memory; of the loader alone")
    precision: str | None = Field(default=None, description="of that matrix product")

    @property
    def share(self) -> float:
        """The reached share of the peak; above 1 where the device's caches relieve its memory."""
        return self.reached / self.peak


class Diagnosis(Stored):
    """The limits of the training, and their evidence."""

    ceilings: dict[str, Figure | None] = Field(
        default_factory=dict, description="samples per second that each part reaches alone; null: not measured"
    )
    data_wait_fraction: Figure | None
    headroom: Headroom | None = Field(default=None, description="of the baseline, before the search")
    advice: tuple[str, ...] = Field(default=(), description="what only the user can change, with what it could gain")
    growth: tuple[Growth, ...] = Field(default=(), description="what runs out if it keeps growing")
    peak_shares: tuple[PeakShare, ...] = Field(default=(), description="whether this speed is normal here")
    before: Profile | None = Field(default=None, description="of the baseline")
    after: Profile | None = Field(default=None, description="of best")


class EvaluationBatch(Stored):
    """A batch size that was tried for evaluating."""

    batch_size: Whole = Field(ge=1)
    outcome: Outcome
    samples_per_second: Figure | None = Field(description="forward only")
    ratio: Figure | None = Field(description="its speed over that of the best before; null for the first, and failures")


class Evaluation(Stored):
    """The batch size for evaluation, which may differ from that for training."""

    batch_size: Whole = Field(ge=1)
    samples_per_second: Figure | None = Field(description="forward only")
    ratio: Figure = Field(gt=0, description="its speed over that of training's own batch, evaluated")
    tried: tuple[EvaluationBatch, ...] = ()


class ScalingStep(Stored):
    """The answer on some of its ranks."""

    ranks: Whole = Field(ge=1)
    outcome: Outcome
    ratio: Figure | None = Field(description="its speed over that on the ranks of the step before")
    ci95: KnownInterval | None = Field(default=None, description="of that ratio")
    speed: Figure | None = Field(description="over that of the fewest ranks, chained; null where it did not train")


class Scaling(Stored):
    """How many ranks pay: the answer on 1, 2, 4 … ranks, with the same effective batch."""

    steps: tuple[ScalingStep, ...]

    @property
    def trained(self) -> tuple[ScalingStep, ...]:
        """The steps that have a speed."""
        return tuple(step for step in self.steps if step.speed is not None)

    def efficiency(self, step: ScalingStep) -> float | None:
        """A step's speed per rank, over that of the fewest ranks; None where it has no speed."""
        first = self.trained[0]
        return None if step.speed is None else step.speed * first.ranks / step.ranks

    @property
    def paying(self) -> int:
        """The largest number of ranks that was certainly faster than the number before, and faster than all fewer."""
        best = self.trained[0]
        for step in self.trained[1:]:
            if step.ci95 is not None and step.ci95.low > 1 and (step.speed or 0.0) > (best.speed or 0.0):
                best = step
        return best.ranks


class Result(Document):
    """One tuned workload on one machine."""

    SCHEMA: ClassVar[str] = "autotune.result/2"
    NOUN: ClassVar[str] = "result file"
    REMEDY: ClassVar[str] = "tune again"

    # "schema" itself would shadow a method of pydantic's BaseModel.
    schema_: Literal["autotune.result/2"] = Field(default="autotune.result/2", alias="schema")
    status: Literal["complete", "partial"]
    created: AwareDatetime
    workload: WorkloadRecord
    hardware: Hardware
    machine_name: str | None = Field(default=None, description="as you named it; null: named after its hardware")
    dollars_per_hour: Dollars | None = Field(default=None, description="of the machine, as you gave it")
    software: Software
    baseline: Side
    best: Side
    speedup: Speedup | None = Field(description="of best over baseline; None: not confirmed")
    speedup_reason: str | None = Field(default=None, description="why there is no confirmed speed-up")
    ablation: tuple[AblationRow, ...] = ()
    numerics: Numerics | None = Field(default=None, description="of best, beside eager fp32")
    evaluation: Evaluation | None = Field(default=None, description="of best, with --evaluation")
    scaling: Scaling | None = Field(default=None, description="of best, where several ranks train")
    constraints: Constraints
    stopped_by: Literal["budget", "target", "plateau", "exhausted", "interrupted", "end of training"]
    search: SearchRecord
    trials: tuple[TrialRecord, ...] = Field(default=(), description="all bursts, in the order in which they ran")
    diagnosis: Diagnosis

    @property
    def machine(self) -> str:
        """Its name, if you gave one, or its hardware: ``NVIDIA GeForce RTX 4070, 16 CPUs``, ``Intel Xeon, 2 CPUs``."""
        return self.machine_name or self.hardware.machine(self.constraints.device)

    @property
    def device(self) -> DeviceKind:
        """The kind of device that trained."""
        return self.constraints.device

    @property
    def objective(self) -> Objective:
        """The maximised objective."""
        return objective_named(self.constraints.objective)

    def score_of(self, side: Side | TrialRecord) -> float | None:
        """The score of a side, or of a burst of the search; None where it is not known."""
        if isinstance(side, TrialRecord):
            return side.samples_per_second if side.score is None and self.objective.is_rate else side.score
        return self.objective.score(side.measurement) if side.measurement is not None else None

    def compared(self, trial: TrialRecord) -> float | None:
        """The score of a burst over the baseline's: over that of its rounds, or over its first one in the search."""
        first = next((one for one in self.trials if one.ok and not one.changes and one.stage not in PROVING), None)
        beside = self.baseline if first is None or trial.stage in PROVING else first
        score, base = self.score_of(trial), self.score_of(beside)
        return score / base if score is not None and base else None

    @property
    def time_shares(self) -> dict[str, float]:
        """The share of the time for which each part of the training is busy; parts that overlap exceed 1 together.

        A part is busy for the reached rate over its rate alone, and the loader at least while training waits for data.
        ``overhead`` is what neither computing nor waiting explains. Empty without a measurement.
        """
        after, waits = self.best.measurement, self.diagnosis.data_wait_fraction
        if after is None or waits is None:
            return {}
        shares = {part: after.samples_per_second / rate for part, rate in self.diagnosis.ceilings.items() if rate}
        shares["loader"] = max(shares.get("loader", 0.0), waits)
        if "compute" in shares:
            shares["overhead"] = 1 - waits - shares["compute"]
        return shares

    @computed_field  # type: ignore[prop-decorator]
    @property
    def bottleneck(self) -> str | None:
        """The part that is busy longest; None where that may be computing, which was not measured alone."""
        shares = self.time_shares
        part = max(shares, key=shares.__getitem__, default=None)
        return part if part is not None and ("compute" in shares or shares[part] > 0.5) else None

    def peak_share(self, part: str, side: SideName) -> PeakShare | None:
        """The share of a part's peak that a side reaches; None where it is not known."""
        shares = self.diagnosis.peak_shares
        return next((share for share in shares if (share.part, share.side) == (part, side)), None)

    @property
    def changed_knobs(self) -> dict[str, tuple[Any, Any]]:
        """Knobs and build parameters in which best differs from baseline: ``{knob: (before, after)}``."""
        return self.best.point.changes_from(self.baseline.point)


def read_result(path: Path | str) -> Result:
    """The result in a file; raises what `read_document` raises."""
    return read_document(path, Result)


def place_of_partial(path: Path, *, proves: bool = True) -> Path:
    """Where a partial result goes: beside a file with a complete result, or with content that cannot be read.

    If it proves no gain, it also goes beside a partial one that does.
    """
    try:
        former = read_result(path)
        has_proof = former.speedup is not None and former.speedup.confirmed
        stays = former.status == "complete" or (has_proof and not proves)
    except ResultFileError:
        stays = os.path.isfile(path) and os.path.getsize(path) > 0
    return path.with_stem(f"{path.stem}-partial") if stays else path
