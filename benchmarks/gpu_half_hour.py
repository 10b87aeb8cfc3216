"""Thirty minutes on a GPU: the ten points that verify a card, measured at length, in one command that can go on.

    python -m benchmarks.gpu_half_hour                            # the best device; results/<machine>/half-hour-*.json
    python -m benchmarks.gpu_half_hour --sources SOURCES          # with nanoGPT, as benchmarks.real_scripts wants it
    python -m benchmarks.gpu_half_hour --share 0.1 --out try.json --device cpu           # a trial of three minutes
    python -m benchmarks.gpu_half_hour --only 4,10                # these points again

Points 1, 4, 5, 6 and 10 are checks of `autotune doctor`, `LENGTH` times as long; the others run `autotune` and the
GPU's tests as you would. Without a GPU, what a CPU can show is measured, and the rest is listed with the reason. The
file is written after each point. A point in it is not measured again, unless torch or the driver has changed.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.runner import look_at_machine
from autotune.doctor import features, memory, timing
from autotune.doctor.context import Clinic
from autotune.doctor.findings import TEN, Examination, Finding, examination_of, examination_path
from autotune.errors import AutotuneError
from autotune.hardware import DeviceKind, Hardware, pin_gpu
from autotune.results.result import CONFIRM, UNINTERRUPTED, Result, Side, read_result

ROOT = Path(__file__).parents[1]
LENGTH = 5.0
"""The doctor's checks, as multiples of their own time."""
LOOK_SECONDS, TESTS_SECONDS, DOCTOR_SECONDS, GRACE_SECONDS = 60.0, 480.0, 600.0, 120.0
FIRST = 5
MERGED = 48
"""The batch of the transformer guide as one micro-batch."""


@dataclass(frozen=True)
class Setting:
    """What a point is measured with.

    Attributes:
        clinic: The machine, the device, and runners of the doctor's workloads.
        share: Of the time that a point takes in the half hour.
        folder: Where results go.
        sources: Where `benchmarks.real_scripts` finds its repositories; None without.
    """

    clinic: Clinic
    share: float
    folder: Path
    sources: Path | None

    @property
    def on_gpu(self) -> bool:
        """Whether an NVIDIA GPU is measured."""
        return self.clinic.device == "cuda"


Answer = tuple[bool | None, str]
"""Whether the goal is met (None: there is nothing to measure here), and the figure, or the reason."""


def doctors(*checks: Callable[[Clinic], Iterator[Finding]]) -> Callable[[Setting], Answer]:
    """Measures a point by some of the doctor's checks."""

    def measure(setting: Setting) -> Answer:
        found = [finding for check in checks for finding in check(setting.clinic)]
        statuses = {finding.status for finding in found}
        holds = None if statuses == {"not here"} else "does not hold" not in statuses
        return holds, "; ".join(f"{finding.name}: {finding.found}" for finding in found)

    return measure


def tests(setting: Setting) -> Answer:
    """The tests that need a GPU."""
    if not setting.on_gpu:
        return None, "its tests need an NVIDIA GPU"
    command = [sys.executable, "-m", "pytest", "tests/gpu", "-n", "0", "-q"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TESTS_SECONDS)
    return done.returncode == 0, (done.stdout.strip().splitlines() or ["nothing"])[-1].strip("= ")


def doctor(setting: Setting) -> Answer:
    """The whole doctor; its file lies beside this one."""
    file = examination_path(setting.folder, setting.clinic.device)
    words = ["doctor", "--quiet", "--device", setting.clinic.device, "--out", str(file)]
    done = subprocess.run([sys.executable, "-m", "autotune", *words], cwd=ROOT, timeout=DOCTOR_SECONDS)
    examined = Examination.model_validate_json(file.read_bytes())
    checked = [finding for finding in examined.findings if finding.status != "not here"]
    hold = sum(finding.status == "ok" for finding in checked)
    lost = [finding.name for finding in checked if finding.status != "ok"]
    text = f"{hold} of {len(checked)} checks hold in {examined.seconds:.0f} s"
    seen = not setting.on_gpu or examined.ten[2] == "ok"
    return done.returncode == 0 and seen, text + (f"; not: {', '.join(lost)}" if lost else "")


