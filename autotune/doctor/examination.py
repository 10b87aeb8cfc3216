"""Runs the checks one after another; an error in one of them becomes a finding of its own."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator

import psutil

from autotune.doctor import features, limits, memory, searching, timing
from autotune.doctor.context import Clinic
from autotune.doctor.findings import Examination, Finding, examination_of
from autotune.errors import AutotuneError
from autotune.hardware import DeviceKind, Hardware

Check = Callable[[Clinic], Iterator[Finding]]
QUICK: tuple[Check, ...] = (limits.open_files, limits.shared_memory, limits.host_memory, limits.processes)
"""The checks that take no time; each tuning runs them."""
POINTS: dict[Check, int] = {
    features.peak: 1, memory.running_out: 2, memory.cap: 2, memory.nothing_left: 2, timing.busy_fraction: 2,
    features.arithmetic: 2, limits.telemetry: 3, memory.itself: 4, timing.truth: 5, timing.scripts: 5,
    features.beside: 6, searching.launches: 7, features.compiling: 8, searching.scripts: 9, timing.pairs: 10,
}  # fmt: skip
"""The checks of the `TEN` points, in their order."""
CHECKS: tuple[Check, ...] = (*QUICK, limits.files_of_scripts, *POINTS)


def examine(clinic: Clinic, report: Callable[[Finding], None], checking: Callable[[str], None]) -> Examination:
    """Runs all checks.

    Args:
        clinic: The machine, and the device to train on.
        report: Receives each finding as it is made.
        checking: Receives the name of each check before it begins.
    """
    with contextlib.closing(clinic):
        clinic.begin()
        return _examine(clinic, CHECKS, report, checking)


def examine_quickly(hardware: Hardware, device: DeviceKind) -> Examination:
    """Runs the checks that take no time."""
    return _examine(Clinic(hardware, device), QUICK, lambda _: None, lambda _: None)


def _examine(
    clinic: Clinic, checks: tuple[Check, ...], report: Callable[[Finding], None], checking: Callable[[str], None]
) -> Examination:
    began = last = time.monotonic()
    findings: list[Finding] = []

    def add(finding: Finding) -> None:
        nonlocal last
        now = time.monotonic()
        findings.append(finding.model_copy(update={"seconds": now - last, "point": POINTS.get(check, 0)}))
        last = now
        report(findings[-1])

    for check in checks:
        name = (check.__doc__ or check.__name__).splitlines()[0].rstrip(".")
        checking(name)
        try:
            for finding in check(clinic):
                add(finding)
        except (AutotuneError, OSError, subprocess.SubprocessError, psutil.Error) as error:
            remedy = "run doctor again; if it fails again, do not trust what is tuned here"
            add(Finding.of(name, holds=False, found=str(error) or type(error).__name__, remedy=remedy, decisive=True))
    return examination_of(clinic.hardware, clinic.device, findings, time.monotonic() - began)
