"""A result file, loaded into a training script; what has changed since it was measured is told in one sentence."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from autotune.errors import ConfigError, WorkloadError
from autotune.hardware.host import read_cpu
from autotune.results.result import Result, read_result
from autotune.training.ranks import this_rank
from autotune.training.tuned import Tuned, comparable, torch_device
from autotune.workload.fingerprint import fingerprint
from autotune.workload.target import adapt
from autotune.workload.workload import draw_samples


def load(
    path: str | Path,
    *,
    device: str | torch.device | None = None,
    workload: Any = None,
    strict: bool = False,
    realised: bool = False,
) -> Tuned:
    """The tuned configuration of a result file, ready to be used in training.

    Warns when this machine, its torch, or the workload is not what was measured. Without `workload`, the model and the
    optimizer are compared when `Tuned.prepare` gets them.

    Args:
        path: A result file.
        device: Where to train; the kind of device that was measured when None.
        workload: What ``build()`` returns, to be compared at once with what was measured, data and effective batch too.
        strict: Raise instead of warning.
        realised: Note beside the file what training reaches from `Tuned.prepare` on, for `autotune show` and
            `autotune check`; the integrations do so too.

    Raises:
        ResultFileError: When the file is missing, broken or of another schema.
        ConfigError: When this machine has no such device; with `strict`, when something differs.
        WorkloadError: When `workload` is none.
    """
    result = read_result(path)
    if result.ignored is not None:
        warnings.warn(f"{path}: {result.ignored}", stacklevel=2)
    measured = result.constraints.device
    try:
        torch_device(device or measured)
    except ConfigError as error:
        if device is not None:
            raise
        raise ConfigError(
            f"{path} was measured on {measured}, which torch does not find here; "
            "tune on this machine, or pass device= to use its settings on another device all the same"
        ) from error
    tuned = Tuned(
        result.best.config, device=device or measured, result=result, source=str(path), strict=strict, realised=realised
    )
    differences = _machine_differences(result, tuned.device)
    differences += _ranks_differences(result)
    if workload is not None and _is_another(workload, result):
        differences.append(f"the workload is not {result.workload.name} ({result.workload.target}) as it was measured")
    if differences:
        told = (
            f"{path} was measured elsewhere ({'; '.join(differences)}): expect a different speed; "
            f"'autotune check {path}' tells whether it holds here"
        )
        if strict:
            raise ConfigError(f"{told}; tune on this machine, or load it without strict")
        warnings.warn(told, stacklevel=2)
    return tuned


def _machine_differences(result: Result, device: torch.device) -> list[str]:
    """How this machine differs from the measured one, in what matters to speed; empty when alike."""
    kind = "cuda" if result.constraints.device == "rocm" else result.constraints.device
    found: list[tuple[str, object, object]] = [
        ("torch", result.software.torch, str(torch.__version__)),
        ("device", kind, device.type),
    ]
    if device.type == "cuda":
        measured_gpu = result.hardware.gpus[0].name if result.hardware.gpus else None
        found.append(("GPU", measured_gpu, torch.cuda.get_device_name(device)))
    else:
        cpu, measured = read_cpu({}), result.hardware.cpu
        found += [("CPU", measured.model, cpu.model), ("CPUs", measured.budget, cpu.budget)]
    return [f"{what} {there} there, {here} here" for what, there, here in found if there != here]


def _ranks_differences(result: Result) -> list[str]:
    """Whether another number of ranks trains than was measured, and what that makes of the effective batch."""
    config, here = result.best.config, this_rank().count
    if config.ranks == here:
        return []
    effective = config.replace(ranks=here).effective_batch
    return [
        f"ranks {config.ranks} there, {here} here, so that an optimizer step takes {effective:,} samples instead of "
        f"{config.effective_batch:,}"
    ]


def _is_another(workload: Any, result: Result) -> bool:
    """Whether the fingerprint is another one; it takes one sample, and an optimizer that is thrown away.

    Raises:
        WorkloadError: It is no workload, or its dataset is empty.
    """
    built = adapt(workload, "workload")
    if not comparable(built.model, result):
        return False
    for sample in draw_samples(built):
        return fingerprint(built, built.make_optimizer(), sample) != result.workload.fingerprint
    raise WorkloadError("workload: the dataset yields no sample; check its path or its filter")