def tuned(setting: Setting, guide: str, budget_seconds: float) -> Result:
    """Tunes a guide's workload by the command; its result lies beside this file.

    Raises:
        CalledProcessError: The command failed.
    """
    out = setting.folder / f"guide-{guide.replace('_', '-')}.json"
    words = ["--model", f"benchmarks.guides.{guide}:build", "--device", setting.clinic.device, "--quiet"]
    command = [sys.executable, "-m", "autotune", *words, "--budget", f"{budget_seconds:.0f}s", "--out", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=budget_seconds + GRACE_SECONDS)
    out.with_suffix(".journal").unlink(missing_ok=True)
    return read_result(out)


def candidates(result: Result) -> list[dict[str, object]]:
    """The different candidates of a search, in the order in which they were tried."""
    tried: list[dict[str, object]] = []
    for trial in result.trials:
        if trial.changes and trial.stage not in {CONFIRM, UNINTERRUPTED} and trial.changes not in tried:
            tried.append(dict(trial.changes))
    return tried


def transformer(setting: Setting) -> Answer:
    """The transformer guide: whether the whole batch is tried early as one micro-batch."""
    tried = candidates(tuned(setting, "asl_transformer", 240 * setting.share))
    place = next((n for n, changes in enumerate(tried, 1) if changes.get("batch_size") == MERGED), None)
    merged = f"{MERGED} × 1 is number {place}" if place is not None else f"{MERGED} × 1 was not tried"
    holds = len(tried) >= 25 * setting.share and place is not None and place <= FIRST
    return holds, f"{len(tried)} candidates; {merged}"


def language_model(setting: Setting) -> Answer:
    """The language-model guide: candidates, compiling, and the plain loop."""
    from benchmarks.alternate import realise

    result = tuned(setting, "lm_pretrain", 300 * setting.share)
    tried = candidates(result)
    compiled = any(changes.get("compile_mode") is not None for changes in tried)
    measured = result.best.measurement
    if measured is None:
        return False, f"{len(tried)} candidates; no rate was proven"
    side = Side(config=result.best.config, parameters=result.best.parameters, measurement=None)
    runs = realise(result.workload.target, {"tuned": side}, setting.clinic.torch_device, 30 * setting.share, 1)
    off = measured.samples_per_second / statistics.fmean(run.samples_per_second for run in runs["tuned"]) - 1
    text = f"{len(tried)} candidates, {'some' if compiled else 'none'} compiled; {off:+.1%} beside the plain loop"
    return len(tried) >= 15 * setting.share and compiled and abs(off) <= 0.03, text


def nano_gpt(setting: Setting) -> Answer:
    """NanoGPT as a script: candidates, and whether `launch` realises the claim."""
    from benchmarks import real_scripts

    if setting.sources is None:
        return None, "nanoGPT was not given; pass --sources, see benchmarks.real_scripts"
    entry = real_scripts.ENTRIES[0]
    entry = replace(entry, command=entry.command.replace("device=cpu", f"device={setting.clinic.torch_device}"))
    with tempfile.TemporaryDirectory() as work:
        run = real_scripts.prepared(entry, setting.sources, Path(work))
        row = real_scripts.tuned(entry, run, 240 * setting.share)
        if "refused" in row:
            return False, str(row["refused"])
        tried = candidates(read_result(run.parent / "result.json"))
        text = f"{len(tried)} candidates"
        if row["claimed"] is None:
            return len(tried) >= 15 * setting.share, f"{text}; nothing faster was proven"
        came = real_scripts.realised(entry, run, 15 * setting.share)
    if "ratio" not in came:
        return False, f"{text}; {came['failed']}"
    off = row["claimed"] / came["ratio"] - 1
    holds = len(tried) >= 15 * setting.share and abs(off) <= 0.05
    return holds, f"{text}; claimed {row['claimed']:.2f}×, realised {came['ratio']:.2f}× ({off:+.1%})"


STEPS: tuple[tuple[str, Callable[[Setting], Answer]], ...] = (
    ("within 10 %", doctors(features.peak)),
    ("all pass", tests),
    ("exit status 0, a second program is seen", doctor),
    ("1 ± 0.02 in each, block by block", doctors(memory.itself)),
    ("within 3 %, no waiting on a GPU", doctors(timing.truth, timing.scripts)),
    ("the same code, within 1 %", doctors(features.beside)),
    (f"25 candidates in 4 minutes, {MERGED} × 1 among the first {FIRST}", transformer),
    ("15 candidates in 5 minutes, some compiled, within 3 % of the plain loop", language_model),
    ("15 candidates in 4 minutes, `launch` within 5 % of the claim", nano_gpt),
    ("within 1 %, besides chance", doctors(timing.pairs)),
)
"""The goal of each point, and how it is measured; numbered from 1 on, as `TEN`."""


