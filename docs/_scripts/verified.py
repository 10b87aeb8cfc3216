"""Makes the tables of verified machines from the files in ``results/`` that git knows: others come and go."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.doctor.findings import Examination
    from autotune.results.result import Result

RESULTS = Path(__file__).parents[2] / "results"
SIGNS = {"ok": "✓", "does not hold": "**no**", "not here": "–"}
KINDS = {"doctor": "`autotune doctor`", "half-hour": "`python -m benchmarks.gpu_half_hour`"}

TUNINGS = (7, 8, 9)
"""The points that tune."""


def text() -> str:
    """A row for each machine and device, and a column for each examination with the ten points."""
    from autotune.doctor.findings import TEN

    examined, claims = [*_examinations()], _claims()
    machines = {*claims, *((report.machine, report.device) for _, report in examined)}
    head = "| machine | device | torch | checks | tuned, proven faster | dates |\n|---|---|---|---|---|---|"
    reports = [report for _, report in examined]
    rows = [head, *(_row(place, reports, claims.get(place, [])) for place in sorted(machines))]
    unseen = sorted({name for name, device in machines if device != "cpu"} - {report.machine for report in reports})
    parts = ["\n".join(rows)]
    if unseen:
        parts.append(f"The ten points never ran on {', '.join(unseen)}: {' or '.join(KINDS.values())}.")
    titles = [f"{KINDS[name]}: {report.machine}, {report.device}" for name, report in examined]
    points = [f"|  | {' | '.join(titles)} |", f"|---|{':---:|' * len(titles)}"]
    for number, title in enumerate(TEN):
        signs = (SIGNS[report.ten[number]] for _, report in examined)
        points.append(f"| {number + 1}. {title} | {' | '.join(signs)} |")
    return "\n\n".join([*parts, *(["\n".join(points)] if examined else [])])


def half_hours() -> str:
    """All points of each half hour, or a sentence where there is none."""
    from benchmarks.gpu_half_hour import table

    parts = [
        f"{report.machine}, {report.device}, torch {report.torch}, {report.created:%Y-%m-%d}:\n\n"
        + table(report.findings)
        for name, report in _examinations()
        if name == "half-hour"
    ]
    return "\n\n".join(parts) or "*No half hour was measured yet.*"


def cards() -> str:
    """A row for each half hour on a GPU, with the figures of its tunings; a sentence where there is none."""
    rows = []
    for name, report in _examinations():
        if name == "half-hour" and report.device != "cpu":
            figures = [next((f.found for f in report.findings if f.point == number), "–") for number in TUNINGS]
            rows.append(f"| {report.machine}, torch {report.torch} | {_hold(report)} | {' | '.join(figures)} |")
    if not rows:
        return f"*No {KINDS['half-hour']} yet.*"
    head = "| card | points | transformer | language model | nanoGPT |\n|---|---|---|---|---|"
    return "\n".join([head, *rows])


def _examinations() -> Iterator[tuple[str, Examination]]:
    from autotune.doctor.findings import Examination

    committed = _committed()
    for name in KINDS:
        for path in sorted(committed & {*RESULTS.glob(f"*/{name}-*.json")}):
            yield name, Examination.model_validate_json(path.read_bytes())


def _committed() -> set[Path]:
    """The files in ``results/`` that are committed or added; all of them where this is no checkout."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=RESULTS, capture_output=True, text=True, check=False)
    names = listed.stdout.split("\0") if listed.returncode == 0 else RESULTS.rglob("*.json")
    return {RESULTS / name for name in names}


def _claims() -> dict[tuple[str, str], list[Result]]:
    """The results by machine and device."""
    from autotune.results.gather import gather

    committed = _committed()
    claims: dict[tuple[str, str], list[Result]] = {}
    for path, result in gather([RESULTS]).results:
        if Path(path) in committed:
            claims.setdefault((result.machine, result.constraints.device), []).append(result)
    return claims


def _row(place: tuple[str, str], examinations: Sequence[Examination], results: Sequence[Result]) -> str:
    machine, device = place
    ours = [report for report in examinations if (report.machine, report.device) == place]
    ratios = sorted(result.speedup.ratio for result in results if result.speedup is not None)
    proven = f"{len(results)}, {len(ratios)}" + (f" ({ratios[0]:.2f}× – {ratios[-1]:.2f}×)" if ratios else "")
    torches = sorted({str(report.torch) for report in ours} | {str(result.software.torch) for result in results})
    created = [report.created for report in ours] + [result.created for result in results]
    days = sorted(f"{day:%Y-%m-%d}" for day in created)
    dates = days[0] if days[0] == days[-1] else f"{days[0]} – {days[-1]}"
    checks = "; ".join(map(_hold, ours)) or "not examined"
    return f"| {machine} | {device} | {', '.join(torches)} | {checks} | {proven if results else 'none'} | {dates} |"


def _hold(examination: Examination) -> str:
    """How many of an examination's checks hold, of those that there is something to check for."""
    checked = [finding for finding in examination.findings if finding.status != "not here"]
    return f"{sum(finding.status == 'ok' for finding in checked)} of {len(checked)} hold"
