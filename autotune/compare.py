"""The same workload across machines: reads result files and sets them side by side. Needs no torch.

Rows can be compared only when the same thing was trained, so they are grouped by the workload's
fingerprint, and a target that hides two workloads behind one name is told.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from autotune.errors import ResultFileError
from autotune.measurement import Interval, Measurement, Speedup
from autotune.result import Result, read_result


class Record(BaseModel):
    """Base of all parts of a comparison: frozen."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Row(Record):
    """One machine: what the workload did there before and after tuning."""

    machine: str
    hostname: str
    device: str
    torch: str | None
    created: datetime
    status: Literal["complete", "partial"]
    before_samples_per_second: float | None
    before_ci95: Interval | None
    after_samples_per_second: float | None
    after_ci95: Interval | None
    speedup: Speedup | None
    speedup_reason: str | None
    changed_knobs: dict[str, tuple[Any, Any]]


class WorkloadGroup(Record):
    """All rows of one workload, the fastest first."""

    name: str
    target: str
    fingerprint: str
    rows: tuple[Row, ...]


class Comparison(Record):
    """What `compare` found out."""

    groups: tuple[WorkloadGroup, ...]
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def load_results(paths: Iterable[Path | str]) -> tuple[list[Result], list[str]]:
    """The results in files and folders; a folder is searched with all that lies below it.

    A file that cannot be read is no reason to show none: each becomes a sentence, and the rest goes on.

    Args:
        paths: Result files, and folders of them; what is named twice is read once.

    Returns:
        The results in the order of their paths, and a sentence for each file or folder that gave none.
    """
    results: list[Result] = []
    problems: list[str] = []
    seen: set[str] = set()
    for path in paths:
        files = [path]
        if os.path.isdir(path):
            files = sorted(file for file in Path(path).rglob("*.json") if file.is_file())
            if not files:
                problems.append(f"{path} holds no result files: no *.json lies in it or below it")
        for file in files:
            real = os.path.realpath(file)
            if real in seen:
                continue
            seen.add(real)
            try:
                results.append(read_result(file))
            except ResultFileError as error:
                problems.append(str(error))
    return results, problems


def compare(results: Sequence[Result], problems: Iterable[str] = ()) -> Comparison:
    """Results side by side, those of one workload together.

    Args:
        results: Of any workloads and machines.
        problems: Sentences of `load_results`, kept beside the rows.
    """
    groups: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda result: (result.workload.name, result.workload.target)):
        groups.setdefault(result.workload.fingerprint, []).append(result)
    return Comparison(
        groups=tuple(_group(fingerprint, members) for fingerprint, members in groups.items()),
        warnings=tuple(_warnings(groups)),
        problems=tuple(problems),
    )


def machine_name(result: Result) -> str:
    """What trained: ``NVIDIA GeForce RTX 4070, 16 CPUs`` or ``Intel Xeon, 2 CPUs``."""
    hardware = result.hardware
    kind = result.constraints.device.partition(":")[0]
    gpu = next((gpu for gpu in hardware.gpus if gpu.kind == kind), None)
    name = gpu.name if gpu else hardware.cpu.model or "unnamed CPU"
    return f"{name}, {hardware.cpu.budget} CPU{'' if hardware.cpu.budget == 1 else 's'}"


def _group(fingerprint: str, results: Sequence[Result]) -> WorkloadGroup:
    rows = [_row(result) for result in results]
    rows.sort(key=lambda row: (-(row.after_samples_per_second or 0.0), row.machine, row.created.isoformat()))
    first = results[0].workload
    return WorkloadGroup(name=first.name, target=first.target, fingerprint=fingerprint, rows=tuple(rows))


def _row(result: Result) -> Row:
    before_rate, before_ci95 = _rate(result.baseline.measurement)
    after_rate, after_ci95 = _rate(result.best.measurement)
    return Row(
        machine=machine_name(result),
        hostname=result.hardware.hostname,
        device=result.constraints.device,
        torch=result.software.torch,
        created=result.created,
        status=result.status,
        before_samples_per_second=before_rate,
        before_ci95=before_ci95,
        after_samples_per_second=after_rate,
        after_ci95=after_ci95,
        speedup=result.speedup,
        speedup_reason=result.speedup_reason,
        changed_knobs=result.changed_knobs,
    )


def _rate(measurement: Measurement | None) -> tuple[float | None, Interval | None]:
    if measurement is None:
        return None, None
    return measurement.samples_per_second, measurement.ci95_samples_per_second


def _warnings(groups: dict[str, list[Result]]) -> Iterable[str]:
    """A sentence for each thing that makes rows less comparable than they look."""
    fingerprints: dict[str, list[str]] = {}
    for fingerprint, results in groups.items():
        for target in sorted({result.workload.target for result in results}):
            fingerprints.setdefault(target, []).append(fingerprint)
    for target, found in sorted(fingerprints.items()):
        if len(found) > 1:
            yield (
                f"{target} stands for {len(found)} workloads (fingerprints {', '.join(sorted(found))}): the "
                "model, the data, the optimizer or the effective batch differ, so rates cannot be compared"
            )
    for results in groups.values():
        first, *rest = results
        knobs = {knob for other in rest for knob in other.baseline.config.changes_from(first.baseline.config)}
        if knobs:
            yield (
                f"the baselines of {first.workload.name} differ in {', '.join(sorted(knobs))}: "
                "what each machine gained is not against the same config"
            )
