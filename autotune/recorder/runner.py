"""A script as a runner: from its training loop on, it trains blocks on command.

Its gate is the moment before a batch is drawn, when all earlier batches have been trained on. In a script without a
loader, it is the end of an optimizer step. If the script updates weights itself, it is the next backward pass.
"""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from ..sandbox.inside import announce_step, enter_layer
from ..sandbox.system import adopt_orphans
from ..timing.devices import cuda_devices
from ..timing.usage import UsageWatch, allocator_retries
from ..timing.wire import Wire, parent_has_gone
from ..torch_settings.naming import find_models, loader_key, without_length, wrapped_in
from ..torch_settings.process_settings import tune_allocator
from . import ending, hooks
from .batches import Watched
from .changes import Changes
from .evaluation import Copies
from .feeding import Feeding, Reader, Source
from .malloc_state import free_chunk
from .order import seed_all, seed_start
from .ranks import Meeting, this_rank, top_of_run
from .saving import leave_out_checkpoints
from .script_gate import ScriptGate
from .server import Server, unsafe_reason
from .stream import Stream

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

    from .script_gate import ScriptPlayer


def begin(orders: dict[str, Any]) -> None:
    """Waits for the training loop that the orders describe, to become a job or a server that forks jobs."""
    Runner(orders)


