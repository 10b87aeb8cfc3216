"""The ranks of a script, processes that train together: their number, launcher and meeting point."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ..sandbox.system import stat_of
from ..torch_settings.naming import arguments_of
from ..torch_settings.undo import Undo, nothing, put

_OF_LAUNCHER = "TORCHELASTIC_USE_AGENT_STORE"


def count_ranks() -> int:
    """Number of processes that train together."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    return number_in("WORLD_SIZE", 1)


def this_rank() -> int:
    """This process's rank, from 0."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return number_in("RANK", 0)


def number_in(variable: str, otherwise: int) -> int:
    """The number in an environment variable; `otherwise` if it holds none."""
    try:
        return int(os.environ[variable])
    except (KeyError, ValueError):  # a script's own variable may hold anything
        return otherwise


class Meeting:
    """Moves the ranks' meeting point away from the script's own, which another job may have taken.

    Args:
        port: A free port.
        before: Called before the ranks meet, with this rank's number, as far as it is known.
    """

    def __init__(self, port: int, before: Callable[[int], None] = lambda _: None) -> None:
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
        """Makes the ranks of a job meet at a port of its own, which they open themselves."""
        self._port = port
        os.environ[_OF_LAUNCHER] = "False"

    def _moved(self, method: str | None) -> str | None:
        """The ``init_method`` of ``init_process_group`` with the new port."""
        if os.environ.get(_OF_LAUNCHER) == "True":  # torchrun's own process has opened its port
            return method
        if "MASTER_PORT" in os.environ:
            os.environ["MASTER_PORT"] = str(self._port)
        if method is not None and method.startswith("file://"):
            return f"{method}.{self._port}"
        return method and re.sub(r"(tcp://.*:)\d+", rf"\g<1>{self._port}", method)


def exchange_by(arguments: dict[str, Any], suits: Callable[[Any], bool]) -> tuple[list[Any], Undo]:
    """Overrides arguments of each ``DistributedDataParallel`` that the script makes.

    Args:
        arguments: The arguments, by name.
        suits: Whether they apply to a model.

    Returns:
        The list of models made so, which grows, and what ends it.
    """
    made: list[Any] = []
    original: Any = DistributedDataParallel.__init__

    @functools.wraps(original)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        if suits(args[0] if args else kwargs.get("module")):
            kwargs |= arguments
            made.append(self)
        original(self, *args, **kwargs)

    return made, put(DistributedDataParallel, "__init__", construct) if arguments else nothing


def exchange_of(models: Iterable[Any]) -> dict[str, Any] | None:
    """How models exchange gradients, as arguments of ``DistributedDataParallel``; None if they do not use it."""
    for model in models:
        for part in model.modules():
            if isinstance(part, DistributedDataParallel):
                size = None if part.bucket_bytes_cap_default else max(1, round(part.bucket_bytes_cap / 2**20))
                return {**arguments_of(part, DistributedDataParallel), "bucket_cap_mb": size}
    return None


def top_of_run(mark: str) -> int:
    """The topmost ancestor with a text in its environment: the process that started all ranks."""
    top = process = os.getpid()
    with contextlib.suppress(OSError, ValueError, IndexError):
        while process > 1:
            with open(f"/proc/{process}/environ", "rb") as environ:
                if os.fsencode(mark) not in environ.read():
                    break
            top = process
            process = int(stat_of(process)[1])
    return top
