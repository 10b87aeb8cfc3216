"""Hooks the moment before a script first uses CUDA, the last one at which it can be forked.

Everything that opens CUDA in torch calls ``torch._C._cuda_init`` through ``torch.cuda._lazy_init``: a tensor that is
moved there, a stream, a query of the device's properties. In bursts, torch asks NVML whether a device exists
(``PYTORCH_NVML_BASED_CUDA_CHECK``), which does not open CUDA. A process that has opened CUDA cannot be forked. Nor can
one that has queried the driver in another way; this is tested.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

Opener = Callable[[], Any]


def before_cuda(then: Callable[[Opener], None]) -> None:
    """Calls a function before CUDA is opened in this process, then torch's own opener.

    If the function forks the process, the script continues in the child, and opens CUDA there.

    Args:
        then: Receives torch's own opener.
    """
    own: Opener = getattr(torch._C, "_cuda_init", lambda: None)  # a build without CUDA has none
    home = os.getpid()

    def opened() -> Any:
        if os.getpid() == home:
            then(own)
        return own()

    torch._C._cuda_init = opened


def open_in_fork(own: Opener) -> None:
    """Opens CUDA in a process that was forked within `before_cuda`, and computes there.

    Raises:
        RuntimeError: CUDA cannot be opened here.
    """
    if torch.cuda._is_in_bad_fork():
        raise RuntimeError("the driver was asked before the fork")
    torch.cuda._tls.is_initializing = True  # the forked parent holds its lock, within this call
    own()
    if torch.cuda.is_available():
        float(torch.ones(8, device="cuda").sum())
