"""The findings of an examination, and their file. They hold for one driver and one version of torch."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from pydantic import AwareDatetime, ConfigDict, Field, ValidationError, computed_field

from autotune.files import write_whole
from autotune.hardware import DeviceKind, Gpu, Hardware
from autotune.knobs import Scalar
from autotune.stored import Seconds, Stored

Status = Literal["ok", "does not hold", "not here"]
TEN = (
    "torch is built for the card, and bf16 is as fast as fp16",
    "knobs work, and memory that runs out is reported as such",
    "other programs on the GPU are seen",
    "a config equals itself at 30, 48 and 90 % of memory",
    "rates are those of a plain loop, as `build()` and as a script",
    "code that is compiled beside other training is the same",
    "a model that waits for launches: candidates are decided, one micro-batch among the first",
    "a model that computes: compiled candidates work",
    "a script: candidates are decided",
    "turns keep the rate and the clock of training without interruption",
)
"""The points that verify a device: the doctor checks them in short, `benchmarks.gpu_half_hour` at length."""


class Drop(Stored):
    """A value of a knob that does not work here."""

    knob: str
    value: Scalar
    reason: str  # in a few words


class Finding(Stored):
    """The outcome of one check."""

    name: str
    status: Status  # "not here": this machine has nothing to check
    found: str  # what the check saw, with its figures
    remedy: str = ""  # if it does not hold
    decisive: bool = False  # a failure makes figures untrustworthy; otherwise something is only left out, or slower
    drops: tuple[Drop, ...] = ()  # left out of the search
    seconds: Seconds = 0.0
    point: int = Field(default=0, ge=0, le=len(TEN))  # number among `TEN`, from 1 on; 0: none of them
    goal: str = ""  # what it was compared with, where `found` does not say so

    @classmethod
    def of(cls, name: str, *, holds: bool, found: str, remedy: str, decisive: bool = False) -> Finding:
        """A finding on something that this machine has; `remedy` counts only if it does not hold."""
        status: Status = "ok" if holds else "does not hold"
        return cls(name=name, status=status, found=found, remedy="" if holds else remedy, decisive=decisive)

    @classmethod
    def none(cls, name: str, why: str) -> Finding:
        """A finding that this machine has nothing to check."""
        return cls(name=name, status="not here", found=why)


class Examination(Stored):
    """All findings on one machine, in the order of the checks."""

    model_config = ConfigDict(populate_by_name=True)

    # Collections of results skip a file with this mark. "schema" itself would shadow a method of pydantic's BaseModel.
    schema_: Literal["autotune.doctor/1"] = Field(default="autotune.doctor/1", alias="schema")
    created: AwareDatetime
    machine: str  # as `Hardware.machine` names it
    device: DeviceKind
    driver: str | None  # of the GPU; None on a CPU
    torch: str | None
    seconds: Seconds
    findings: tuple[Finding, ...]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def trusted(self) -> bool:
        """Whether nothing decisive failed."""
        return not any(finding.decisive and finding.status == "does not hold" for finding in self.findings)

    @property
    def drops(self) -> tuple[Drop, ...]:
        """All values to leave out of the search."""
        return tuple(drop for finding in self.findings for drop in finding.drops)

    @property
    def ten(self) -> tuple[Status, ...]:
        """The status of each of the `TEN` points, by all findings about it."""
        statuses = [{finding.status for finding in self.findings if finding.point == n + 1} for n in range(len(TEN))]
        order: tuple[Status, ...] = ("does not hold", "ok")
        return tuple(next((status for status in order if status in seen), "not here") for seen in statuses)

    def to_json(self) -> str:
        """The examination as JSON."""
        return self.model_dump_json(by_alias=True, indent=2)

    def write(self, path: Path) -> None:
        """Writes the examination to a file.

        Raises:
            OSError: The file cannot be written.
        """
        write_whole(path, self.to_json() + "\n")


def examination_of(hardware: Hardware, device: DeviceKind, findings: Sequence[Finding], seconds: float) -> Examination:
    """An examination of these findings, with the versions that they hold for."""
    return Examination(
        created=datetime.now(timezone.utc), machine=hardware.machine(device), device=device,
        driver=_driver(hardware, device), torch=hardware.software.torch, seconds=seconds, findings=tuple(findings),
    )  # fmt: skip


def known_examination(folder: Path, hardware: Hardware, device: DeviceKind) -> Examination | None:
    """The stored examination of a device; None if there is none, or the machine, driver or torch is another."""
    try:
        stored = Examination.model_validate_json(examination_path(folder, device).read_bytes())
    except (OSError, ValidationError):
        return None
    same = (hardware.machine(device), device, _driver(hardware, device), hardware.software.torch)
    return stored if (stored.machine, stored.device, stored.driver, stored.torch) == same else None


def examination_path(folder: Path, device: DeviceKind) -> Path:
    """The file of one device's examination: examining the CPU does not overwrite that of the GPU."""
    return folder / f"doctor-{device}.json"


def _driver(hardware: Hardware, device: DeviceKind) -> str | None:
    record = hardware.device(device)
    return record.driver if isinstance(record, Gpu) else None
