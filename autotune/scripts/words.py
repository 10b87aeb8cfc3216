"""Knobs in the words of a script: arguments of loaders and frameworks, statements of torch's, methods of a model."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any, NamedTuple

from autotune.knobs import DATALOADER_ARGUMENTS, KNOBS
from autotune.knobs.knob import Framework
from autotune.recorder.telling import OWN_MODES
from autotune.scripts.source import Source, literal

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
"""What an argument is that is not given: of DataLoader, and of TrainingArguments, which pins by itself."""
_TRACING = {"torch.jit.trace", "torch.jit.trace_module", "torch.onnx.export"}


class Statement(NamedTuple):
    """A statement of torch's: a call of a function, or an attribute that is set."""

    name: str
    value: Any
    text: str
    is_call: bool


def absent(name: str, value: object) -> bool:
    """Whether an argument that is not given has this value already."""
    return any(value is one or (type(value) is type(one) and value == one) for one in _ABSENT.get(name, ()))


def framework_call(source: Source) -> tuple[Framework, ast.Call | None] | None:
    """The framework that a file imports, and the call that takes its words; None where it imports none.

    Without such a call, transformers takes them from the command line.
    """
    imported = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            imported.add(node.module.partition(".")[0])
    makers = {
        "transformers": lambda name: name.endswith("TrainingArguments"),
        "lightning": lambda name: name == "Trainer",
        "fabric": lambda name: name == "Fabric",
        "accelerate": lambda name: name == "Accelerator",
    }
    found: list[Framework] = [framework for package, framework in _PACKAGES.items() if package in imported]
    if "lightning" in found:
        found.append("fabric")
    for framework in found:
        is_maker = makers[framework]
        calls = [call for call in source.calls() if any(map(is_maker, _of(framework, source.meanings(call.func))))]
        if len(calls) == 1:
            return framework, calls[0]
    if "transformers" in found and source.calls("HfArgumentParser"):
        return "transformers", None
    # transformers is imported for its models and tokenizers too, by loops of the script's own.
    others = [framework for framework in found if framework != "transformers"]
    return (others[0], None) if others else None


def _of(framework: Framework, names: Iterable[str]) -> list[str]:
    """The last parts of those names that come from a framework's own packages: a script may have a Trainer, too."""
    package = "lightning" if framework == "fabric" else framework
    return [name.rpartition(".")[2] for name in names if _PACKAGES.get(name.partition(".")[0]) == package]


def arguments(framework: Framework, knob: str, value: Any, optimizer: str | None) -> dict[str, Any] | None:
    """A knob in a framework's own keyword arguments; None where it has none for this value."""
    word = KNOBS[knob].words.get(framework)
    if isinstance(word, str):
        return {word: value}
    told: dict[tuple[str, str], dict[str, Any]] = {("lightning", "cudnn_benchmark"): {"benchmark": value}}
    if value not in OWN_MODES:
        told["transformers", "compile_mode"] = {"torch_compile": True, "torch_compile_mode": value}
    if value == "bf16":
        mixed = {"precision": "bf16-mixed"}
        told |= {("lightning", knob): mixed, ("fabric", knob): mixed, ("accelerate", knob): {"mixed_precision": value}}
    if value in {"bf16", "tf32"}:
        told["transformers", knob] = {value: True}
    if optimizer == "AdamW":
        name = "adamw_torch_fused" if value == "fused" else "adamw_torch"
        told["transformers", "optimizer_impl"] = {"optim": name}
    return told.get((framework, knob))


def statement(knob: str, value: Any) -> Statement | None:
    """A knob of the whole process as a statement of torch's; None where it has none."""
    if knob == "num_threads" and value is not None:
        return _call("set_num_threads", value)
    if knob == "precision" and value == "tf32":
        return _call("set_float32_matmul_precision", "high")
    if knob == "cudnn_benchmark":
        name = "backends.cudnn.benchmark"
        return Statement(name, value, f"torch.{name} = {literal(value)}", is_call=False)
    return None


def on_model(knob: str, value: Any) -> str | None:
    """A knob as a call of a method of the model; None where it has none."""
    if knob == "compile_mode" and value is not None and value not in OWN_MODES:
        return ".compile()" if value == "default" else f".compile(mode={literal(value)})"
    if knob == "memory_format":
        return f".to(memory_format=torch.{'channels_last' if value == 'channels_last' else 'contiguous_format'})"
    return None


def traces(source: Source) -> bool:
    """Whether a file traces a model as it is called: for an export, or a drawing of its graph."""
    found = (source.meanings(call.func) & _TRACING for call in source.calls())
    return any(found) or bool(source.calls("add_graph"))


def _call(name: str, value: Any) -> Statement:
    return Statement(name, value, f"torch.{name}({literal(value)})", is_call=True)