def measured(setting: Setting, number: int) -> Finding:
    """Measures a point; an error of it is its finding."""
    goal, measure = STEPS[number - 1]
    began = time.monotonic()
    try:
        holds, found = measure(setting)
    except (AutotuneError, OSError, RuntimeError, SystemExit, subprocess.SubprocessError) as error:
        holds, found = False, f"{type(error).__name__}: {error}"
    about = {"goal": goal, "point": number, "seconds": time.monotonic() - began}
    name = TEN[number - 1]
    if holds is None:
        return Finding.none(name, found).model_copy(update=about)
    return Finding.of(name, holds=holds, found=found, remedy="").model_copy(update=about)


def earlier(path: Path, blank: Examination) -> dict[int, Finding]:
    """The points that a file has measured with this driver and this torch."""
    try:
        kept = Examination.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return {}
    same = (kept.device, kept.driver, kept.torch) == (blank.device, blank.driver, blank.torch)
    return {finding.point: finding for finding in kept.findings if same and finding.status != "not here"}


def table(findings: Sequence[Finding]) -> str:
    """The points as a table in Markdown."""
    rows = ["|  | point | measured | goal | seconds |", "|---:|---|---|---|---:|"]
    for finding in findings:
        found = " ".join(finding.found.replace("|", "/").split())
        cells = (finding.point, finding.name, f"{finding.status}: {found}", finding.goal, f"{finding.seconds:.0f}")
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows)


def look() -> Hardware:
    """The machine, as host and torch see it, with one GPU."""
    pin_gpu()
    with Isolation() as isolation:
        isolation.start(LOOK_SECONDS)
        return look_at_machine(isolation, LOOK_SECONDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry; returns 1 where a goal is missed, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(description="The ten points that verify a GPU.")
    parser.add_argument("--device", default="", help="cpu, cuda, rocm or mps; the best one when left out")
    parser.add_argument("--only", default="", help="numbers of points, with commas between; measured again")
    parser.add_argument("--share", type=float, default=1.0, help="of the half hour's time; below 1, a trial with --out")
    parser.add_argument("--sources", type=Path, help="folder with karpathy_nanoGPT, see benchmarks.real_scripts")
    parser.add_argument("--out", type=Path, help="the file; results/<machine>/half-hour-<device>.json when left out")
    options = parser.parse_args(arguments)
    if options.share != 1 and options.out is None:
        parser.error("--share: expected --out as well, since a trial is no result; for example --out try.json")
    numbers = range(1, len(TEN) + 1)
    only = {int(number) for number in filter(None, options.only.split(","))}
    if not only <= {*numbers}:
        parser.error(f"--only: expected numbers from 1 to {len(TEN)}, got {options.only}")
    hardware = look()
    device = cast("DeviceKind", options.device or hardware.default_device)
    if device not in hardware.devices:
        parser.error(f"--device: expected one of {', '.join(hardware.devices)}, got {device}")
    out = options.out or ROOT / "results" / hardware.slug / f"half-hour-{device}.json"
    found = earlier(out, examination_of(hardware, device, (), 0.0))
    with contextlib.closing(Clinic(hardware, device, LENGTH * options.share)) as clinic:
        setting = Setting(clinic, options.share, out.resolve().parent, options.sources)
        try:
            for number in numbers:
                if number in only or (not only and number not in found):
                    print(f"{number}: {TEN[number - 1]} …", file=sys.stderr, flush=True)
                    found[number] = measured(setting, number)
                    in_order = [found[one] for one in sorted(found)]
                    total = math.fsum(finding.seconds for finding in in_order)
                    examination_of(hardware, device, in_order, total).write(out)
        except KeyboardInterrupt:
            print(f"interrupted; {out} holds {len(found)} points, and the same command goes on", file=sys.stderr)
            return 130
    print(f"{hardware.machine(device)}, torch {hardware.software.torch}\n")
    print(table([found[one] for one in sorted(found)]))
    print(f"\nwritten to {out}", file=sys.stderr)
    return int(any(finding.status == "does not hold" for finding in found.values()))


if __name__ == "__main__":
    sys.exit(main())