class Runner:
    """Controls a script from its start to its training loop, and within it.

    Args:
        orders: The orders, by these keys:

            - ``role``: ``serve`` or ``job``
            - ``socket``: the parent's socket
            - ``loop``: what a look at the script found
            - ``port``: where ranks may meet
            - ``changes``: the changes of a separate job
            - ``before_cuda``: for a server, the script's first arguments if it opens CUDA before the loop, so that it
              must be forked before that; else None
            - ``sandbox``: see `arrival`
    """

    def __init__(self, orders: dict[str, Any]) -> None:
        self._orders = orders
        self._loop: dict[str, Any] = orders["loop"]
        self._wire: Wire | None = None
        self._gate: ScriptGate | None = None
        self._request: dict[str, Any] = {}
        self._exchange = Changes(orders.get("changes", {})).exchange()
        self._models: list[Any] = []
        self._copies: Copies | None = None
        self._modes: set[int] = set()  # ids of the models and those they only wrap: either may be switched
        self._passed = 0
        self._has_stepped = False
        self._trains_elsewhere = False
        self._evaluates = self._trains_so = False  # in evaluation mode, and trained on all the same
        self._feeding = Feeding(self._loop["loaders"], lambda: self._only_evaluates, self._source_for)
        self._doing = ["being started"]
        self._threads: int | None = None
        self._own_threads: tuple[Any, Any] = (None, None)  # torch's functions
        seed_start()  # a script without a seed makes the same model in each job
        leave_out_checkpoints()
        self._meeting = Meeting(orders["port"], self._on_group)
        hooks.on_iterate(self._on_iterate)
        hooks.on_step(self._before_step, self._after_step)
        hooks.on_backward(self._before_backward, self._after_backward)
        hooks.on_scale(self._on_scale)
        hooks.on_mode(self._on_mode)
        hooks.on_gradients_again(self._on_gradients_again)
        if not self._loop["loaders"]:
            hooks.when_called(self._loop["models"], lambda _: self._arrive_once(), most_calls=None)
        if orders["role"] == "serve":
            self._postpone_threads()
            if orders["before_cuda"] == sys.argv:  # not other processes of the script
                before_cuda(self._on_cuda)

    def _on_iterate(self, loader: DataLoader[Any], iterate: hooks.Iterate) -> Iterator[Any]:
        own = loader_key(loader)
        if not torch.is_grad_enabled():
            return self._iterated_aside(loader, own, iterate)
        keys, key = self._loop["loaders"], self._known_as(own)
        if key not in keys:
            return self._iterated_aside(loader, own, iterate)
        if self._gate is None and key == keys[0]:
            if own == key:
                self._trains_elsewhere = False
                self._passed += 1
                if self._passed <= self._loop["passed"]:
                    return self._iterated_aside(loader, own, iterate)
            self._arrive()
        draws_aside = functools.partial(self._shows_evaluation, own)
        return Reader(loader, key, iterate, self._feeding, draws_aside, is_evaluated=self._only_evaluates)

    def _iterated_aside(self, loader: DataLoader[Any], key: str, iterate: hooks.Iterate) -> Iterator[Any]:
        """An iterator of batches that do not feed training."""
        self._shows_evaluation(key)  # its workers start
        return Watched(iterate(loader), draws=functools.partial(self._shows_evaluation, key))

    def _shows_evaluation(self, by: str) -> None:
        if self._gate is not None:
            self._gate.on_evaluation(by)

    def _on_gradients_again(self) -> None:
        if self._gate is not None:
            self._gate.evaluation.seems_over()

    @property
    def _only_evaluates(self) -> bool:
        """Whether the model is in a mode in which this script does not train."""
        return self._evaluates and not self._trains_so

    def _known_as(self, key: str) -> str:
        """A loader's key in the loop. If a loader of another length trains, its length is ignored."""
        keys: list[str] = self._loop["loaders"]
        if key in keys or not self._trains_elsewhere:
            return key
        return next((candidate for candidate in keys if without_length(candidate) == without_length(key)), key)

    def _source_for(self, loader: DataLoader[Any], key: str) -> Source | None:
        """A source for a loader that feeds training; None before the training loop."""
        gate = self._gate
        if gate is None:
            return None
        is_main = key == self._loop["loaders"][0] and gate.source is None
        source = Source(
            loader,
            lambda: gate.playing.streams,
            lambda: self._stream_for(loader, gate.playing, is_main=is_main, is_cycled=key in self._loop["cycled"]),
            gate.before_draw if is_main else lambda: None,
        )
        if is_main:
            gate.source = source
        return source

    def _stream_for(self, loader: DataLoader[Any], player: ScriptPlayer, *, is_main: bool, is_cycled: bool) -> Stream:
        """Makes a player's stream for a loader."""
        is_replayed = is_cycled and not player.reads_only  # keeping a few batches takes little memory
        stream = Stream(
            loader,
            player.changes,
            player.seed,
            player.effects.drawn,
            cached=player.part == "compute" or is_replayed,
            seeds_reading=bool((self._request["trace"] or {}).get("exact")),
            ranks=self._loop["ranks"],
            usual_samples=self._loop["usual_samples"],
            pass_batches=self._request["pass_batches"],
            clock=player.clock,
        )
        if is_main:
            player.stream = stream
        return stream

    def _arrive_once(self) -> None:
        """Enters a loop without a loader, which begins with the model's first call in training, or the first step."""
        if self._gate is None and not self._loop["loaders"]:
            self._arrive()

    def _on_cuda(self, own: Opener) -> None:
        """Handles the moment before CUDA is opened, ahead of the loop."""
        if multiprocessing.parent_process() is None or self._loop["ranks"] > 1:
            self._part_early(lambda: open_in_fork(own), this_rank())

    def _on_group(self, rank: int) -> None:
        """Handles the moment before the ranks meet: afterwards a process has threads, and cannot be forked."""
        if self._orders["role"] == "serve" and self._loop["opens_group"]:
            self._part_early(None, rank)

    def _part_early(self, try_out: Callable[[], None] | None, rank: int) -> None:
        """Serves jobs from here on; each continues to the loop by itself."""
        if self._wire is not None:
            return
        self._connect()
        self._serve(try_out, rank)
        self._meeting.move(self._request["port"])
        gc.unfreeze()  # the models were frozen too, and must be found at the loop
        ending.report_end(self._parent, self._doing)

    def _arrive(self) -> ScriptGate:
        """Enters the training loop: a server stays here; its jobs, or a separate job, continue."""
        forked = self._wire is not None
        if not forked:
            self._connect()
        self._on_models(find_models(self._loop["models"]))  # now: objects frozen for a fork are no longer listed
        if self._orders["role"] == "job":
            ending.rest_in_the_end(self._parent)
            self._parent.send("joined", pid=os.getpid(), rank=this_rank())
            self._request = self._parent.receive()
            self._parent.number = self._request["number"]
        elif not forked:
            self._serve(None, this_rank())
        if not forked:
            ending.report_end(self._parent, self._doing)
        return self._become(self._parent)

    def _on_models(self, models: list[nn.Module]) -> None:
        """Notes the script's models: at the loop, or, if they are made later, before they are first called."""
        self._models = models
        self._modes = {id(own) for model in models for own in wrapped_in(model)}
        self._copies = Copies(models, self._shows_evaluation)
        self._copies.look_for()
        if self._gate is not None:
            self._gate.on_models(models)

    @property
    def _parent(self) -> Wire:
        assert self._wire is not None  # noqa: S101 - it was made on the way here
        return self._wire

    def _connect(self) -> None:
        try:
            self._wire = Wire.to(self._orders["socket"])
        except OSError:
            os._exit(1)  # the parent has ended

    def _serve(self, try_out: Callable[[], None] | None, rank: int) -> None:
        """Serves until the end; returns only in each job."""
        sys.stdout.flush()
        reason = unsafe_reason(try_out)
        self._parent.send("serves", pid=os.getpid(), rank=rank, fork_unsafe_reason=reason)
        while reason is not None:
            self._parent.receive()  # until the parent ends it
        adopt_orphans()
        server = Server(self._parent.channel.fileno(), self._parent)
        if (job := server.serve()) is None:
            server.kill_jobs()
            parent_has_gone()
        self._request, commands = job
        self._wire = Wire(self._parent.channel, self._request["number"], commands)
        try:
            enter_layer(self._request["layer"])
        except OSError as error:
            self._wire.failure("crashed", f"the job got no layer of its own: {error}")
            ending.leave()
        self._exchange = Changes(self._request["changes"]).exchange()
        if self._threads is not None:
            torch.get_num_threads, torch.set_num_threads = self._own_threads
            torch.set_num_threads(self._threads)

    def _become(self, wire: Wire) -> ScriptGate:
        """Applies the job's changes, and makes its gate."""
        request = self._request
        if not self._models:
            gc.unfreeze()  # some may be made later; then existing ones are searched again
        wire.phase("build")
        self._doing.append(ending.FIRST_STEPS)
        ranks = self._loop["ranks"]
        limit = request["memory_limit_bytes"] and request["memory_limit_bytes"] // ranks
        top = top_of_run(self._orders["socket"]) if ranks > 1 else None
        if request["memory_fraction"] is not None and torch.cuda.is_available():
            for number in cuda_devices() or [torch.cuda.current_device()]:
                torch.cuda.set_per_process_memory_fraction(request["memory_fraction"], number)
        free_chunk(self._loop["evaluation_bytes"])
        device = torch.device(self._loop["device"])
        counters = {"allocator_retries": functools.partial(allocator_retries, device)}
        usage = UsageWatch(limit, lambda seen: _exceeded(wire, request, seen, limit), top=top, counters=counters)
        usage.start()
        if request["steady_malloc"] and device.type == "cpu":
            tune_allocator(device)
        wrapped = self._exchange.wrapped
        gate = ScriptGate(wire, request, self._loop, self._models, wrapped, device, usage, self._doing)
        self._gate = gate
        if not self._models:  # made, or first called, after the loop has begun
            hooks.when_called(self._loop["models"], self._on_models)
        gate.begin()
        seed_all(request["seed"] + (request["trace"] or {}).get("noise", 0))
        return gate

    def _postpone_threads(self) -> None:
        """Uses one thread until the last fork, because a used thread pool does not survive it.

        The script can still read and set the number of threads as usual.
        """
        self._own_threads = (torch.get_num_threads, torch.set_num_threads)
        self._threads = torch.get_num_threads()

        def remember(count: int) -> None:
            self._threads = count

        torch.set_num_threads(1)
        torch.get_num_threads = lambda: self._threads  # type: ignore[assignment, return-value]
        torch.set_num_threads = remember  # type: ignore[assignment]

    def _before_step(self, optimizer: Optimizer) -> None:
        self._arrive_once()
        self._trains_elsewhere |= self._gate is None
        if self._gate is not None:
            self._gate.before_step(optimizer)

    def _after_step(self, optimizer: Optimizer) -> None:
        self._trains_so |= self._evaluates
        if self._gate is not None:
            self._note_step()
            self._gate.after_step(optimizer)

    def _note_step(self) -> None:
        if not self._has_stepped:
            self._has_stepped = True
            announce_step(any_network=self._orders["sandbox"]["any_network"])

    def _before_backward(self, loss: torch.Tensor) -> None:
        if self._loop["updates_itself"]:
            self._arrive_once()
        self._feeding.trains()
        if self._gate is not None:
            self._gate.before_backward(loss)

    def _on_scale(self, scaler: torch.amp.GradScaler) -> None:
        if self._gate is not None:
            self._gate.scale = getattr(scaler, "_scale", None)  # a disabled scaler has none

    def _on_mode(self, module: Any, training: bool) -> None:
        if self._gate is None:
            return
        if id(module) in self._modes:
            self._evaluates = not training
            self._gate.on_mode(module, training=training)
        elif self._copies is not None and not training:
            self._copies.note(module)

    def _after_backward(self) -> None:
        if self._gate is not None:
            if self._loop["updates_itself"]:
                self._trains_so |= self._evaluates
                self._note_step()
            self._gate.after_backward([weight for model in self._models for weight in model.parameters()])


def _exceeded(wire: Wire, request: dict[str, Any], seen: int, limit: int) -> None:
    """Ends the burst because it uses more memory than allowed."""
    outcome = "oom" if request["device"] in {None, "cpu"} else "host_oom"
    message = f"the process tree took {seen} bytes of host memory, more than the target of {limit}"
    wire.failure(outcome, message)
    ending.leave()


Opener = Callable[[], Any]


def before_cuda(then: Callable[[Opener], None]) -> None:
    """Calls a function before CUDA is opened in this process, then torch's own opener.

    That is the last moment at which a script can be forked. Everything that opens CUDA in torch calls
    ``torch._C._cuda_init`` through ``torch.cuda._lazy_init``: a tensor that is moved there, a stream, a query of the
    device's properties. In bursts, torch asks NVML whether a device exists (``PYTORCH_NVML_BASED_CUDA_CHECK``), which
    does not open CUDA. A process that has opened CUDA cannot be forked. Nor can one that has queried the driver in
    another way; this is tested.

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
