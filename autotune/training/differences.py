"""How the machine and the model here differ from what was measured."""

from __future__ import annotations

import torch

from autotune.hardware.host import read_cpu
from autotune.results.result import Result


def comparable(model: torch.nn.Module, result: Result) -> bool:
    """Whether a model can be compared with what was measured.

    What the search chose for arguments of ``build()`` makes another model on purpose, and a lazy model has no weights
    before its first batch.
    """
    lazy = any(isinstance(weight, torch.nn.UninitializedParameter) for weight in model.parameters())
    return not lazy and result.best.parameters == result.baseline.parameters


def machine_differences(result: Result, device: torch.device) -> list[str]:
    """How this machine differs from the measured one, in what matters to speed; empty when alike."""
    measured_on = result.constraints.device
    here: dict[str, object] = {"torch": str(torch.__version__), "device": device.type}
    there: dict[str, object] = {
        "torch": result.software.torch,
        "device": "cuda" if measured_on == "rocm" else measured_on,
    }
    if device.type == "cuda":
        here["GPU"] = torch.cuda.get_device_name(device)
        there["GPU"] = result.hardware.gpus[0].name if result.hardware.gpus else None
    else:
        cpu, measured = read_cpu({}), result.hardware.cpu
        here |= {"CPU": cpu.model, "CPUs": cpu.budget}
        there |= {"CPU": measured.model, "CPUs": measured.budget}
    return [f"{what} {there[what]} there, {here[what]} here" for what in here if there[what] != here[what]]
