"""Features of torch: each that the search may choose works here and computes what eager fp32 does, or is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from autotune.doctor.clinic import DEADLINE_SECONDS, Clinic, point
from autotune.doctor.findings import Drop, Finding
from autotune.errors import AutotuneError
from autotune.knobs import HALF, Scalar
from autotune.measuring import judge_agreement

STEPS, BATCH = 8, 16
COMPILING_SECONDS = 100.0
Case = Mapping[str, Scalar]


def arithmetic(clinic: Clinic) -> Iterator[Finding]:
    """Precisions, layouts, fused steps and kernels of attention agree with eager fp32."""
    precisions = [value for value in clinic.hardware.device(clinic.device).precisions if value != "fp32"]
    values: dict[str, list[Scalar]] = {
        "precision": list(precisions),
        "memory_format": ["channels_last"],
        "optimizer_impl": ["foreach", "fused"],
        "allocator": ["tuned"] if clinic.device in {"cpu", "cuda"} else [],
    }
    if clinic.device in {"cuda", "rocm"}:
        half = [kernel for kernel in ("flash_attention", "cudnn_attention") if {*HALF} & {*precisions}]
        values |= {"cudnn_benchmark": [True], "sdpa_backend": [*half, "efficient_attention"]}
    together = _together(values)
    wrong = {} if _all_agree(clinic, together) else {case: _wrong(clinic, case) for case in _apart(values)}
    for knob, tried in values.items():
        if tried:
            drops = [Drop(knob=k, value=v, reason=why) for (k, v), why in wrong.items() if k == knob and why]
            yield _finding(knob, tried, drops)


def compiling(clinic: Clinic) -> Iterator[Finding]:
    """Compiled models agree with eager fp32, accumulating too."""
    if clinic.device == "mps":
        yield Finding(name="compile_mode", status="not here", found="torch.compile is experimental on MPS")
        return
    modes: list[Scalar] = ["default"] if clinic.device == "cpu" else ["default", "reduce-overhead"]
    modes += ["cudagraphs"] if clinic.device == "cuda" else []
    found = {mode: _reason(clinic, {"compile_mode": mode, "accumulation_steps": 2}) for mode in modes}
    drops = [Drop(knob="compile_mode", value=mode, reason=why) for mode, why in found.items() if why]
    yield _finding("compile_mode", modes, drops, "; torch.compile needs a C++ compiler (g++), on a GPU Triton as well")


def _together(values: Mapping[str, Sequence[Scalar]]) -> list[Case]:
    """A few cases that have each value once, of those that can be had together."""
    halves = [value for value in values["precision"] if value in HALF]
    cases: list[dict[str, Scalar]] = [{"precision": value} for value in values["precision"]] or [{}]
    single = [knob for knob in ("memory_format", "allocator", "cudnn_benchmark") if values.get(knob)]
    cases[0].update({knob: values[knob][0] for knob in single})
    for number, form in enumerate(values["optimizer_impl"]):
        cases[number % len(cases)] = {**cases[number % len(cases)], "optimizer_impl": form}
    for number, kernel in enumerate(values.get("sdpa_backend", ())):
        precision: Scalar = halves[number % len(halves)] if halves else "fp32"
        cases.append({"precision": precision, "sdpa_backend": kernel})
    return list(cases)


def _apart(values: Mapping[str, Sequence[Scalar]]) -> list[tuple[str, Scalar]]:
    return [(knob, value) for knob, tried in values.items() for value in tried]


def _all_agree(clinic: Clinic, cases: Sequence[Case]) -> bool:
    return all(_reason(clinic, case) is None for case in cases)


def _wrong(clinic: Clinic, single: tuple[str, Scalar]) -> str | None:
    """What is wrong with one value of one knob; a kernel of attention that needs half precision gets it."""
    knob, value = single
    case: dict[str, Scalar] = {knob: value}
    if knob == "sdpa_backend":
        precisions = clinic.hardware.device(clinic.device).precisions
        case["precision"] = next((one for one in HALF if one in precisions), "fp32")
    return _reason(clinic, case)


def _reason(clinic: Clinic, case: Case) -> str | None:
    """What is wrong with a config; None when nothing is."""
    candidate, plain = point("small", None, **{"batch_size": BATCH, **case}), point("small", batch_size=BATCH)
    seconds = COMPILING_SECONDS if candidate.config.compile_mode else DEADLINE_SECONDS
    try:
        measured = clinic.runner().agreement(candidate, STEPS, seconds)
    except AutotuneError as error:
        return str(error)
    verdict = judge_agreement(measured, candidate.config, plain.config)
    return verdict.reason if verdict.outcome == "disagrees" else None


def _finding(knob: str, tried: Sequence[Scalar], drops: Sequence[Drop], needs: str = "") -> Finding:
    if not drops:
        return Finding(name=knob, status="ok", found=f"as eager fp32: {', '.join(map(str, tried))}")
    return Finding(
        name=knob,
        status="does not hold",
        found="; ".join(f"{drop.value}: {drop.reason}" for drop in drops),
        remedy=f"it is left out of the search{needs}",
        drops=tuple(drops),
    )
