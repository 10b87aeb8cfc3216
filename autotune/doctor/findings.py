"""What an examination found, and the file that keeps it, for one driver and one version of torch."""

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
        knob: Which.
        value: Of it.
        reason: In a few words.
    """

    knob: str
    value: Scalar
    reason: str


class Finding(Stored):
    """The outcome of one check.

    Attributes:
        name: What was checked.
        status: ``not here``: this machine has nothing to check.
        found: What was seen, with its figures.
        remedy: What to do where it does not hold.
        decisive: Whether figures cannot be trusted where it does not hold; else only something is left out, or slower.
        drops: What is left out of the search.
        seconds: That it took to find out.
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
        """A check that had something to check; the remedy is for where it does not hold."""
        status: Status = "ok" if holds else "does not hold"
        return cls(name=name, status=status, found=found, remedy="" if holds else remedy, decisive=decisive)

    @classmethod
    def none(cls, name: str, why: str) -> Finding:
        """This machine has nothing to check."""
        return cls(name=name, status="not here", found=why)


class Examination(Stored):
    """All findings on one machine.

    Attributes:
        schema_: By which what gathers results knows that this file is none.
        device: That was examined.
        driver: Of the GPU; None on a CPU.
        torch: Version.
        seconds: That it took.
        findings: In the order of the checks.
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
        """All that is left out of the search."""
        return tuple(drop for finding in self.findings for drop in finding.drops)

    def to_json(self) -> str:
        """All of it."""
        return self.model_dump_json(by_alias=True, indent=2)

    def write(self, folder: Path) -> Path:
        """Keeps it beside a machine's results; returns the file.

        Raises:
            OSError: It cannot be written.
        """
        path = examination_path(folder, self.device)
        write_whole(path, self.to_json() + "\n")
        return path


def examination_of(hardware: Hardware, device: DeviceKind, findings: Sequence[Finding], seconds: float) -> Examination:
    """The findings, with what they hold for."""
    return Examination(
        device=device, driver=_driver(hardware, device), torch=hardware.software.torch, seconds=seconds,
        findings=tuple(findings),
    )  # fmt: skip


def known_examination(folder: Path, hardware: Hardware, device: DeviceKind) -> Examination | None:
    """What is known of a device; None where nobody looked, or the driver or torch has changed since."""
    try:
        known = Examination.model_validate_json(examination_path(folder, device).read_bytes())
    except (OSError, ValidationError):
        return None
    same = (device, _driver(hardware, device), hardware.software.torch)
    return known if (known.device, known.driver, known.torch) == same else None


def examination_path(folder: Path, device: DeviceKind) -> Path:
    """A file for each device: to look at the CPU of a machine forgets nothing of its GPU."""
    return folder / f"doctor-{device}.json"


def _driver(hardware: Hardware, device: DeviceKind) -> str | None:
    record = hardware.device(device)
    return record.driver if isinstance(record, Gpu) else None
