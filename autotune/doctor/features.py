"""Checks the features of torch that the search may choose: each must work here and agree with eager fp32."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.doctor.context import DEADLINE_SECONDS, SHORT, SURE, Clinic, point
from autotune.doctor.findings import Drop, Finding
from autotune.errors import AutotuneError
from autotune.hardware import UNUSABLE
from autotune.knobs import HALF, KNOBS, Scalar, TrainConfig
from autotune.measuring import Point, block_error, judge_agreement

STEPS, BATCH = 8, 16
PEAKS_ALIKE, BESIDE_ALIKE = 0.1, 0.01
"""The most that the peaks of the half precisions may differ, and the rates of one model that was compiled twice."""
BESIDE_SECONDS = 1.0
COMPILING_SECONDS = 100.0
Case = Mapping[str, Scalar]


def peak(clinic: Clinic) -> Iterator[Finding]:
    """This torch has kernels for the GPU, and bf16 is as fast as fp16."""
    name = "peak arithmetic"
    if (why := clinic.hardware.unread.get(UNUSABLE)) is not None and not clinic.hardware.gpus:
        remedy = "install a build of torch for it, as https://pytorch.org/get-started shows"
        yield Finding.of(name, holds=False, found=why, remedy=remedy)
        return
    if clinic.gpu is None or not {*HALF} <= {*clinic.gpu.precisions}:
        yield Finding.none(name, "only a GPU with both half precisions is checked")
        return
    rates = clinic.peak_rates()
    bf16, fp16 = rates.get("bf16") or 0.0, rates.get("fp16") or 0.0
    yield Finding.of(
        name,
        holds=bool(bf16) and abs(bf16 - fp16) <= PEAKS_ALIKE * fp16,
        found=f"{bf16 / 1e12:.0f} TFLOP/s in bf16, {fp16 / 1e12:.0f} in fp16",
        remedy="do not trust shares of the peak in reports; rates do not depend on them",
    )


def beside(clinic: Clinic) -> Iterator[Finding]:
    """Code that is compiled beside other training is the same."""
    name, knob = "compiling beside other training", next(filter(_compiles, KNOBS))
    modes = _trials(clinic, knob)
    if not modes:
        yield Finding.none(name, "torch.compile is experimental on MPS")
        return
    with contextlib.ExitStack() as folders, contextlib.closing(clinic.runner()) as runner:

        def compiled() -> tuple[Path, Point]:
            """A folder, and a config whose code goes there; with one thread, since several wait for the slowest."""
            folder = Path(folders.enter_context(tempfile.TemporaryDirectory(prefix="autotune-doctor-"))).resolve()
            knobs = {knob: modes[0], "batch_size": BATCH, "num_threads": 1}
            return folder, point("compiled_into", {"folder": str(folder)}, **knobs)

        (alone, first), (crowded, second) = compiled(), compiled()
        other = second.model_copy(update={"config": second.config.eager})
        runner.run(first, SHORT, COMPILING_SECONDS)
        runner.challenge(None, [other], SHORT, DEADLINE_SECONDS, lambda *_: None)
        runner.challenge(other, [second], SHORT, COMPILING_SECONDS, lambda *_: None)
        code, varies = _generated(crowded), False
        if not (same := code == _generated(alone)):  # perhaps it differs each time
            again, third = compiled()
            runner.run(third, SHORT, COMPILING_SECONDS)
            varies = _generated(again) != _generated(alone)
        plan = BurstPlan(measure_seconds=BESIDE_SECONDS * clinic.length, fastest_wins=False)
        played = runner.play([first, second], plan, DEADLINE_SECONDS)
    before, after = (burst.measurement for burst in played)
    if before is None or after is None:
        reasons = "; ".join(burst.reason or "" for burst in played)
        yield Finding.of(name, holds=False, found=reasons, remedy="see the compile modes below")
        return
    off = after.samples_per_second / before.samples_per_second - 1
    noise = SURE * (block_error(before, after) or 0.0)
    kind = "the same code" if same else "code that differs each time, alone as well" if varies else "other code"
    yield Finding.of(
        name,
        holds=(same or varies) and abs(off) <= BESIDE_ALIKE + noise,
        found=f"{kind} ({len(code)} files), {off:+.1%} in rate, ± {noise:.1%} by chance",
        remedy=f"do not trust gains of compiled candidates here; leave them out: --pin {knob}=none",
    )


def _generated(folder: Path) -> set[tuple[str, str]]:
    """What torch.compile chose: the code for a CPU, and for a GPU each kernel's fastest launch configuration."""
    choices = {(path.name, "") for path in folder.rglob("*.cpp")}
    for path in folder.rglob("*.best_config"):
        chosen = json.loads(path.read_text(encoding="utf-8"))
        choices.add((path.name, json.dumps({key: chosen[key] for key in sorted(chosen) if "time" not in key})))
    return choices


