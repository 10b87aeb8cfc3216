"""Where a script trains: its torch version, GPU, and number of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .ranks import count_ranks


def here() -> dict[str, Any]:
    """Facts that are unknown before the script trains; ``gpu`` is None if it uses none."""
    return {
        "torch": str(torch.__version__),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_initialized() else None,  # type: ignore[no-untyped-call]
        "ranks": count_ranks(),
    }


def differences(measured: Mapping[str, Any]) -> list[str]:
    """Differences between this training and the measured one, a few words each; ``measured`` comes from `here`."""
    return [
        f"{name.replace('gpu', 'GPU')} {measured[name] or 'none'} there, {now or 'none'} here"
        for name, now in here().items()
        if name in measured and measured[name] != now
    ]
