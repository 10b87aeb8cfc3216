"""The result file: one pydantic model, written whole or not at all, with an error for each way to fail."""

from __future__ import annotations

import json
import secrets
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autotune.errors import ResultFileError
from autotune.files import write_whole
from autotune.hardware.model import Hardware, Software
from autotune.knobs.config import Parameters, TrainConfig
from autotune.knobs.facts import ModelFacts
from autotune.measuring.numerics import Numerics
from autotune.measuring.objective import SAMPLES_PER_SECOND, Objective, objective_named
from autotune.measuring.profiles import Profile
from autotune.measuring.records import Measurement, Outcome, Point
from autotune.measuring.speedup import Speedup
from autotune.measuring.statistics import Interval

SCHEMA = "autotune.result/1"
ABLATION_MIN_BUDGET_SECONDS = 120.0
"""In a shorter budget, what explaining takes would be missing where the gain is found and confirmed."""


class Part(BaseModel):
    """Base of all parts: frozen; NaN and infinity are no figures."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class WorkloadRecord(Part):
    """What was trained."""

    target: str
    name: str
    parameters: Parameters = {}
    samples: int | None = Field(ge=0, le=2**53)
    fingerprint: str
    model: ModelFacts | None = Field(default=None, description="by which a training script's own is compared")


class Side(Part):
    """A config and what it was measured to do."""

    config: TrainConfig
    parameters: Parameters = {}
    measurement: Measurement | None

    @property
    def point(self) -> Point:
        """What was measured."""
        return Point(config=self.config, parameters=self.parameters)


class AblationRow(Part):
    """One changed knob reverted alone: what was it worth?"""

    knob: str
    before: str
    after: str
    ratio: float
    ci95: Interval


class Constraints(Part):
    """What the search was asked for, and had to respect."""

    objective: str = Field(default=SAMPLES_PER_SECOND.name, description="what was maximised")
    budget_seconds: float
    device: str
    effective_batch: int | None = Field(description="None: free")
    memory_target: float
    memory_limit_bytes: int | None = None
    utilization_target: float
    max_workers: int | None = None
    pinned: dict[str, Any] = {}
    only: tuple[str, ...] | None = None
    explored: dict[str, tuple[Any, ...]] = {}
    sampler: str
    seed: int


class WarmStartRecord(Part):
    """Another machine's result that the search began with, and whether it helped."""

    source: str = Field(description="the result file")
    machine: str
    same_workload: bool = Field(description="the fingerprints are alike")
    changes: dict[str, Any] = Field(description="its config here: knobs that differ from the baseline")
    adapted: tuple[str, ...] = Field(default=(), description="what had to be changed for this machine")
    samples_per_second: float | None
    helped: bool = Field(description="faster than the baseline, and at once near the answer's rate")
    verdict: str


class SearchRecord(Part):
    """How the search went."""

    seconds: float
    bursts: int
    outcomes: dict[str, int]
    measuring_fraction: float = Field(description="share of the seconds spent in warm-up and timed steps")
    resumed_bursts: int = 0
    disturbed_bursts: int = Field(default=0, description="whose figure other load or throttling has touched")
    repeated_bursts: int = Field(default=0, description="runs thrown away because they were disturbed")
    drift: float = Field(default=0.0, description="largest change of the machine's speed, as a share; above 0.1: noisy")
    noisy: bool = Field(default=False, description="the machine drifted so much that intervals were widened")
    warm_start: tuple[WarmStartRecord, ...] = ()
    skipped_knobs: dict[str, str] = Field(default_factory=dict, description="knob: why it was not searched")
    notes: tuple[str, ...] = ()


class TrialRecord(Part):
    """One burst of the search."""

    stage: str
    reason: str = Field(description="why it was run")
    changes: dict[str, Any] = Field(default_factory=dict, description="knobs and arguments that differ from baseline")
    outcome: Outcome
    failure: str | None = Field(default=None, description="why it did not end well")
    samples_per_second: float | None = None
    score: float | None = Field(default=None, description="by the objective; null where that is the rate")
    seconds: float = Field(description="from the request to the last process gone")
    compile_seconds: float | None = None
    memory_bytes: int | None = Field(default=None, description="of the device, at its peak")
    disturbance: str | None = None


class Diagnosis(Part):
    """What limits the training now."""

    bottleneck: str | None
    ceilings: dict[str, float | None] = {}
    data_wait_fraction: float | None
    advice: tuple[str, ...] = Field(default=(), description="what only the user can change, with what it could gain")
    before: Profile | None = Field(default=None, description="of the baseline")
    after: Profile | None = Field(default=None, description="of best")


