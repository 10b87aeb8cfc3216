"""The file of `autotune cross`: another machine's config measured here, beside this machine's own."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import AwareDatetime, Field

from autotune.files import stem_of
from autotune.hardware import DeviceKind, Hardware, Software
from autotune.measuring import SAMPLES_PER_SECOND, ObjectiveName, Outcome, Speedup, objective_named
from autotune.results.files import Document
from autotune.results.result import Result, Side, WorkloadRecord
from autotune.results.summary import ratio_with_interval
from autotune.stored import Stored, Whole
from autotune.wording import percent

RESULTS = Path("results")
"""Folder for the files of all machines, with a folder for each."""


class Origin(Stored):
    """The result that the config comes from."""

    machine: str = Field(description="what trained there")
    slug: str = Field(description="the machine's folder name")
    hostname: str
    device: DeviceKind
    created: AwareDatetime
    fingerprint: str = Field(description="of the workload there")

    @property
    def where(self) -> tuple[str, str, str]:
        """The hardware that trained, its host, and the kind of device."""
        return self.machine, self.hostname, self.device


class OwnSide(Side):
    """This machine's own tuned config."""

    path: str = Field(description="of its result file, as you gave it")
    created: AwareDatetime


class Cross(Document):
    """One machine's config, measured on another one in interleaved rounds."""

    SCHEMA: ClassVar[str] = "autotune.cross/2"
    NOUN: ClassVar[str] = "cross file"
    REMEDY: ClassVar[str] = "run 'autotune cross' again"

    # "schema" itself would shadow a method of pydantic's BaseModel.
    schema_: Literal["autotune.cross/2"] = Field(default="autotune.cross/2", alias="schema")
    created: AwareDatetime
    workload: WorkloadRecord = Field(description="as it is here")
    machine: str = Field(description="what trained here")
    hardware: Hardware
    software: Software
    device: DeviceKind
    config_of: Origin
    theirs: Side = Field(description="the other machine's tuned config, as it was measured here")
    baseline: Side = Field(description="the other result's baseline, as it was measured here")
    own: OwnSide | None = Field(description="None: this machine has no result")
    outcome: Outcome = Field(description="how bursts of their config end here")
    failure: str | None = Field(default=None, description="why they do not end well")
    objective: ObjectiveName = Field(default=SAMPLES_PER_SECOND.name, description="what the two below compare")
    over_own: Speedup | None = Field(description="of their config over this machine's own")
    over_own_reason: str | None = Field(default=None, description="why that was not measured")
    over_baseline: Speedup | None = Field(description="of their config over the baseline")
    over_baseline_reason: str | None = Field(default=None, description="why that was not measured")
    rounds: Whole = Field(description="interleaved rounds in which something was measured")
    notes: tuple[str, ...] = Field(default=(), description="differences from the machine that the config comes from")

    @property
    def ran(self) -> bool:
        """Whether their config trains here."""
        return self.outcome is Outcome.OK

    @property
    def same_config(self) -> bool:
        """Whether this machine's own config is the same."""
        return self.own is not None and self.own.point == self.theirs.point

    @property
    def unit(self) -> str:
        """What a gain is in, to follow it: `` in samples/J``; empty for the rate."""
        objective = objective_named(self.objective)
        return "" if objective.is_rate else f" in {objective.unit}"

    @property
    def finding(self) -> str:
        """The outcome, in words that follow the machine's name: ``loses 17 % (13 – 21 %) with the config of …``."""
        whose = f"the config of {self.config_of.machine}"
        if not self.ran:
            return f"cannot train with {whose}: {self.failure}"
        if self.same_config:
            sentence = f"has the same config as {self.config_of.machine}"
        elif self.over_own is not None:
            gain = f"{gain_or_loss(self.over_own)}{self.unit} with {whose}"
            sentence = f"{gain}: {ratio_with_interval(self.over_own)} of its own"
        else:
            sentence = f"was measured with {whose}, but not against its own: {self.over_own_reason}"
        if self.over_baseline is not None:
            sentence += f"; over the baseline it is {ratio_with_interval(self.over_baseline)}{self.unit}"
        return sentence


def gain_or_loss(speedup: Speedup) -> str:
    """A ratio as a gain or a loss with its 95 % interval, ``loses 17 % (13 – 21 %)``, if the interval excludes 1."""
    low, high = speedup.ci95
    if low <= 1 <= high:
        return "shows no certain gain or loss"
    ends = sorted((abs(low - 1), abs(high - 1)))
    digits = 0 if ends[0] >= 0.1 else 1
    spread = f"{ends[0] * 100:.{digits}f} – {percent(ends[1], digits)}"
    return f"{'gains' if low > 1 else 'loses'} {percent(abs(speedup.ratio - 1), digits)} ({spread})"


def origin_of(result: Result) -> Origin:
    """The origin of a result's config."""
    return Origin(
        machine=result.machine,
        slug=result.hardware.slug,
        hostname=result.hardware.hostname,
        device=result.constraints.device,
        created=result.created,
        fingerprint=result.workload.fingerprint,
    )


def default_cross_path(cross: Cross) -> Path:
    """``results/<this machine>/cross/<workload>-<device>-from-<other machine>-<its host>-<its device>.json``."""
    other = stem_of(" ".join(cross.config_of.where))
    name = f"{stem_of(cross.workload.target)}-{cross.device}-from-{other}.json"
    return RESULTS / cross.hardware.slug / "cross" / name
