"""Applies a result's settings to a whole training: as the script starts, or by one line in the script."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.errors import ResultFileError, UsageError
from autotune.hardware import Cpu
from autotune.hardware.host import read_cpu
from autotune.knobs.changes import changes_of
from autotune.recorder.arrival import ORDERS
from autotune.recorder.importing import after_import
from autotune.results.result import Result, ScriptRecord, read_result
from autotune.results.trainings import order_of
from autotune.scripts.changes import MAY_CHANGE_DATA
from autotune.scripts.script import Script

_LOOP: dict[str, type] = {"device": str, "loaders": list, "models": list, "accumulation": int, "optimizers": int}
"""What a launch reads of a script's loop."""


def apply(path: str | Path, *, realised: bool = False) -> None:
    """Trains with a result's settings from here on; call it at the top of the script that was tuned.

    Warns when the machine is not the one that was measured. Does nothing under ``autotune launch``, which has done the
    same already, and in bursts, which measure the script without it. Another result takes the place of the former one.

    Args:
        path: A result file of ``autotune run``. Trainings start anywhere: if a relative path does not exist in the
            working directory, it counts from the calling script's folder, or from one above that.
        realised: Whether to note beside the file which speed the training reaches, for `autotune show` and
            `autotune check`.

    Raises:
        ResultFileError: When the file is missing, broken or of another schema.
        UsageError: When it is not the result of a script.
    """
    path = _sought(path, sys._getframe(1).f_globals.get("__file__"))
    result = read_result(path)
    orders = orders_of(result, path, realised=realised)
    if ORDERS in os.environ:
        return  # the recorder is here already: the script is launched with a result, or tuned again unchanged
    for difference in _of_machine(result, path, read_cpu({})):
        warnings.warn(difference, stacklevel=2)

    def begin() -> None:
        from autotune.recorder import launched

        launched.begin(orders)

    after_import("torch", begin)  # importing torch reads the environment: the script may set it before


def _sought(path: str | Path, script: str | None) -> str | Path:
    if script is None or not isinstance(path, (str, os.PathLike)) or Path(path).exists():
        return path
    return next((place for folder in Path(script).resolve().parents if (place := folder / path).exists()), path)


def orders_of(result: Result, path: str | Path, *, realised: bool) -> dict[str, Any]:
    """The recorder's orders, with or without noting the speed that the training reaches.

    Raises:
        ResultFileError: The file does not describe the training's loop in the script.
        UsageError: It is not the result of a script.
    """
    script = script_of(result, path)
    if missing := [name for name, kind in _LOOP.items() if not isinstance(script.loop.get(name), kind)]:
        raise ResultFileError(
            f"{path} is broken: workload.script.loop lacks a valid {', '.join(missing)}; "
            "tune again, or restore the file"
        )
    changes = changes_of(result.best.config, result.baseline.config)
    left_out = []
    if changes["loader"].get("persistent_workers") and script.source.may_change_data:
        del changes["loader"]["persistent_workers"]
        left_out.append(f"workers do not persist: {MAY_CHANGE_DATA}, which they would not see")
    orders = {"role": "launch", "loop": script.loop, "changes": changes, "left_out": left_out}
    return {**orders, "realised": order_of(result, path, _step_samples(script.loop))} if realised else orders


def _step_samples(loop: Mapping[str, Any]) -> float | None:
    """Samples of an optimizer step in a loop without a loader; None where backward passes were counted, not steps."""
    samples = loop.get("step_samples")
    if loop["loaders"] or loop.get("updates_itself") or not isinstance(samples, (int, float)):
        return None
    return float(samples * max(1, loop["accumulation"]) / max(1, loop["optimizers"]))


def script_of(result: Result, path: str | Path) -> ScriptRecord:
    """The script of a result.

    Raises:
        UsageError: It has none.
    """
    if result.workload.script is None:
        raise UsageError(
            f"{path}: expected a result of 'autotune run', got one of {result.workload.target}; "
            f"load it with autotune.load({str(path)!r})"
        )
    return result.workload.script


def differences(result: Result, path: Path, script: Script, cpu: Cpu, *, strict: bool) -> list[str]:
    """The differences from the machine and script that were measured, a sentence each.

    Raises:
        UsageError: With `strict`, if there is any.
    """
    sentences = _of_machine(result, path, cpu)
    tuned = result.workload.script
    if tuned is not None and Script(tuned.command).name != script.name:
        sentences.append(
            f"{path} was measured with {Script(tuned.command).name}, not with {script.name}: expect a different gain"
        )
    if strict and sentences:
        raise UsageError(f"{sentences[0]}; tune here, or leave out --strict")
    return sentences


def _of_machine(result: Result, path: str | Path, cpu: Cpu) -> list[str]:
    measured = result.hardware.cpu
    if (measured.model, measured.budget) == (cpu.model, cpu.budget):
        return []
    return [
        f"{path} was measured on {measured.model} with {measured.budget} CPUs, here are {cpu.budget} of {cpu.model}: "
        "expect a different speed"
    ]
