"""Checks the features of torch that the search may choose: each must work here and agree with eager fp32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from autotune.doctor.clinic import DEADLINE_SECONDS, Clinic, point
from autotune.doctor.findings import Drop, Finding
from autotune.errors import AutotuneError
from autotune.knobs import HALF, KNOBS, Scalar
from autotune.measuring import judge_agreement

STEPS, BATCH = 8, 16
COMPILING, COMPILING_SECONDS = "compile_mode", 100.0
NEED_HALF: frozenset[Scalar] = frozenset({"flash_attention", "cudnn_attention"})
"""Attention kernels that compute in half precision only."""
Case = Mapping[str, Scalar]


def arithmetic(clinic: Clinic) -> Iterator[Finding]:
    """Precisions, layouts, fused steps and attention kernels agree with eager fp32."""
    values = {knob: tried for knob in KNOBS if knob != COMPILING and (tried := _trials(clinic, knob))}
    together = _together(values)
    wrong = {} if _all_agree(clinic, together) else {case: _wrong(clinic, case) for case in _apart(values)}
    for knob, tried in values.items():
        drops = [Drop(knob=k, value=v, reason=why) for (k, v), why in wrong.items() if k == knob and why]
        yield _finding(knob, tried, drops)


def compiling(clinic: Clinic) -> Iterator[Finding]:
    """Compiled models agree with eager fp32, also with gradient accumulation."""
    if not (modes := _trials(clinic, COMPILING)):
        yield Finding.none(COMPILING, "torch.compile is experimental on MPS")
        return
    reasons = {mode: _reason(clinic, {COMPILING: mode, "accumulation_steps": 2}) for mode in modes}
    drops = [Drop(knob=COMPILING, value=mode, reason=why) for mode, why in reasons.items() if why]
    yield _finding(COMPILING, modes, drops, "; torch.compile needs a C++ compiler (g++), on a GPU Triton as well")


def _trials(clinic: Clinic, knob: str) -> list[Scalar]:
    """The values of a knob to try on this device: precisions that it supports, and kernels that work in one of them."""
    precisions = clinic.hardware.device(clinic.device).precisions
    missing = {*KNOBS["precision"].trials} - {*precisions}
    if not {*HALF} & {*precisions}:
        missing |= NEED_HALF
    devices = KNOBS[knob].trials
    return [value for value in devices if clinic.device in devices[value] and value not in missing]


def _together(values: Mapping[str, Sequence[Scalar]]) -> list[Case]:
    """A few cases that hold each value once, as far as values can be combined."""
    precisions = values.get("precision", ())
    halves = [value for value in precisions if value in HALF] or ["fp32"]
    kernels = enumerate(values.get("sdpa_backend", ()))
    others = {knob: tried for knob, tried in values.items() if knob not in {"precision", "sdpa_backend"}}
    cases: list[dict[str, Scalar]] = [{"precision": value} for value in precisions]
    cases += [{} for _ in range(max(map(len, others.values())) - len(cases))]
    for knob, tried in others.items():
        for case, value in zip(cases, tried, strict=False):
            case[knob] = value
    return [
        *cases,
        *({"precision": halves[number % len(halves)], "sdpa_backend": kernel} for number, kernel in kernels),
    ]


def _apart(values: Mapping[str, Sequence[Scalar]]) -> list[tuple[str, Scalar]]:
    return [(knob, value) for knob, tried in values.items() for value in tried]


def _all_agree(clinic: Clinic, cases: Sequence[Case]) -> bool:
    return all(_reason(clinic, case) is None for case in cases)


def _wrong(clinic: Clinic, single: tuple[str, Scalar]) -> str | None:
    """What is wrong with one value of one knob; attention kernels run in half precision if the device has it."""
    knob, value = single
    case: dict[str, Scalar] = {knob: value}
    if knob == "sdpa_backend":
        precisions = clinic.hardware.device(clinic.device).precisions
        case["precision"] = next((half for half in HALF if half in precisions), "fp32")
    return _reason(clinic, case)


def _reason(clinic: Clinic, case: Case) -> str | None:
    """What is wrong with a config; None if nothing is."""
    candidate, plain = point("small", None, **{"batch_size": BATCH, **case}), point("small", batch_size=BATCH)
    seconds = COMPILING_SECONDS if candidate.config.compile_mode else DEADLINE_SECONDS
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
