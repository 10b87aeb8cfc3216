"""The findings of an examination, and their file. They hold for one driver and one version of torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field, ValidationError

from autotune.files import write_whole
from autotune.hardware import DeviceKind, Gpu, Hardware
from autotune.knobs import Scalar
from autotune.stored import Seconds, Stored

Status = Literal["ok", "does not hold", "not here"]


class Drop(Stored):
    """A value of a knob that does not work here.

    Attributes:
        knob: The knob's name.
        value: The value.
        reason: Why it does not work, in a few words.
    """

    knob: str
    value: Scalar
    reason: str


class Finding(Stored):
    """The outcome of one check.

    Attributes:
        name: What was checked.
        status: ``not here`` means that this machine has nothing to check.
        found: What the check saw, with its figures.
        remedy: What to do if it does not hold.
        decisive: Whether a failure makes figures untrustworthy; otherwise something is only left out, or slower.
        drops: Values to leave out of the search.
        seconds: How long the check took.
    """

    name: str
    status: Status
    found: str
    remedy: str = ""
    decisive: bool = False
    drops: tuple[Drop, ...] = ()
    seconds: Seconds = 0.0

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
    """All findings on one machine.

    Attributes:
        schema_: Marks the file as an examination, so that collections of results skip it.
        device: The device that was examined.
        driver: The GPU's driver; None on a CPU.
        torch: The version of torch.
        seconds: How long the examination took.
        findings: The findings, in the order of the checks.
    """

    model_config = ConfigDict(populate_by_name=True)

    # "schema" itself would shadow a method of pydantic's BaseModel.
    schema_: Literal["autotune.doctor/1"] = Field(default="autotune.doctor/1", alias="schema")
    device: DeviceKind
    driver: str | None
    torch: str | None
    seconds: Seconds
    findings: tuple[Finding, ...]

    @property
    def trusted(self) -> bool:
        """Whether nothing decisive failed."""
        return not any(finding.decisive and finding.status == "does not hold" for finding in self.findings)

    @property
    def drops(self) -> tuple[Drop, ...]:
        """All values to leave out of the search."""
        return tuple(drop for finding in self.findings for drop in finding.drops)

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
        device=device, driver=_driver(hardware, device), torch=hardware.software.torch, seconds=seconds,
        findings=tuple(findings),
    )  # fmt: skip


def known_examination(folder: Path, hardware: Hardware, device: DeviceKind) -> Examination | None:
    """The stored examination of a device; None if there is none, or the driver or torch has changed since."""
    try:
        stored = Examination.model_validate_json(examination_path(folder, device).read_bytes())
    except (OSError, ValidationError):
        return None
    same = (device, _driver(hardware, device), hardware.software.torch)
    return stored if (stored.device, stored.driver, stored.torch) == same else None


def examination_path(folder: Path, device: DeviceKind) -> Path:
    """The file of one device's examination: examining the CPU does not overwrite that of the GPU."""
    return folder / f"doctor-{device}.json"


def _driver(hardware: Hardware, device: DeviceKind) -> str | None:
    record = hardware.device(device)
    return record.driver if isinstance(record, Gpu) else None
