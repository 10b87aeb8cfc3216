"""The values that torch has for knobs now, for bursts, your own training, and scripts.

Each function receives a model, its optimizer and the device. It returns None if the value cannot be read; a word that
is not a value of the knob says what is there instead. Scripts' processes call the functions by name.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .compiled import compiled_mode
from .layout import layout_of
from .precision import matmul_precision
from .process_settings import FLASH_IMPLEMENTATIONS, asked_of_allocator, form_of
from .wrapping import checkpointed

__all__ = [
    "allocator", "attention", "checkpointed", "compiled_mode", "cudnn_search", "form_of", "fp16_accumulation",
    "layout_of", "nvgemm", "products", "read", "threads",
]  # fmt: skip

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer


def products(_model: nn.Module | None, _optimizer: Optimizer | None, device: torch.device) -> str | None:
    """TF32 if either interface allows it for matrix products; half precision cannot be read."""
    import torch

    if device.type != "cuda":
        return None
    newer = getattr(torch.backends.cuda.matmul, "fp32_precision", "none") == "tf32"
    return "tf32" if newer or matmul_precision() in {"high", "medium"} else "fp32"


def attention(*_: object) -> str | None:
    """The backend of attention that is allowed besides math; ``default`` if several are, ``math`` if none is."""
    import torch

    names = {"flash": "flash_attention", "mem_efficient": "efficient_attention", "cudnn": "cudnn_attention"}
    allowed = [word for name, word in names.items() if getattr(torch.backends.cuda, f"{name}_sdp_enabled", bool)()]
    if allowed == ["flash_attention"] and (later := _flash_implementation()) is not None:
        return later
    return allowed[0] if len(allowed) == 1 else "default" if allowed else "math"


def _flash_implementation() -> str | None:
    """The package that computes FlashAttention in torch's stead, if there is one."""
    from torch.nn import attention

    current = getattr(attention, "current_flash_attention_impl", lambda: None)()
    return next((value for value, name in FLASH_IMPLEMENTATIONS.items() if name == current), None)


def fp16_accumulation(_model: nn.Module | None, _optimizer: Optimizer | None, device: torch.device) -> bool | None:
    """Whether products of fp16 are added up in fp16."""
    import torch

    return torch.backends.cuda.matmul.allow_fp16_accumulation if device.type == "cuda" else None


def nvgemm(_model: nn.Module | None, _optimizer: Optimizer | None, device: torch.device) -> bool | None:
    """Whether Inductor times NVIDIA's kernels for matrix products."""
    config = sys.modules.get("torch._inductor.config")
    return device.type == "cuda" and config is not None and "NVGEMM" in config.max_autotune_gemm_backends


def threads(*_: object) -> int | None:
    """Threads of an operation on the CPU."""
    import torch

    return torch.get_num_threads()


def allocator(_model: nn.Module | None, _optimizer: Optimizer | None, device: torch.device) -> str | None:
    """``tuned`` if the environment makes segments of CUDA's allocator grow."""
    settings = (setting.replace(" ", "").lower() for setting in asked_of_allocator())
    return "tuned" if device.type == "cuda" and "expandable_segments:true" in settings else None


def cudnn_search(_model: nn.Module | None, _optimizer: Optimizer | None, device: torch.device) -> bool | None:
    """Whether cuDNN tries its algorithms for each convolution."""
    import torch

    return torch.backends.cudnn.benchmark if device.type == "cuda" else None


def read(
    functions: Mapping[str, str], models: Sequence[nn.Module], optimizers: Sequence[Optimizer], device: torch.device
) -> dict[str, Any]:
    """The values in force in a script, by knob; ``several`` if models or optimizers differ."""
    values = {}
    for knob, name in functions.items():
        function = getattr(sys.modules[__name__], name)
        pairs = itertools.product(models or (None,), optimizers or (None,))
        if read_values := {function(*pair, device) for pair in pairs} - {None}:
            values[knob] = read_values.pop() if len(read_values) == 1 else "several"
    return values