def arithmetic(clinic: Clinic) -> Iterator[Finding]:
    """Precisions, layouts, fused steps and attention kernels agree with eager fp32."""
    values = {name: tried for name in KNOBS if not _compiles(name) and (tried := _trials(clinic, name))}
    singles = [(knob, value) for knob, tried in values.items() for value in tried]
    wrong = dict(zip(singles, _reasons(clinic, [_case(clinic, *single) for single in singles]), strict=True))
    for knob, tried in values.items():
        drops = [Drop(knob=k, value=v, reason=why) for (k, v), why in wrong.items() if k == knob and why]
        yield _finding(knob, tried, drops)


def compiling(clinic: Clinic) -> Iterator[Finding]:
    """Compiled models agree with eager fp32, also with gradient accumulation."""
    for knob in filter(_compiles, KNOBS):
        if not (modes := _trials(clinic, knob)):
            yield Finding.none(knob, "torch.compile is experimental on MPS")
            continue
        reasons = _reasons(clinic, [{knob: mode, "accumulation_steps": 2} for mode in modes])
        drops = [Drop(knob=knob, value=mode, reason=why) for mode, why in zip(modes, reasons, strict=True) if why]
        yield _finding(knob, modes, drops, "; torch.compile needs a C++ compiler (g++), on a GPU Triton as well")


def _compiles(knob: str) -> bool:
    """Whether other values of a knob that is tried are other compiled code."""
    return KNOBS[knob].scope == "compiled" and bool(KNOBS[knob].trials)


def _trials(clinic: Clinic, knob: str) -> list[Scalar]:
    """The values of a knob to try on this device: precisions that it supports, and what works in one of them."""
    missing = {*KNOBS["precision"].trials} - {*clinic.hardware.device(clinic.device).precisions}
    devices = KNOBS[knob].trials
    tried = [value for value in devices if clinic.device in devices[value] and value not in missing]
    return [value for value in tried if _case(clinic, knob, value)]


def _case(clinic: Clinic, knob: str, value: Scalar) -> Case:
    """A config with one value of one knob, in the first precision that goes with it; empty if none does."""
    for precision in clinic.hardware.device(clinic.device).precisions:
        case = {"precision": precision, knob: value} if precision in HALF else {knob: value}
        if KNOBS[knob].conflict(TrainConfig().replace(**case)) is None:
            return case
    return {}


def _reasons(clinic: Clinic, cases: Sequence[Case]) -> list[str | None]:
    """What is wrong with each of some configs; None if nothing is."""
    return clinic.together([partial(_reason, clinic, case) for case in cases])


def _reason(clinic: Clinic, case: Case) -> str | None:
    """What is wrong with a config; None if nothing is."""
    candidate, plain = point("small", None, **{"batch_size": BATCH, **case}), point("small", batch_size=BATCH)
    seconds = COMPILING_SECONDS if candidate.config.is_compiled else DEADLINE_SECONDS
    try:
        measured = clinic.runner().agreement(candidate, STEPS, seconds)
    except AutotuneError as error:
        return str(error)
    verdict = judge_agreement(measured, candidate.config, plain.config)
    return verdict.reason if verdict.outcome == "disagrees" else None


def _finding(knob: str, tried: Sequence[Scalar], drops: Sequence[Drop], needs: str = "") -> Finding:
    failures = "; ".join(f"{drop.value}: {drop.reason}" for drop in drops)
    text = failures or f"as eager fp32: {', '.join(map(str, tried))}"
    finding = Finding.of(knob, holds=not drops, found=text, remedy=f"it is left out of the search{needs}")
    return finding.model_copy(update={"drops": tuple(drops)})
