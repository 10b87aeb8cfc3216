"""The ranks of a script, processes that train together: which one this is, what they hang below, where they meet."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterable
from typing import Any

_PORT = re.compile(r"(tcp://.*:)\d+")


def count_ranks() -> int:
    """Processes that train together."""
    import torch

    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    return int(os.environ.get("WORLD_SIZE", "1"))


def this_rank() -> int:
    """Which of them this process is, from 0 on."""
    import torch

    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return int(os.environ.get("RANK", "0"))


def meet_at(port: int) -> None:
    """Lets the ranks meet at another port than the script's, which those of another run that lives may have taken.

    Where `torchrun` has started them, its own process has opened the port at which they meet.
    """
    import torch

    distributed = torch.distributed
    if not distributed.is_available():
        return
    original: Any = distributed.init_process_group

    @functools.wraps(original)
    def init(backend: Any = None, init_method: str | None = None, *args: Any, **kwargs: Any) -> Any:
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            if "MASTER_PORT" in os.environ:
                os.environ["MASTER_PORT"] = str(port)
            if init_method is not None:
                init_method = _PORT.sub(rf"\g<1>{port}", init_method)
        return original(backend, init_method, *args, **kwargs)

    distributed.init_process_group = init


def exchange_by(arguments: dict[str, Any]) -> list[Any]:
    """Has each ``DistributedDataParallel`` made with these arguments, whatever the script says of them.

    Returns:
        Those that are made: grows.
    """
    from torch.nn.parallel import DistributedDataParallel

    made: list[Any] = []
    original: Any = DistributedDataParallel.__init__

    @functools.wraps(original)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **{**kwargs, **arguments})
        made.append(self)

    if arguments:
        DistributedDataParallel.__init__ = construct  # type: ignore[method-assign]
    return made


def exchange_of(models: Iterable[Any]) -> dict[str, Any] | None:
    """How the gradients of some models are exchanged, in the arguments of ``DistributedDataParallel``; None: not so."""
    from torch.nn.parallel import DistributedDataParallel

    for model in models:
        for part in model.modules():
            if isinstance(part, DistributedDataParallel):
                size = part.bucket_bytes_cap
                return {
                    "bucket_cap_mb": None if part.bucket_bytes_cap_default else max(1, round(size / 2**20)),
                    "gradient_as_bucket_view": bool(part.gradient_as_bucket_view),
                    "static_graph": bool(part.static_graph),
                    "find_unused_parameters": bool(part.find_unused_parameters),
                }
    return None


def top_of_run(mark: str) -> int:
    """The uppermost process above this one in whose environment something stands: what started all ranks."""
    top = process = os.getpid()
    with contextlib.suppress(OSError, ValueError, IndexError):
        while process > 1:
            with open(f"/proc/{process}/environ", "rb") as told:
                if os.fsencode(mark) not in told.read():
                    break
            top = process
            with open(f"/proc/{process}/stat") as listed:
                process = int(listed.read().rsplit(")", 1)[1].split()[1])
    return top
