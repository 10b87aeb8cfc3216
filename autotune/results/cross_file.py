"""The file of `autotune cross`: what another machine's config does here, beside what this machine trains with."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from autotune.errors import ResultFileError
from autotune.files import write_whole
from autotune.hardware.model import Hardware, Software, slug
from autotune.measuring.records import Outcome
from autotune.measuring.speedup import Speedup
from autotune.results.result import Part, Result, Side, WorkloadRecord
from autotune.results.summary import ratios
from autotune.wording import percent, ratio_text

SCHEMA = "autotune.cross/1"
RESULTS = Path("results")
"""Where the files of all machines are kept, a folder a machine."""


class Origin(Part):
    """The result that the config comes from."""

    machine: str = Field(description="what trained there")
    slug: str = Field(description="the machine's folder name")
    hostname: str
    device: str
    created: datetime
    fingerprint: str = Field(description="of the workload there")


class OwnSide(Side):
    """This machine's own tuned config."""

    path: str = Field(description="of its result file, as it was named")
    created: datetime


class Cross(Part):
    """One machine's config, measured on another one in interleaved rounds."""

    # "schema" itself would shadow a method of pydantic's BaseModel.
    schema_: Literal["autotune.cross/1"] = Field(default="autotune.cross/1", alias="schema")
    created: datetime
    workload: WorkloadRecord = Field(description="as it is here")
    machine: str = Field(description="what trained here")
    hardware: Hardware
    software: Software
    device: str
    config_of: Origin
    theirs: Side = Field(description="the other machine's tuned config, as it was measured here")
    baseline: Side = Field(description="the other result's baseline, as it was measured here")
    own: OwnSide | None = Field(description="None: there is no result of this machine")
    outcome: Outcome = Field(description="how bursts of their config end here")
    failure: str | None = Field(default=None, description="why they do not end well")
    over_own: Speedup | None = Field(description="of their config over this machine's own")
    over_own_reason: str | None = Field(default=None, description="why that was not measured")
    over_baseline: Speedup | None = Field(description="of their config over the baseline")
    over_baseline_reason: str | None = Field(default=None, description="why that was not measured")
    rounds: int = Field(ge=0, description="interleaved rounds in which something was measured")
    notes: tuple[str, ...] = Field(default=(), description="what is not as it was where the config comes from")

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, populate_by_name=True)

    @property
    def ran(self) -> bool:
        """Whether their config trains here."""
        return self.outcome is Outcome.OK

    @property
    def same_config(self) -> bool:
        """Whether this machine's own config is the very same."""
        own, theirs = self.own, self.theirs
        return own is not None and own.point == theirs.point

    @property
    def finding(self) -> str:
        """What came of it, in words that follow the machine's name: ``loses 17 % (13 – 21 %) with the config of …``."""
        whose = f"the config of {self.config_of.machine}"
        if not self.ran:
            return f"cannot train with {whose}: {self.failure}"
        if self.same_config:
            found = f"has come to the same config as {self.config_of.machine}"
        elif self.over_own is not None:
            found = f"{gain_text(self.over_own)} with {whose}: {ratio_with_interval(self.over_own)} of its own"
        else:
            found = f"was measured with {whose}, but not against its own: {self.over_own_reason}"
        if self.over_baseline is not None:
            found += f"; over the baseline it is {ratio_with_interval(self.over_baseline)}"
        return found


def ratio_with_interval(speedup: Speedup) -> str:
    """A ratio with its 95 % interval: ``0.83× (0.79 – 0.87)``."""
    return f"{ratio_text(speedup.ratio)} ({ratios(speedup.ci95)})"


def gain_text(speedup: Speedup) -> str:
    """A ratio as a gain or a loss with its 95 % interval, ``loses 17 % (13 – 21 %)``; neither where that includes 1."""
    low, high = speedup.ci95
    if low <= 1 <= high:
        return "neither gains nor loses beyond doubt"
    ends = sorted((abs(low - 1), abs(high - 1)))
    digits = 0 if ends[0] >= 0.1 else 1
    spread = f"{ends[0] * 100:.{digits}f} – {percent(ends[1], digits)}"
    return f"{'gains' if low > 1 else 'loses'} {percent(abs(speedup.ratio - 1), digits)} ({spread})"


def origin_of(result: Result) -> Origin:
    """Where a config comes from."""
    return Origin(
        machine=result.machine,
        slug=result.hardware.slug,
        hostname=result.hardware.hostname,
        device=result.constraints.device,
        created=result.created,
        fingerprint=result.workload.fingerprint,
    )


def default_cross_path(cross: Cross, results: Path = RESULTS) -> Path:
    """``results/<this machine>/cross/<workload>-from-<other machine>.json``."""
    name = f"{slug(cross.workload.target)}-from-{cross.config_of.slug}.json"
    return results / cross.hardware.slug / "cross" / name


def write_cross(cross: Cross, path: Path) -> None:
    """Writes the file whole or not at all.

    Raises:
        ResultFileError: When the file cannot be written; nothing is left behind.
    """
    try:
        write_whole(path, cross.model_dump_json(by_alias=True, indent=2) + "\n")
    except OSError as error:
        reason = error.strerror or error
        raise ResultFileError(
            f"what was measured could not be written to {path}: {reason}; choose another place with --out"
        ) from error


def read_cross(path: Path | str) -> Cross:
    """The cross in a file.

    Raises:
        ResultFileError: Missing, unreadable, not JSON, newer or older, or not valid; it says which.
    """
    path = Path(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ResultFileError(f"a cross file was expected at {path}, but there is none") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ResultFileError(f"{path} cannot be read: {error}; run 'autotune cross' again") from None
    return parse_cross(data, str(path))


def parse_cross(data: Any, origin: str) -> Cross:
    """A cross from decoded JSON; `origin` names it in errors.

    Raises:
        ResultFileError: When the data is of another schema, or not valid.
    """
    schema = data.get("schema") if isinstance(data, dict) else None
    if not _of_this_family(schema):
        raise ResultFileError(
            f"{origin} is not a file of 'autotune cross': its schema is {schema!r}, but {SCHEMA!r} was expected"
        )
    if schema != SCHEMA:
        raise ResultFileError(
            f"{origin} was written by another version of autotune ({schema}); this one reads {SCHEMA}: "
            "run 'autotune cross' again, or upgrade autotune"
        )
    try:
        return Cross.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "its content"
        raise ResultFileError(
            f"{origin} is broken: {where}: {first['msg'].lower()}; run 'autotune cross' again"
        ) from None


def is_cross_file(path: Path | str) -> bool:
    """Whether a file says that `autotune cross` wrote it, in whatever version; False where it cannot be read."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(data, dict) and _of_this_family(data.get("schema"))


def _of_this_family(schema: object) -> bool:
    return isinstance(schema, str) and schema.rpartition("/")[0] == SCHEMA.rpartition("/")[0]
