"""The ranks of a script, processes that train together: which one this is, what they hang below, where they meet."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterable
from typing import Any

_OF_LAUNCHER = "TORCHELASTIC_USE_AGENT_STORE"


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


class Meeting:
    """Where the ranks meet: another place than the script's, which those of another job may have taken.

    Args:
        port: A free one.
        before: Called before the ranks meet, with this one's number, as far as it is known.
    """

    def __init__(self, port: int, before: Callable[[int], None] = lambda _: None) -> None:
        import torch

        self._port = port
        distributed = torch.distributed
        if not distributed.is_available():
            return
        original: Any = distributed.init_process_group

        @functools.wraps(original)
        def init(backend: Any = None, init_method: str | None = None, *args: Any, **kwargs: Any) -> Any:
            rank = kwargs.get("rank", args[2] if len(args) > 2 else -1)
            before(rank if rank >= 0 else this_rank())
            return original(backend, self._moved(init_method), *args, **kwargs)

        distributed.init_process_group = init

    def move(self, port: int) -> None:
        """Has the ranks of a job meet at a port of its own, which they open themselves."""
        self._port = port
        os.environ[_OF_LAUNCHER] = "False"

    def _moved(self, method: str | None) -> str | None:
        """How they find each other, in the words of ``init_process_group``."""
        if os.environ.get(_OF_LAUNCHER) == "True":  # torchrun's own process has opened its port
            return method
        if "MASTER_PORT" in os.environ:
            os.environ["MASTER_PORT"] = str(self._port)
        if method is not None and method.startswith("file://"):
            return f"{method}.{self._port}"
        return method and re.sub(r"(tcp://.*:)\d+", rf"\g<1>{self._port}", method)


def exchange_by(arguments: dict[str, Any], suits: Callable[[Any], bool]) -> list[Any]:
    """Has each ``DistributedDataParallel`` made with these arguments, whatever the script says of them.

    Args:
        arguments: By name.
        suits: Whether they are meant for a model.

    Returns:
        Those that are made: grows.
    """
    from torch.nn.parallel import DistributedDataParallel

    made: list[Any] = []
    original: Any = DistributedDataParallel.__init__

    @functools.wraps(original)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        if suits(args[0] if args else kwargs.get("module")):
            kwargs |= arguments
            made.append(self)
        original(self, *args, **kwargs)

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
