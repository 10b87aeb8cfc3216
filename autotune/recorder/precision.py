"""In how many bits is computed: autocast around what is trained, and TF32 for products of fp32."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .undo import Undo, nothing, unless_changed

if TYPE_CHECKING:
    import torch

HALF = ("bf16", "fp16")
"""Precisions of 16 bits: autocast computes in them."""


def torch_dtype(precision: str) -> torch.dtype:
    """The type that matrices are multiplied in; tf32 is a way to multiply fp32."""
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """``torch.autocast``; does nothing for fp32 and tf32."""
    import torch

    return torch.autocast(device.type, dtype=torch_dtype(precision)) if precision in HALF else contextlib.nullcontext()


def matmul_precision() -> str | None:
    """What the older interface says; None where torch refuses to, the newer one having been used as well."""
    import torch

    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def convolution_in_tf32() -> bool | None:
    """What the older interface says of convolutions; None where torch refuses to, as `matmul_precision`."""
    import torch

    try:
        return torch.backends.cudnn.allow_tf32
    except RuntimeError:
        return None


def products() -> Undo:
    """Remembers in which precision products of fp32 are computed; returns what puts that back."""
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
    """Computes products of fp32 in ``tf32``, or else exactly, for a while, whatever the user's module has set."""
    import torch

    put_back = products()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        put_back()


def set_tf32(precision: str, device: torch.device) -> Undo:
    """TF32 for matmul and convolution, or none for matmul; convolutions have it by torch's own default.

    Beside half precision, what is left in fp32 computes as the user's module has set it.

    By the older interface on purpose: after the newer one alone (``fp32_precision``), reading the matmul precision, as
    Inductor does, raises; after this one both can be read, whichever of them the user's code has set before.
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
