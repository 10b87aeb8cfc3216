"""Knobs as arguments in a script: those of loaders, and of frameworks' objects."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from autotune.knobs import DATALOADER_ARGUMENTS, KNOBS
from autotune.knobs.knob import Framework
from autotune.recorder.compiled import OWN_MODES
from autotune.scripts.source import Source

LOADER = DATALOADER_ARGUMENTS
_PACKAGES: dict[str, Framework] = {
    "transformers": "transformers", "lightning": "lightning", "pytorch_lightning": "lightning",
    "accelerate": "accelerate",
}  # fmt: skip
_ABSENT: dict[str, tuple[object, ...]] = {
    "num_workers": (0,), "prefetch_factor": (None, 2), "pin_memory": (False,), "persistent_workers": (False,),
    "in_order": (True,), "dataloader_num_workers": (0,), "dataloader_prefetch_factor": (None, 2),
    "dataloader_pin_memory": (True,), "dataloader_persistent_workers": (False,),
}  # fmt: skip
"""Defaults of DataLoader and of TrainingArguments, which pins memory by default."""


def absent(name: str, value: object) -> bool:
    """Whether an argument that is not given has this value already."""
    return any(
        value is default or (type(value) is type(default) and value == default) for default in _ABSENT.get(name, ())
    )


def framework_call(source: Source) -> tuple[Framework, ast.Call] | None:
    """The one call that takes a framework's arguments, and the framework; None if there is no such call."""
    makers = [(framework, call) for call in source.calls() for framework in _made(source.meanings(call.func))]
    order: tuple[Framework, ...] = ("transformers", "lightning", "accelerate", "fabric")
    for framework in order:
        calls = [call for own, call in makers if own == framework]
        if len(calls) == 1:
            return framework, calls[0]
    return None


def _made(names: Iterable[str]) -> set[Framework]:
    """The frameworks whose object a call of one of these names makes; a script may have a Trainer of its own."""
    made: set[Framework] = set()
    for name in names:
        package, last = _PACKAGES.get(name.partition(".")[0]), name.rpartition(".")[2]
        if package == "transformers" and last.endswith("TrainingArguments"):
            made.add("transformers")
        elif package == "lightning" and last in {"Trainer", "Fabric"}:
            made.add("lightning" if last == "Trainer" else "fabric")
        elif package == "accelerate" and last == "Accelerator":
            made.add("accelerate")
    return made


def arguments(framework: Framework, knob: str, value: Any, optimizer: str | None) -> dict[str, Any] | None:
    """A knob in a framework's own keyword arguments; None if it has none for this value."""
    word = KNOBS[knob].words.get(framework)
    if isinstance(word, str):
        return {word: value}
    words: dict[tuple[str, str], dict[str, Any]] = {("lightning", "cudnn_benchmark"): {"benchmark": value}}
    if value not in OWN_MODES:
        words["transformers", "compile_mode"] = {"torch_compile": True, "torch_compile_mode": value}
    if value == "bf16":
        mixed = {"precision": "bf16-mixed"}
        words |= {("lightning", knob): mixed, ("fabric", knob): mixed, ("accelerate", knob): {"mixed_precision": value}}
    if value in {"bf16", "tf32"}:
        words["transformers", knob] = {value: True}
    if optimizer == "AdamW":
        name = "adamw_torch_fused" if value == "fused" else "adamw_torch"
        words["transformers", "optimizer_impl"] = {"optim": name}
    return words.get((framework, knob))
