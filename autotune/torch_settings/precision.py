"""Precision of computation: autocast for training, and TF32 for products of fp32."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .undo import Undo, nothing, unless_changed

if TYPE_CHECKING:
    import torch

HALF = ("bf16", "fp16")
"""16-bit precisions, which use autocast."""


def torch_dtype(precision: str) -> torch.dtype:
    """The type of matrix products; tf32 multiplies fp32 tensors."""
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)


def is_half(dtype: torch.dtype) -> bool:
    """Whether a type is one of the half precisions."""
    return any(dtype == torch_dtype(precision) for precision in HALF)


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """``torch.autocast``; does nothing for fp32 and tf32."""
    import torch

    return torch.autocast(device.type, dtype=torch_dtype(precision)) if precision in HALF else contextlib.nullcontext()


def matmul_precision() -> str | None:
    """The setting in torch's older interface; None if torch refuses to read it because the newer one was used too."""
    import torch

    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def convolution_in_tf32() -> bool | None:
    """The older interface's setting for convolutions; None if torch refuses to read it, see `matmul_precision`."""
    import torch

    try:
        return torch.backends.cudnn.allow_tf32
    except RuntimeError:
        return None


def products() -> Undo:
    """Saves the precision of fp32 products; returns a function that restores it."""
    import torch

    matmul, convolution = matmul_precision(), convolution_in_tf32()
    # The newer settings distinguish "never set" from "exact", and compiled code is cached by them.
    backends = torch.backends.cuda, torch.backends.mkldnn
    parts: list[Any] = [getattr(backend, "matmul", None) for backend in backends]
    if convolution is None:
        parts += [getattr(torch.backends.cudnn, name, None) for name in ("conv", "rnn")]
    newer = [part for part in parts if hasattr(part, "fp32_precision")]
    before = [part.fp32_precision for part in newer]

    def put_back() -> None:
        if matmul is not None:
            torch.set_float32_matmul_precision(matmul)
        if convolution is not None:
            torch.backends.cudnn.allow_tf32 = convolution
        for part, precision in zip(newer, before, strict=True):
            part.fp32_precision = precision

    return put_back


@contextlib.contextmanager
def products_in(precision: str) -> Iterator[None]:
    """Computes fp32 products in ``tf32``, or else exactly, within its block, whatever the user's module has set."""
    import torch

    put_back = products()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        put_back()


def set_tf32(precision: str, device: torch.device) -> Undo:
    """Enables TF32 for matmul and convolution, or disables it for matmul; torch enables it for convolution by default.

    With half precision, remaining fp32 products keep the user's setting.

    It uses the older interface on purpose. After the newer one alone (``fp32_precision``), reading the matmul precision
    raises, which Inductor does. After the older one both can be read, whichever of them the user's code has set.
    """
    import torch

    undo = products()
    if precision == "tf32":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
    elif precision == "fp32" and device.type == "cuda" and matmul_precision() != "highest":
        torch.set_float32_matmul_precision("highest")
    else:
        return nothing
    return unless_changed(lambda: (matmul_precision(), convolution_in_tf32()), undo)
