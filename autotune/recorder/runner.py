"""A script as a runner: it goes on from its training loop, and trains blocks as it is told.

Its gate is the moment before a batch is drawn, when all that was drawn has been trained on; in a script without a
loader, the end of an optimizer step.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from time import time
from typing import TYPE_CHECKING, Any

from . import ending, hooks, keeping
from .changes import Changes
from .gate import Gate
from .naming import find_models, loader_key, model_key
from .order import seed_all
from .server import serve, unsafe_reason
from .stream import Stream
from .usage import MemoryWatch
from .wire import Wire

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader


def begin(orders: dict[str, Any]) -> None:
    """Waits for the training loop, as the orders describe it, to become a job there, or a server that forks jobs."""
    Runner(orders)


class Runner:
    """Leads a script from its start to its training loop, and what happens there.

    Args:
        orders: ``role``: ``serve`` or ``job``; ``socket``: the parent's; ``loop``: what a look at the script found;
            ``keep``: the folder that what the script writes is told in.
    """

    def __init__(self, orders: dict[str, Any]) -> None:
        self._orders = orders
        self._loop: dict[str, Any] = orders["loop"]
        self._wire: Wire | None = None
        self._gate: Gate | None = None
        self._request: dict[str, Any] = {}
        self._changes = Changes({})
        self._models: list[Any] = []
        self._passed = 0
        self._main: Stream | None = None
        self._doing = ["being started"]
        self._threads: int | None = None
        self._set_threads: Callable[[int], None] = lambda _: None
        keeping.keep(orders["keep"])
        hooks.on_iterate(self._on_iterate)
        hooks.on_step(self._before_step, self._after_step)
        hooks.on_backward(self._on_backward)
        if not self._loop["loaders"]:
            self._end_of_search = hooks.on_outermost_forward(self._on_forward)
        if orders["role"] == "serve":
            self._postpone_threads()

    def _on_iterate(self, loader: DataLoader[Any], iterate: hooks.Iterate) -> Iterator[Any]:
        import torch

        keys = self._loop["loaders"]
        key = loader_key(loader)
        if key not in keys or not torch.is_grad_enabled():
            return iterate(loader)
        is_main = key == keys[0]
        gate = self._gate
        if gate is None:
            if not is_main:
                return iterate(loader)
            self._passed += 1
            if self._passed <= self._loop["passed"]:
                return iterate(loader)
            gate = self._arrive()
        if is_main and self._main is not None:
            return self._main  # the script left it, and begins again: the stream goes on
        before_draw = gate.before_draw if is_main else lambda: None
        part = self._request["plan"]["part"]
        stream = Stream(loader, self._changes, self._request["seed"], before_draw, cached=part == "compute")
        if is_main:
            self._main = gate.stream = stream
            if part == "loader":
                gate.drain()
        return stream

    def _on_forward(self, model: Any, _: tuple[Any, ...]) -> None:
        """Without a loader: the first call of the model in training is where the loop begins."""
        import torch

        if self._gate is None and torch.is_grad_enabled() and model_key(model) in self._loop["models"]:
            self._end_of_search()
            self._arrive()

    def _arrive(self) -> Gate:
        """At the training loop: a server stays here, and each of its jobs goes on; so does a job of its own."""
        try:
            self._wire = Wire.to(self._orders["socket"])
        except OSError:
            os._exit(1)  # the parent is gone
        keeping.in_loop()
        self._models = find_models(self._loop["models"])  # now: what is frozen for a fork is listed no more
        sys.stdout.flush()
        if self._orders["role"] == "serve":
            reason = unsafe_reason()
            self._wire.send("ready", pid=os.getpid(), fork_unsafe_reason=reason)
            self._wire, self._request = serve(self._wire, reason)
            hooks.move_home()
        else:
            self._request = self._wire.receive()
            self._wire.number = self._request["number"]
        return self._become(self._wire)

    def _become(self, wire: Wire) -> Gate:
        """Applies the job's changes, and makes its gate."""
        import torch

        request = self._request
        if self._threads is not None:
            torch.set_num_threads = self._set_threads  # type: ignore[assignment]
            torch.set_num_threads(self._threads)
        wire.send("phase", phase="build")
        ending.tell_how_it_ends(wire, self._doing)
        self._doing.append("taking its first steps")
        memory = MemoryWatch(request["memory_limit_bytes"], lambda seen: _exceeded(wire, request, seen))
        if request["memory_fraction"] is not None and torch.cuda.is_available():
            torch.cuda.set_per_process_memory_fraction(request["memory_fraction"])
        self._changes = Changes(request["changes"])
        self._changes.on_process(torch.device(self._loop["device"]))
        self._changes.on_models(self._models)
        seed_all(request["seed"] + (request["trace"] or {}).get("noise", 0))
        gate = self._gate = Gate(wire, request, self._loop, self._changes, memory, self._doing)
        gate.start_seconds = max(0.0, time() - request["asked_at"])
        wire.send("phase", phase="warm up")
        return gate

    def _postpone_threads(self) -> None:
        """One thread until the last fork, which a pool of threads that has computed does not survive."""
        import torch

        self._threads, self._set_threads = torch.get_num_threads(), torch.set_num_threads

        def remember(count: int) -> None:
            self._threads = count

        torch.set_num_threads(1)
        torch.set_num_threads = remember  # type: ignore[assignment]

    def _before_step(self, optimizer: Optimizer) -> None:
        if self._gate is not None:
            self._changes.on_optimizer(optimizer)
            self._gate.before_step(optimizer)

    def _after_step(self, optimizer: Optimizer) -> None:
        if self._gate is not None:
            self._gate.after_step(optimizer)

    def _on_backward(self, loss: torch.Tensor) -> None:
        if self._gate is not None:
            self._gate.last_loss = loss.detach() if loss.numel() == 1 else None
            self._gate.losses_seen(loss)


def _exceeded(wire: Wire, request: dict[str, Any], seen: int) -> None:
    """More memory than may be: the burst ends at once."""
    limit = request["memory_limit_bytes"]
    outcome = "oom" if request["device"] in {None, "cpu"} else "host_oom"
    told = f"the process tree took {seen} bytes of host memory, more than the target of {limit}"
    wire.send("failure", outcome=outcome, reason=told)
    os._exit(0)
