"""The moment before a script first touches CUDA: the last one at which it can be forked.

Whatever opens CUDA in torch comes to ``torch._C._cuda_init``, by way of ``torch.cuda._lazy_init``: a tensor that is
moved there, a stream, a question for the device's properties. Whether there is a device at all is asked of NVML in
bursts (``PYTORCH_NVML_BASED_CUDA_CHECK``), which opens nothing. A process that has opened CUDA cannot be forked, nor
can one that has only asked the driver by other ways; the latter is tried out.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

Opener = Callable[[], Any]


def before_cuda(then: Callable[[Opener], None]) -> None:
    """Calls a function before CUDA is opened in this process: torch's own opener is called when it returns.

    In a process that is forked meanwhile, the script goes on from here, and opens CUDA there.

    Args:
        then: Is given torch's own opener.
    """
    import torch

    own: Opener = getattr(torch._C, "_cuda_init", lambda: None)  # a build without CUDA has none
    home = os.getpid()

    def opened() -> Any:
        if os.getpid() == home:
            then(own)
        return own()

    torch._C._cuda_init = opened


def open_in_fork(own: Opener) -> None:
    """Opens CUDA in a process that was forked while `before_cuda` was called, and computes there.

    Raises:
        RuntimeError: It cannot be opened here.
    """
    import torch

    if torch.cuda._is_in_bad_fork():
        raise RuntimeError("the driver was asked before the fork")
    torch.cuda._tls.is_initializing = True  # its lock is held by who was forked, who is in the middle of this
    own()
    if torch.cuda.is_available():
        float(torch.ones(8, device="cuda").sum())