class Result(Part):
    """One tuned workload on one machine."""

    # "schema" itself would shadow a method of pydantic's BaseModel.
    schema_: Literal["autotune.result/1"] = Field(default="autotune.result/1", alias="schema")
    status: Literal["complete", "partial"]
    created: datetime
    workload: WorkloadRecord
    hardware: Hardware
    software: Software
    baseline: Side
    best: Side
    speedup: Speedup | None = Field(description="of best over baseline; None: not confirmed")
    speedup_reason: str | None = Field(default=None, description="why there is no confirmed speed-up")
    ablation: tuple[AblationRow, ...] = ()
    numerics: Numerics | None = Field(default=None, description="of best, beside eager fp32")
    constraints: Constraints
    stopped_by: Literal["budget", "target", "plateau", "exhausted", "interrupted"]
    search: SearchRecord
    trials: tuple[TrialRecord, ...] = Field(default=(), description="all bursts, in the order in which they ran")
    diagnosis: Diagnosis

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, populate_by_name=True)

    @property
    def machine(self) -> str:
        """What trained: ``NVIDIA GeForce RTX 4070, 16 CPUs`` or ``Intel Xeon, 2 CPUs``."""
        return self.hardware.machine(self.constraints.device.partition(":")[0])  # type: ignore[arg-type]

    @property
    def objective(self) -> Objective:
        """What was maximised.

        Raises:
            UsageError: This version does not know it.
        """
        return objective_named(self.constraints.objective)

    def score_of(self, side: Side | TrialRecord) -> float | None:
        """What a side, or a burst of the search, reached by the objective; None where that is not known."""
        if isinstance(side, TrialRecord):
            return side.samples_per_second if self.objective.is_rate else side.score
        return self.objective.score(side.measurement) if side.measurement is not None else None

    @property
    def changed_knobs(self) -> dict[str, tuple[Any, Any]]:
        """Knobs and build parameters in which best differs from baseline: ``{knob: (before, after)}``."""
        return self.best.point.changes_from(self.baseline.point)


def write_result(result: Result, path: Path) -> None:
    """Writes the file whole or not at all.

    Raises:
        ResultFileError: When the file cannot be written; nothing is left behind.
    """
    try:
        write_whole(path, result.model_dump_json(by_alias=True, indent=2) + "\n")
    except OSError as error:
        reason = error.strerror or error
        raise ResultFileError(
            f"the result could not be written to {path}: {reason}; choose another place with --out"
        ) from error


def keep_result(result: Result, path: Path) -> tuple[Path | None, ResultFileError | None]:
    """Writes the file; where that fails, into the temporary folder: hours of search are not lost to a full disk.

    Returns:
        Where it lies, None when it could be written nowhere; and what went wrong with the wanted place, if it did.
    """
    try:
        write_result(result, path)
    except ResultFileError as error:
        failure = error
    else:
        return path, None
    try:
        place = Path(tempfile.gettempdir()) / f"autotune-result-{path.stem}-{secrets.token_hex(4)}.json"
        write_result(result, place)
    except (OSError, ResultFileError):  # OSError: there is no temporary folder
        return None, failure
    return place, ResultFileError(f"{failure}; until then it lies in {place}")


def read_result(path: Path | str) -> Result:
    """The result in a file.

    Raises:
        ResultFileError: Missing, unreadable, not JSON, newer or older, or not valid; it says which.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ResultFileError(f"a result file was expected at {path}, but there is none") from None
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or no possible path
        raise ResultFileError(f"{path} cannot be read: {error}") from None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ResultFileError(f"{path} is not a result file: it is not valid JSON ({error}); tune again") from None
    return parse_result(data, str(path))


def parse_result(data: Any, origin: str) -> Result:
    """A result from decoded JSON; `origin` names it in errors.

    Raises:
        ResultFileError: When the data is of another schema, or not valid.
    """
    if not isinstance(data, dict) or not isinstance(data.get("schema"), str):
        raise ResultFileError(f'{origin} is not a result of autotune: it has no "schema": "{SCHEMA}"; tune again')
    _check_schema(data["schema"], origin)
    try:
        return Result.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "its content"
        raise ResultFileError(
            f"{origin} is broken: {where}: {first['msg'].lower()}; tune again, or restore the file"
        ) from None


def _check_schema(schema: str, origin: str) -> None:
    """Tells a foreign file, a newer schema and an older one apart."""
    if schema == SCHEMA:
        return
    family, _, version = schema.rpartition("/")
    if family != SCHEMA.rpartition("/")[0] or not (version.isascii() and version.isdigit()):
        raise ResultFileError(
            f"{origin} has the schema {schema!r}, but {SCHEMA!r} was expected; is it another program's file?"
        )
    if int(version[:9]) > int(SCHEMA.rpartition("/")[2]):
        raise ResultFileError(
            f"{origin} was written by a newer autotune ({schema}); this one reads {SCHEMA}: upgrade autotune"
        )
    raise ResultFileError(f"{origin} was written by an older autotune ({schema}); this one reads {SCHEMA}: tune again")
