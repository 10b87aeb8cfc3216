"""Where a script trains: with which torch, on which GPU, on how many ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .ranks import count_ranks


def here() -> dict[str, Any]:
    """What is not known before the script trains; ``gpu`` is None where it uses none."""
    import torch

    return {
        "torch": str(torch.__version__),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_initialized() else None,  # type: ignore[no-untyped-call]
        "ranks": count_ranks(),
    }


def differences(measured: Mapping[str, Any]) -> list[str]:
    """How this training differs from the measured one, a few words each; `here` returned ``measured`` there."""
    return [
        f"{name.replace('gpu', 'GPU')} {measured[name] or 'none'} there, {now or 'none'} here"
        for name, now in here().items()
        if name in measured and measured[name] != now
    ]
