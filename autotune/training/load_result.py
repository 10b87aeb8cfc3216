"""Loads a result file into a training script; warnings name what differs from the measurement, and what is left out."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from autotune.errors import ConfigError, WorkloadError
from autotune.hardware.host import read_cpu
from autotune.knobs import KNOBS, TrainConfig
from autotune.results.result import Result, read_result
from autotune.torch_settings.packages import installed
from autotune.training.ranks import this_rank
from autotune.training.tuned import Tuned, another_workload, comparable, torch_device
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
    """Loads the tuned configuration of a result file, ready for training.

    Warns when this machine, its torch or the workload differs from the measured one; settings that this torch lacks, or
    whose package is not installed, keep their defaults. Without `workload`, `Tuned.prepare` compares the model and the
    optimizer.

    Args:
        path: A result file.
        device: By default the kind that was measured.
        workload: The return value of ``build()``; compared at once, data and effective batch included.
        strict: Raise an error instead of a warning.
        realised: From `Tuned.prepare` on, note the rate of training beside the file, for `autotune show` and `autotune
            check`. The integrations do so too.

    Raises:
        ResultFileError: The file is missing, broken or of another schema.
        ConfigError: This machine has no such device; with `strict`, also when something differs.
        WorkloadError: `workload` is not one.
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
    config, lacks = _without_what_is_lacking(result.best.config)
    tuned = Tuned(config, device=device or measured, result=result, source=str(path), strict=strict, realised=realised)
    differences = _machine_differences(result, tuned.device) + _ranks_differences(result)
    sentences = [
        f"{name}={getattr(result.best.config, name)} needs {why}, which is not here"
        + ("" if strict else f"; {getattr(config, name)} is used instead")
        for name, why in lacks.items()
    ]
    if differences:
        sentences.append(
            f"{path} was measured elsewhere ({'; '.join(differences)}): expect a different speed; "
            f"run 'autotune check {path}' to see whether it holds here"
        )
    if workload is not None and _is_another(workload, result):
        measured_one = f"it is not {result.workload.name} ({result.workload.target}) as it was measured"
        sentences.append(another_workload(str(path), measured_one))
    if sentences and strict:
        raise ConfigError("; ".join([*sentences, "tune on this machine, or load it without strict"]))
    for sentence in sentences:
        warnings.warn(sentence, stacklevel=2)
    return tuned


def _without_what_is_lacking(config: TrainConfig) -> tuple[TrainConfig, dict[str, str]]:
    """The config with the defaults of the knobs that cannot be used here, and what each of them needs."""
    values, here = config.model_dump(), str(torch.__version__)
    packages = installed() if any(values[name] in knob.needs for name, knob in KNOBS.items()) else []
    lacks = {name: why for name, knob in KNOBS.items() if (why := knob.lack(values[name], here, packages)) is not None}
    return config.replace(**{name: KNOBS[name].default for name in lacks}), lacks


def _machine_differences(result: Result, device: torch.device) -> list[str]:
    """Differences from the measured machine that matter to speed; empty when there are none."""
    kind = "cuda" if result.constraints.device == "rocm" else result.constraints.device
    pairs: list[tuple[str, object, object]] = [
        ("torch", result.software.torch, str(torch.__version__)),
        ("device", kind, device.type),
    ]
    if device.type == "cuda":
        measured_gpu = result.hardware.gpus[0].name if result.hardware.gpus else None
        pairs.append(("GPU", measured_gpu, torch.cuda.get_device_name(device)))
    else:
        cpu, measured = read_cpu({}), result.hardware.cpu
        pairs += [("CPU", measured.model, cpu.model), ("CPUs", measured.budget, cpu.budget)]
    return [f"{what} {there} there, {here} here" for what, there, here in pairs if there != here]


def _ranks_differences(result: Result) -> list[str]:
    """A sentence where the number of ranks differs from the measured one, with the effective batch that results."""
    config, here = result.best.config, this_rank().count
    if config.ranks == here:
        return []
    effective = config.replace(ranks=here).effective_batch
    return [
        f"ranks {config.ranks} there, {here} here, so that an optimizer step takes {effective:,} samples instead of "
        f"{config.effective_batch:,}"
    ]


def _is_another(workload: Any, result: Result) -> bool:
    """Whether a workload has another fingerprint; draws one sample and creates an optimizer to find out.

    Raises:
        WorkloadError: The object is no workload, or its dataset is empty.
    """
    built = adapt(workload, "workload")
    if not comparable(built.model, result):
        return False
    for sample in draw_samples(built):
        return fingerprint(built, built.make_optimizer(), sample) != result.workload.fingerprint
    raise WorkloadError("workload: the dataset yields no sample; check its path or its filter")
