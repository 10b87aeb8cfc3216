"""The search inside a real training: candidates play the incumbent block by block, and winners stay.

Settings change where an optimizer has just stepped. A block is some steps, after others that lead in until the loader's
queue is as in training. Blocks of both sides alternate; neighbours make a pair. Steps that hold something else, an
evaluation or the end of an epoch, are no part of a block, unless each step holds it. Whatever goes wrong here ends the
search, never the training.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import os
import shutil
import signal
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter  # by name: the script may replace what `time` holds
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ...timing.clock import clock_of
from ...timing.loop import described
from ...timing.usage import available_bytes, resident_bytes
from ...torch_settings.compiled import compiled_graphs, forget_compiled
from ...torch_settings.layout import convolved
from ...torch_settings.naming import length_of, loader_key, weights_of
from ...torch_settings.packages import installed
from ...torch_settings.process_settings import FORMS, form_of, why_no_form
from ...torch_settings.undo import Undo
from .. import hooks
from ..changes import Changes
from ..drawing import Indices, Own
from ..hooks import harmless
from ..observer import Observer
from ..ranks import count_ranks
from ..samplers import AHEAD
from .adviser import Parent
from .compiling import Compiler
from .draws import Draws
from .eligible import why_no_workers, why_not, why_not_fused
from .evidence import WORST, Evidence, Ledger, Spread
from .models import Models, with_fallback
from .pools import OutdatedError, Pass, Pool, Pools
from .setting import OWN, Setting
from .steps import ODD_TIMES, WARM_STEPS, Steps

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

WARM_SECONDS = 1.0
"""The training before the search, besides `WARM_STEPS`. Not tuned."""
BLOCK_SECONDS = 0.4
"""The length of a block, rounded up to whole steps."""
FEWEST_STEPS, SHORTER = 1, 0.7
"""The steps of the shortest block. While a longer one could cost too much, the next try is shorter by this factor."""
LEAD_STEPS = 1
"""The fewest steps that lead in."""
FEWEST_BATCHES = 12
"""Fewer batches in an epoch leave its workers alone. Their starts and ends lie between the blocks: with 6 batches of
20 ms, a gain of 1.77 x was reported where whole epochs took 7 % longer."""
EPOCH_BLOCKS = 4
"""An epoch must hold that many blocks, or blocks are shorter."""
MOST_STEPS, MOST_SECONDS = 20_000, 900.0
"""After which the search ends, whatever is undecided. Not tuned."""
MOST_PATIENCE_SECONDS = 120.0
"""The same limit for a winner, and for workers that are not forked. Not tuned: a network disk may pause."""
COMPILE_SECONDS = 60.0
"""What compiling a model is assumed to take at worst: on two cores it took 8 to 50 s. What it takes is charged."""
MOST_DRAWS = 500
"""Batches without a step, after which nothing is tuned. Not tuned."""
MOST_OVERRUNS = 3
"""A candidate is out when that many of its blocks in succession overrun. One or two, which may lie side by side, may be
a neighbour's doing."""
ODD_WEIGHT = 0.02
"""The weight of a step that holds something else, in the usual length: it doubles with a dozen in a row. Not tuned."""
AGED_TIMES = 4
"""A candidate is out when its block takes this many times the steps that it needs. Not tuned."""
MOST_OTHERS = 50
"""Steps of other optimizers in a row, after which the one that was tuned is taken to be gone. Not tuned."""
HANG_SECONDS, HANG_STEPS = 5.0, 20
"""A candidate's loader has failed when a batch takes longer than this, and longer than this number of steps. Not
tuned."""
PACE_SECONDS = 5.0
"""The time between two reports of the pace, for `autotune watch`."""
MEMORY_SHARE = 0.5
"""The largest share of the available memory, and of the free part of /dev/shm, for a candidate's loader. Not tuned."""
FREE_SHARE = 0.1
"""The share of a GPU's memory that must be free before a candidate plays that may take more. Not tuned."""
WORKER_SHARE = 0.3
"""A worker copies the pages that it touches: the search expects this share of the process's memory. Not tuned."""
OF_LOADER = ("num_workers", "prefetch_factor", "pin_memory")
"""The knobs that another pool takes."""
COMPILES = "the script compiles its training itself"
SECOND = "the script makes a graph of its gradients, and compiled code cannot compute gradients of gradients"
SHAPES = "its batches were not seen to have one shape, and only one would be compiled"
UNEARNED = "compiling may take a minute for each model, which is more than could be risked so far"
BOTH = ("incumbent", "candidate", "candidate", "incumbent")
"""The order of blocks, so that a slow drift touches both sides alike."""


class Adviser(Protocol):
    """Plans candidates, and hears what comes of them. None of its methods may raise, or block for long."""

    def ask(self, facts: dict[str, Any]) -> None:
        """Asks for candidates."""

    def answer(self) -> list[dict[str, Any]] | None:
        """The candidates, once they are known."""

    def tell(self, event: str, **content: Any) -> None:
        """Reports an event."""


_active: list[LiveTraining] = []  # at most one


@dataclass
class _Block:
    """Steps of one side."""

    setting: Setting
    leads: int  # steps so far that lead in; -1 once it is timed
    steps: int = 0
    age: int = 0  # all steps since it began
    began: float = 0.0
    waited: float = 0.0  # seconds that training had waited for data by then
    is_excused: bool = False  # something of the script's own was long in one of its steps, and was not charged


@dataclass
class _Race:
    """A candidate against the incumbent."""

    words: Mapping[str, Any]
    candidate: Setting
    evidence: Evidence
    blocks: list[float] = field(default_factory=list)  # seconds of a step
    overruns: int = 0  # of its blocks, in succession
    failure: str | None = None


class LiveTraining:
    """Tunes the training of this process while it runs.

    Args:
        adviser: Plans candidates.
        cpus: Number of CPUs for this process.
        allowed: Knobs that may change what is learned.

    Attributes:
        left: Knobs that keep the script's own value, with the reasons.
    """

    def __init__(self, adviser: Adviser, cpus: int, allowed: Sequence[str] = ()) -> None:
        self.left: dict[str, str] = {}
        self._adviser = adviser
        self._cpus, self._allowed = cpus, allowed
        self._process, self._thread = os.getpid(), 0
        self._phase = "warms up"
        self._is_complete = False  # whether all candidates were decided
        self._ledger, self._spread = Ledger(), Spread()
        self._incumbent, self._in_force, self._gain = OWN, OWN, 1.0
        self._changes: dict[int, Changes] = {}
        self._race: _Race | None = None
        self._winners: list[_Race] = []
        self._block: _Block | None = None
        self._candidates: deque[Mapping[str, Any]] = deque()
        self._current: weakref.ref[Pass] | None = None
        self._last: weakref.WeakValueDictionary[str, Pass] = weakref.WeakValueDictionary()  # by the keys of loaders
        self._lasting: weakref.WeakKeyDictionary[DataLoader[Any], Pools] = weakref.WeakKeyDictionary()
        self._own_workers, self._own_prefetch = 0, 2
        self._key: str | None = None
        self._draws = Draws()
        for former in _active:  # frameworks' callbacks begin anew with each fit
            former.end()  # before this one wraps functions of torch, so that wrappers do not pile up
            self._lasting = former._lasting  # workers that persist live on, and so does what they were drawn by
            for pools in self._lasting.values():
                pools.passing = None  # it reports to the former one
        _active[:] = [self]
        self._called = Models()
        self._compiler = Compiler(
            self._on_forward_failed, self._on_created_graph if "compile_mode" in allowed else None
        )
        self._models: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._convolves: list[int] = []
        self._guards: list[Undo] = []
        self._known_optimizer: weakref.ref[Optimizer] | None = None
        self._unfused: str | None = None
        self._others = 0  # steps of other optimizers since the last one
        self._steps = Steps()
        self._block_steps = FEWEST_STEPS
        self._longest_own = 0.0  # `script_seconds` of one of the incumbent's steps
        self._began = perf_counter()
        self._due = math.inf  # when to report the pace
        self._searched_from = (0, 0.0)
        self._device = torch.device("cpu")
        self._ends = [
            hooks.on_iterate(self._on_iterate),
            hooks.on_mode(self._on_mode),
            register_optimizer_step_pre_hook(self._before_step).remove,
            register_optimizer_step_post_hook(self._on_step).remove,
            self._called.end,
        ]
        atexit.register(self._at_exit)

    # What the script does.

    def _on_iterate(self, loader: DataLoader[Any], iterate: hooks.Iterate) -> Iterator[Any]:
        passing = self._begun(loader)
        return iterate(loader) if passing is None else passing

    @harmless
    def _begun(self, loader: DataLoader[Any]) -> Pass | None:
        self._steps.interrupt("pass")
        # Torch would reset an iterator of ours that persists, whose order is that of its last pass.
        is_ours = torch.is_grad_enabled() or loader in self._lasting
        if not is_ours or os.getpid() != self._process:
            return None
        passing = self._passes(loader)
        if passing is None and any(pool.batches is loader._iterator for pool in self._lasting.get(loader, {}).values()):
            loader._iterator = None  # torch would reuse a pool's workers
        return passing

    @harmless
    def _passes(self, loader: DataLoader[Any]) -> Pass | None:
        """A pass of ours through a loader that may feed training; None: it is left to torch."""
        key = loader_key(loader)
        if self._phase == "over" and not self._incumbent.loader and loader not in self._lasting:
            return None
        feeds = self._key in {None, key}  # or may
        if not feeds and loader not in self._lasting:
            return None
        if (why := why_not(loader)) is not None:
            self._draws.unfit.setdefault(key, why)
            return None
        pools = self._lasting.setdefault(loader, Pools()) if loader.persistent_workers else Pools()
        if loader._iterator is None:  # that of workers which persist; scripts set it to None to start them again
            pools.end()
        begins, began = not pools, perf_counter()
        pool = self._pool_for(self._in_force if self._key == key else OWN, loader, pools)
        if self._race is not None and pool.changed == self._race.candidate.of_loader != self._incumbent.of_loader:
            # Charges the start of a pool here, because the first step of a pass is not charged. The script's own loader
            # would start its workers, too: only the extra ones count.
            more = 1 - loader.num_workers / max(1, pool.loader.num_workers)
            self._ledger.spent += max(0.0, more) * (perf_counter() - began)
        order = Indices(loader, Own.of(loader), loader._index_sampler, begins=begins)  # it draws: after the pool's copy
        # Workers of ours may be dead: with the first batch, others take their place.
        lazily = not loader.num_workers or not pool.is_own
        began = perf_counter()
        other = self._last.get(key)
        passing = pools.passing() if pools.passing is not None else None
        if passing is not None:
            passing.begin(order, pool, lazily=lazily)
        else:
            passing = Pass(
                loader,
                order,
                pools,
                pool,
                lazily=lazily,
                draws=functools.partial(self._draw, key),
                drawn=functools.partial(self._on_batch, key),
                failed=self._on_failed,
                ended=self._on_ended,
            )
        pool.start_seconds = pool.start_seconds or perf_counter() - began
        if loader.persistent_workers:
            loader._iterator, pools.passing = pool.batches, weakref.ref(passing)
        if feeds:
            if other is not None and other is not passing and not other.is_over and not other.is_exhausted:
                other.is_superseded = True
            self._last[key] = passing
            if self._phase != "warms up" or self._draws.feeds_most(key):  # else it is read seldom
                self._current = weakref.ref(passing)
        return passing

    @property
    def _pass(self) -> Pass | None:
        """The pass that the script reads; None between passes, and where it has left the last one."""
        passing = self._current() if self._current is not None else None
        return None if passing is None or passing.is_over or passing.is_exhausted else passing

    @property
    def _optimizer(self) -> Optimizer | None:
        """The optimizer that is tuned; None before its first step, and once the script has dropped it."""
        return self._known_optimizer() if self._known_optimizer is not None else None

    @harmless
    def _draw(self, key: str, passing: Pass) -> None:
        if threading.get_ident() == self._thread:
            self._steps.mark_draw()
        if passing.is_superseded and self._phase != "over":
            self._leave_loader(passing)
        if self._phase == "warms up":
            if self._draws.feeds_most(key):
                self._current = weakref.ref(passing)
            self._draws.add(key, passing)
            if self._draws.count > MOST_DRAWS and not self._steps.count:
                self.give_up("no optimizer of torch was seen to step")

    def _leave_loader(self, passing: Pass) -> None:
        """Tries no other setting of the loader from here on: a pass is read beside a later one."""
        why = "several passes through the loader are read at once"
        passing.go_on_with(self._pool_for(self._incumbent, passing.loader, passing.pools))
        self.left |= dict.fromkeys(OF_LOADER, why)
        if (race := self._race) is not None and race.candidate.of_loader != self._incumbent.of_loader:
            race.failure = why

    def _on_batch(self, key: str, passing: Pass, batch: Any, seconds: float) -> None:
        self._steps.waited += seconds
        if self._phase == "warms up":
            self._look_at(key, passing, batch)

    @harmless
    def _look_at(self, key: str, passing: Pass, batch: Any) -> None:
        self._draws.look_at(key, passing, batch)

    @harmless
    def _on_ended(self, passing: Pass) -> None:
        self._steps.interrupt("pass")
        if not passing.loader.persistent_workers:
            passing.pools.end()
        elif self._phase in {"over", "earns"} and loader_key(passing.loader) == self._key:
            self._end_losers(passing.pools)

    def _on_created_graph(self) -> None:
        self.left["compile_mode"] = SECOND
        if self._race is not None and "compile_mode" in self._race.words["knobs"]:
            self._race.failure = SECOND
            self._phase = "races"

    def _on_mode(self, module: Any, training: bool) -> None:
        if module.training and not training:
            self._steps.interrupt("mode")

    def _on_step(self, optimizer: Optimizer, *_: Any) -> None:
        if torch.compiler.is_dynamo_compiling():  # a compiled step would be compiled again for each count
            return
        now = perf_counter()
        if self._phase == "over":
            if optimizer is self._optimizer and self._end_step(now) is not None:
                self._ledger.count_saved(1, self._steps.usual, self._gain)
            return
        if self._phase == "earns":
            self._earn(optimizer, now)
            return
        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():  # waiting would end a CUDA graph
            return
        # Around what is harmless: what the script's handler raises is the script's.
        with _uninterrupted() if self._phase == "races" else contextlib.nullcontext():
            self._advance(optimizer, now)

    @harmless
    def _advance(self, optimizer: Optimizer, now: float) -> None:
        """Handles the end of a step."""
        if self._known_optimizer is None:
            self._take(optimizer)
        if not self._is_tuned(optimizer):
            return
        self._charge_compiling()
        seconds, former = self._end_step(now), self._in_force
        if self._phase == "warms up":
            self._warm(seconds)
        elif self._phase == "asks":
            self._await_answer()
        elif self._phase == "races":
            self._play(seconds)
            if (
                self._steps.count - self._searched_from[0] > MOST_STEPS
                or self._steps.trained - self._searched_from[1] > MOST_SECONDS
            ):
                self._finish("its time is over")
        if self._race is not None and self._in_force is former:
            self._steps.mark_end()
        else:  # copies of pages that workers share follow a switch
            self._steps.unmark()
        end = perf_counter()
        self._steps.resume(end)
        self._ledger.spent += end - now
        if self._compile_seconds(self._in_force):  # torch's compiler has been imported
            self._ledger.compiling += end - now

    def _is_tuned(self, optimizer: Optimizer) -> bool:
        """Whether this is the optimizer that is tuned. The search ends where others have taken its place."""
        if optimizer is self._optimizer:
            self._others = 0
            return True
        if self._phase == "warms up":
            self.left["optimizer_impl"] = "several optimizers step in turn"
        self._others += 1
        self._steps.unmark()
        if self._others > MOST_OTHERS:
            self._finish("another optimizer steps now")
        return False

    @harmless
    def _earn(self, optimizer: Optimizer, now: float) -> None:
        """Waits until the training may lose what compiling takes; a wait of an hour must cost next to nothing."""
        if self._is_tuned(optimizer) and self._race is not None:
            self._count_between(self._end_step(now))
            if self._may_play(self._race.candidate):
                self._phase, self._searched_from = "races", (self._steps.count, self._steps.trained)

    def _charge_compiling(self) -> None:
        """Compiling is no part of a step, so it ends no candidate. The block leads in anew."""
        if seconds := self._compiler.take_seconds():
            self._ledger.count_compiling(seconds)
            self._steps.skip(seconds)
            if self._block is not None:
                self._block.steps, self._block.leads = 0, 0

    def _end_step(self, now: float) -> float | None:
        """Seconds of the step that has just ended; None if it holds something else."""
        seconds = self._steps.end(now, is_warming=self._phase == "warms up")
        if now > self._due:
            self._tell_pace(now)
        return seconds

    # What is asked, and when.

    def _take(self, optimizer: Optimizer) -> None:
        self._known_optimizer, self._thread = weakref.ref(optimizer), threading.get_ident()
        weight = next(iter(weights_of(optimizer)), None)
        device = weight.device if weight is not None else torch.device("cpu")
        self._steps.clock = clock_of(device)
        self._device = device

    def _warm(self, seconds: float | None) -> None:
        """Observes steps until the search can be planned, then asks for candidates."""
        self._draws.end_step(self._steps.count, self._pass)
        if seconds is not None and self._steps.count > WARM_STEPS // 2:
            self._steps.follow(seconds, 0.3)
        if self._steps.count < WARM_STEPS or self._steps.trained < WARM_SECONDS or not self._steps.usual:
            return
        if self._draws.awaits_pass:
            return
        if count_ranks() > 1:
            self._finish("several ranks train together, which must all switch at once")
            return
        self._due = perf_counter()
        self._choose_loader()
        self._choose_models()
        self._phase = "asks"
        self._adviser.ask(self._facts())
        self._await_answer()

    def _choose_loader(self) -> None:
        """The one loader that feeds training, if there is one."""
        if "num_workers" in self.left or self._steps.holds_each("pass"):
            self.left.setdefault("num_workers", "each step begins a pass through a loader")
        elif (why := self._draws.why_unknown(self._pass, self._thread)) is not None:
            self.left["num_workers"] = why
        elif self._pass is not None:
            self._key = loader_key(self._pass.loader)
            self._own_workers = self._pass.loader.num_workers
            self._own_prefetch = self._pass.loader.prefetch_factor or 2
            unfit = None if self._own_workers else why_no_workers(self._pass.loader, self._draws.of(self._key).reading)
            if (length_of(self._pass.loader) or math.inf) < FEWEST_BATCHES:
                unfit = "an epoch has too few batches: starting workers and filling their queue is most of it"
            if unfit is not None:
                self.left["num_workers"] = unfit
        if compiled_graphs():
            self.left |= dict.fromkeys(("optimizer_impl", "num_threads"), COMPILES)
        if self._key is None:
            self.left = dict.fromkeys(OF_LOADER, self.left["num_workers"]) | self.left

    def _choose_models(self) -> None:
        """The models that the optimizer steps, where they may change."""
        self._called.end()
        assert self._optimizer is not None  # noqa: S101 - it has stepped
        models: list[nn.Module] = []
        try:
            models = self._called.stepped_by(self._optimizer)
            self._convolves = convolved(models)
            reasons = self._called.why_not(models)
        except Exception as error:  # noqa: BLE001 - a script's own strange models
            reasons = dict.fromkeys(("precision", "compile_mode"), f"{type(error).__name__}: {error}")
        if len(self._draws.of(self._key).shapes) != 1:
            reasons.setdefault("compile_mode", SHAPES)
        tried = {"memory_format", *self._allowed}
        self.left = {name: why for name, why in reasons.items() if name in tried} | self.left
        self._models = weakref.WeakSet(models)

    def _facts(self) -> dict[str, Any]:
        optimizer, loader = self._optimizer, self._pass.loader if self._pass is not None and self._key else None
        assert optimizer is not None  # noqa: S101 - it has stepped
        source = self._draws.of(self._key)
        return {
            "device": self._device.type,
            "cpus": self._cpus,
            "threads": torch.get_num_threads(),
            "loader": described(loader) if loader is not None else None,
            "moves_augmentation": source.reading.draws_random_numbers,
            "forms": self._forms_of(optimizer),
            "form": form_of(None, optimizer),
            "step_seconds": self._steps.usual,
            "wait_share": self._steps.wait_share,
            "batch_bytes": source.batch_bytes,
            "fixed_shapes": len(source.shapes) == 1,
            "packages": installed(),
            "convolves": self._convolves,
            "allowed": self._allowed,
            "left": self.left,
        }

    def _forms_of(self, optimizer: Optimizer) -> list[str]:
        """The forms that may be played."""
        why = {form: why_no_form(optimizer, form) for form in FORMS}
        why["fused"] = self._unfused or why["fused"]
        forms = [form for form, reason in why.items() if reason is None]
        if not forms:
            self.left.setdefault("optimizer_impl", str(why["fused"]))
        return forms

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Looks at gradients, which a script may drop after the step."""
        if self._phase == "warms up" and self._unfused is None and not torch.compiler.is_dynamo_compiling():
            try:
                self._unfused = why_not_fused(optimizer)
            except Exception as error:  # noqa: BLE001 - a script's own strange gradients
                self._unfused = f"{type(error).__name__}: {error}"

    def _await_answer(self) -> None:
        candidates = self._adviser.answer()
        if candidates is None:
            return
        self._candidates.extend(candidates)
        self._phase, self._searched_from = "races", (self._steps.count, self._steps.trained)
        self._next_race()

    # Races.

    def _next_race(self) -> None:
        """Starts the next candidate that differs from the incumbent, and fits into memory."""
        self._race, self._block = None, None
        while self._candidates:
            words = self._candidates.popleft()
            if compiled_graphs():
                kept = words["knobs"].keys() - {*OF_LOADER} - self._incumbent.knobs.keys()
                self.left = dict.fromkeys(kept, COMPILES) | self.left
            candidate = self._incumbent.with_changes(words)
            if candidate.knobs == self._incumbent.knobs or not self._means_something(candidate):
                continue
            if self.left.keys() & words["knobs"].keys():
                continue
            race = _Race(words, candidate, Evidence(self._spread))
            if (why := self._no_room(candidate, words["knobs"])) is not None:
                self._decided(race, "too costly", why)
                continue
            self._race = race
            if self._compile_seconds(candidate):
                self._phase = "earns"
                if (passing := self._pass) is not None:
                    self._end_losers(passing.pools, passing.pool)  # the wait may be long
            return
        self._finish("all candidates are decided")

    def _compile_seconds(self, setting: Setting) -> float:
        """Seconds that compiling may still take before a setting plays."""
        if "compile_mode" not in setting.knobs or self._compiler.has_compiled:
            return 0.0
        return COMPILE_SECONDS * len(self._models)

    def _means_something(self, candidate: Setting) -> bool:
        if not candidate.loader:
            return True
        workers = candidate.loader.get("num_workers", self._own_workers)
        if self._own_workers and not workers:
            return False  # what workers draw for augmentation, this process would draw from training's generators
        return bool(workers) or "prefetch_factor" not in candidate.knobs or candidate.loader["prefetch_factor"] is None

    def _no_room(self, candidate: Setting, knobs: Mapping[str, Any]) -> str | None:
        """Why a candidate may not fit into memory; None where it does."""
        if self._device.type == "cuda" and knobs.keys() - {*OF_LOADER, "num_threads"}:
            free, whole = torch.cuda.mem_get_info(self._device)
            # Memory that the allocator has cached is free, too, less what a step needs at its peak.
            kept = torch.cuda.memory_reserved(self._device) - torch.cuda.max_memory_allocated(self._device)
            if free + kept < FREE_SHARE * whole:
                return "there is too little free memory on the device to try it"
        workers = candidate.loader.get("num_workers", self._own_workers)
        if not workers or candidate.of_loader == self._incumbent.of_loader:
            return None
        prefetch = candidate.loader.get("prefetch_factor") or self._own_prefetch
        waiting = workers * prefetch * self._draws.of(self._key).batch_bytes
        own = workers * WORKER_SHARE * resident_bytes([os.getpid()])
        available = available_bytes()
        if available is not None and waiting + own > MEMORY_SHARE * available:
            return "there may be too little memory for its workers"
        with contextlib.suppress(OSError):
            if waiting > MEMORY_SHARE * shutil.disk_usage("/dev/shm").free:  # noqa: S108 - where torch passes batches
                return "there is too little room in /dev/shm for what its workers prepare"
        return None

    def _failure_of(self, race: _Race) -> str | None:
        """Why the candidate has failed. Once the script compiles code, only loader settings may change."""
        is_held = compiled_graphs() and race.words["knobs"].keys() - {*OF_LOADER}
        return race.failure or (COMPILES if is_held else None)

    def _play(self, seconds: float | None) -> None:
        """Handles the end of a step during the search."""
        race = self._race
        if race is None:  # what has won was dropped
            self._next_race()
            return
        if (failure := self._failure_of(race)) is not None:
            self._decide(race, "failed", failure)
            return
        # A checkpoint or a log is not the candidate's fault. A slowdown by the candidate shows at every step, so each
        # block excuses only one, and no more than the longest that the incumbent has seen.
        own = self._steps.script_seconds(seconds, sees_draws=self._key is not None) if seconds is not None else 0.0
        self._longest_own = max(self._longest_own, own if self._in_force is self._incumbent else 0.0)
        block = self._block
        if block is None:
            self._count_between(seconds)
            self._begin_block(race)
            return
        block.age += 1
        is_candidate = block.setting is race.candidate
        own = 0.0 if block.is_excused else min(own, self._longest_own or self._steps.odd_seconds)
        block.is_excused |= own > 0
        if seconds is not None and (is_candidate or block.leads >= 0):
            charged = seconds if is_candidate else min(seconds, self._steps.odd_seconds)
            self._ledger.count_step(charged - own, self._steps.usual)
        if is_candidate and (out := self._why_out(block, race.candidate)) is not None:
            self._decide(race, *out)
            return
        # An evaluation, another epoch, a checkpoint.
        if seconds is None or seconds > self._steps.odd_seconds:
            block.steps, block.leads = 0, 0
            if seconds is not None and not is_candidate:  # or the machine has become slow: soon such steps are usual
                self._steps.follow(ODD_TIMES * self._steps.usual, ODD_WEIGHT)
            return
        seconds -= own
        block.began += own
        if block.leads >= 0:
            block.leads += 1
            if self._has_settled(block):
                self._steps.clock.synchronize()
                block.leads, block.began, block.waited = -1, perf_counter(), self._steps.waited
            elif is_candidate and self._is_hopeless(block.leads, seconds):
                block.steps, block.began = 1, perf_counter() - seconds
                self._end_overrun(race, block)
            return
        block.steps += 1
        spent = perf_counter() - block.began
        if block.steps >= self._block_steps:
            race.overruns = 0 if is_candidate else race.overruns
            self._end_block(race, block)
        elif is_candidate and spent > WORST * self._steps.usual * (block.steps + 1):
            self._end_overrun(race, block)

    def _count_between(self, seconds: float | None) -> None:
        """Counts a step of the incumbent between two blocks."""
        if seconds is not None:
            self._steps.follow(seconds * self._gain, 0.05)
            self._ledger.count_saved(1, self._steps.usual, self._gain)

    def _end_overrun(self, race: _Race, block: _Block) -> None:
        """Ends a block of the candidate whose steps take twice as long."""
        race.overruns += 1
        if race.overruns >= MOST_OVERRUNS:
            self._decide(race, "lost", "its steps take twice as long")
        else:
            self._end_block(race, block)

    def _is_hopeless(self, leads: int, seconds: float) -> bool:
        """Whether lead-in steps stay slow for longer than a queue takes to fill."""
        waiting = self._pass.pool.queue_batches if self._pass is not None else 0
        return leads > self._filling_steps(waiting) + 2 * LEAD_STEPS and seconds > WORST * self._steps.usual

    def _filling_steps(self, waiting: int) -> int:
        """Most steps for which a filling queue of batches explains slowness: during slow steps it fills fast."""
        return min(waiting, math.ceil(BLOCK_SECONDS / self._steps.usual))

    def _has_settled(self, block: _Block) -> bool:
        is_fed = self._key is None or self._pass is None or self._pass.has_settled
        return block.leads > LEAD_STEPS and is_fed

    def _queue_of(self, setting: Setting) -> int:
        """Batches that the workers of a setting prepare in advance."""
        workers = setting.loader.get("num_workers", self._own_workers) or 0
        return int(workers * (setting.loader.get("prefetch_factor") or self._own_prefetch))

    def _why_out(self, block: _Block, candidate: Setting) -> tuple[str, str] | None:
        """The verdict on a candidate that has cost too much, or whose block should have ended long ago; else None."""
        if self._ledger.may_lose(self._steps.trained) + self._ledger.compiling < 0:
            return "too costly", "it has cost what the search may cost by now"
        queues = self._queue_of(candidate) + self._queue_of(self._incumbent)
        if block.age > AGED_TIMES * (LEAD_STEPS + 1 + queues + self._block_steps):
            return "lost", "its blocks are interrupted again and again"
        return None

    @property
    def _whole_block(self) -> int:
        """Steps of a block if its cost did not matter."""
        steps = max(1, math.ceil(BLOCK_SECONDS / self._steps.usual))
        if (epoch := self._epoch_steps) is not None:
            steps = min(steps, int(epoch / EPOCH_BLOCKS))
        return max(FEWEST_STEPS, steps)

    @property
    def _epoch_steps(self) -> float | None:
        """Steps of an epoch, as far as that is known."""
        if self._pass is None or self._key is None:
            return None
        batches = length_of(self._pass.loader)
        return batches / self._draws.per_step(self._key) if batches else None

    def _begin_block(self, race: _Race) -> None:
        """Begins the next block, of the side whose turn it is; none while the candidate's could cost too much."""
        if len(race.blocks) % 2 == 0 and not self._may_play(race.candidate):
            self._enter(self._incumbent)
            if self._block is not None:
                self._block = None
                self._adviser.tell("paused", **self._now())
            return
        setting = race.candidate if BOTH[len(race.blocks) % len(BOTH)] == "candidate" else self._incumbent
        before = self._in_force
        self._enter(setting)
        self._adviser.tell("playing", name=setting.name, **self._now())
        leads = 0 if before is not setting else -1
        self._steps.clock.synchronize()
        self._block = _Block(setting, leads, began=perf_counter(), waited=self._steps.waited)

    def _may_play(self, candidate: Setting) -> bool:
        """Whether the candidate's next block may be lost at worst; sets the length of blocks to the most that may."""
        passing, start_seconds, waiting = self._pass, self._compile_seconds(candidate), 0
        if start_seconds > self._ledger.may_lose(self._steps.trained):
            return False
        if candidate.of_loader != self._incumbent.of_loader:
            if passing is None:
                return False
            waiting = self._queue_of(candidate)
            start_seconds += self._steps.usual if candidate.of_loader not in passing.pools else 0.0
        lead, steps = LEAD_STEPS + 1 + self._filling_steps(waiting), self._whole_block
        while steps >= FEWEST_STEPS:
            if self._ledger.allows(lead + steps, self._steps.usual, start_seconds, self._steps.trained):
                self._block_steps = steps
                return True
            steps = min(steps - 1, int(SHORTER * steps))
        return False

    def _end_block(self, race: _Race, block: _Block) -> None:
        self._steps.clock.synchronize()
        seconds = perf_counter() - block.began
        per_step = seconds / block.steps
        self._adviser.tell(
            "block", knobs=dict(block.setting.knobs), timed_steps=block.steps, timed_seconds=seconds,
            waited_seconds=min(seconds, self._steps.waited - block.waited), **self._now(),
        )  # fmt: skip
        if block.setting is self._incumbent:
            if self._incumbent is OWN:
                self._ledger.count_own(block.steps, seconds)
            self._ledger.count_saved(block.steps, self._steps.usual, self._gain)
            self._steps.follow(per_step * self._gain, 0.5)
        missing = self._block_steps - block.steps  # of an overrun: as the incumbent's, else one slow step were a block
        whole = seconds + missing * self._steps.usual / self._gain
        race.blocks.append(whole / self._block_steps + self._start_share(block.setting))
        if len(race.blocks) % 2 == 0:
            pair = race.blocks[-2:]
            if BOTH[(len(race.blocks) - 2) % len(BOTH)] == "candidate":
                pair.reverse()
            race.evidence.add(*pair)
            low, high = race.evidence.bounds
            self._adviser.tell(
                "pair", name=race.candidate.name, ratio=race.evidence.ratio, low=low, high=high,
                pairs=len(race.evidence.logs), **self._now(),
            )  # fmt: skip
            if (verdict := race.evidence.verdict) is not None:
                self._decide(race, verdict, "")
                return
        self._begin_block(race)

    def _start_share(self, setting: Setting) -> float:
        """Seconds that a loader which starts anew in each epoch adds to a step."""
        passing, epoch = self._pass, self._epoch_steps
        pool = passing.pools.get(setting.of_loader) if passing is not None else None
        if pool is None or epoch is None or pool.loader.num_workers == 0 or pool.persists:
            return 0.0
        return pool.start_seconds / epoch

    def _decide(self, race: _Race, verdict: str, reason: str) -> None:
        """Ends the race: the candidate has won, or is out."""
        self._decided(race, verdict, reason)
        self._spread.add(race.evidence.logs)
        self._race = None
        if verdict == "won":
            self._incumbent = race.candidate
            self._winners.append(race)
            self._gain *= race.evidence.ratio
            if (passing := self._pass) is not None and (
                pool := passing.pools.get(race.candidate.of_loader)
            ) is not None:
                pool.patience_seconds = MOST_PATIENCE_SECONDS
        self._enter(self._incumbent)
        self._next_race()

    def _decided(self, race: _Race, verdict: str, reason: str) -> None:
        low, high = race.evidence.bounds
        self._adviser.tell(
            "decided", name=race.candidate.name, knobs=dict(race.words["knobs"]), verdict=verdict, reason=reason,
            ratio=race.evidence.ratio, low=low, high=high if math.isfinite(high) else None,
            pairs=len(race.evidence.logs), **self._now(),
        )  # fmt: skip

    # What is in force.

    def _enter(self, setting: Setting) -> None:
        """Replaces the setting in force by another one."""
        former, self._in_force = self._in_force, setting
        if former is setting:
            return
        optimizer = self._optimizer
        self._end_guards()
        if (undone := self._changes.pop(id(former), None)) is not None:
            undone.undo()
        if setting.process or setting.optimizer or setting.model:
            changes = self._changes[id(setting)] = setting.changes()
            changes.on_process(self._device)
            if setting.model:
                changes.on_models(list(self._models))
                guard = self._compiler.guard if "compile_mode" in setting.knobs else self._guard
                self._guards = [guard(model) for model in changes.models]
            if optimizer is not None:
                changes.on_optimizer(optimizer)
            if changes.refused_form is not None and self._race is not None:
                self._race.failure = changes.refused_form
        passing = self._pass
        if passing is not None and former.of_loader != setting.of_loader:
            passing.go_on_with(self._pool_for(setting, passing.loader, passing.pools))

    def _guard(self, model: nn.Module) -> Undo:
        return with_fallback(model, self._on_forward_failed)

    def _on_forward_failed(self, error: Exception) -> None:
        """A model has raised in a setting of ours. Its own is restored; an error of the script's own comes again."""
        with _uninterrupted():
            self._fall_back(error)

    @harmless
    def _fall_back(self, error: Exception) -> None:
        reason, race = f"{type(error).__name__}: {error}", self._race
        if race is not None and self._in_force is race.candidate:
            race.failure = reason
            self._enter(self._incumbent)
        else:
            self.give_up(f"the model fails with {self._in_force.name}: {reason}")

    def _end_guards(self) -> None:
        while self._guards:
            self._guards.pop()()

    def _pool_for(self, setting: Setting, loader: DataLoader[Any], pools: Pools) -> Pool:
        """The pool of a setting, for one of the script's loaders."""
        changed = setting.of_loader
        if changed not in pools:
            patience = max(HANG_SECONDS, HANG_STEPS * self._steps.usual)
            if setting is self._incumbent or loader.multiprocessing_context is not None:
                patience = max(MOST_PATIENCE_SECONDS, patience)
            pools[changed] = Pool(loader, changed, setting.changes().arguments(loader), patience)
            if changed:
                try:
                    pools[changed].start()
                except Exception as error:  # noqa: BLE001 - no memory, no process, nothing to pickle
                    del pools[changed]
                    return self._instead(setting, loader, pools, _in_short(error))
        return pools[changed]

    def _instead(self, setting: Setting, loader: DataLoader[Any], pools: Pools, reason: str) -> Pool:
        """The pool that feeds training where that of a setting has failed."""
        race = self._race
        if race is not None and setting is race.candidate:
            race.failure = reason
        if setting.of_loader == self._incumbent.of_loader:
            words = ", ".join(f"{name}={value}" for name, value in setting.loader.items())
            self._drop(OF_LOADER, f"the loader with {words} has failed: {reason}")
        return self._pool_for(self._incumbent, loader, pools)

    def _on_failed(self, passing: Pass, error: Exception) -> Pool:
        """A pool that is not the script's own could not read: the pool before reads the same indices."""
        race, changed, reason = self._race, passing.pool.changed, _in_short(error)
        if isinstance(error, OutdatedError):
            reason = str(error)
            self.left |= dict.fromkeys(AHEAD, reason)
            if self._incumbent.loader.get("num_workers"):
                self._drop(AHEAD, reason)
                return self._pool_for(self._incumbent, passing.loader, passing.pools)
        settings = [self._incumbent, *([race.candidate] if race is not None else [])]
        setting = next((setting for setting in settings if setting.of_loader == changed), None)
        if setting is None:  # a loser that was still handing out what it had read
            return self._pool_for(self._incumbent, passing.loader, passing.pools)
        return self._instead(setting, passing.loader, passing.pools, reason)

    @harmless
    def _drop(self, knobs: Sequence[str], why: str) -> None:
        """Gives up what has won of some knobs; what won after it was measured beside it, and is tried again."""
        self.left |= dict.fromkeys(knobs, why)
        places = (place for place, race in enumerate(self._winners) if race.words["knobs"].keys() & {*knobs})
        place = next(places, len(self._winners))
        self._winners, later = self._winners[:place], self._winners[place:]
        for race in later:
            if race.words["knobs"].keys() & {*knobs}:
                self._decided(race, "failed", why)
            else:
                self._adviser.tell("pair", name=race.candidate.name, pairs=0, **self._now())
        later += [self._race] if self._race is not None else []
        self._candidates.extendleft(race.words for race in reversed(later))
        self._incumbent = self._winners[-1].candidate if self._winners else OWN
        self._gain = math.prod(race.evidence.ratio for race in self._winners)
        self._race, self._block, self._phase, self._is_complete = None, None, "races", False
        self._searched_from = self._steps.count, self._steps.trained
        with _uninterrupted():
            self._enter(self._incumbent)

    # The end.

    def _finish(self, why: str) -> None:
        """Ends the search; the winners stay."""
        is_out = self._phase == "races" and self._race is None and not self._candidates
        self._is_complete = is_out or self._phase == "earns"
        if self._phase == "earns":
            self.left["compile_mode"] = UNEARNED
        self._called.end()
        self._compiler.end()
        if self._known_optimizer is not None:
            self._enter(self._incumbent)
        self._forget_compiled()
        if self._race is not None:
            self._candidates.appendleft(self._race.words)  # `_drop` may try it again
        self._phase, self._race, self._block = "over", None, None
        if (passing := self._pass) is not None:
            self._end_losers(passing.pools, passing.pool)
        paid = self._ledger.benefit >= self._ledger.cost
        self._tell_end("over", won=dict(self._incumbent.knobs), paid=paid, why=why, left=self.left)

    def _forget_compiled(self) -> None:
        """Drops compiled code, unless the incumbent uses it."""
        if "compile_mode" not in self._incumbent.knobs and self._compiler.has_compiled:
            for model in self._models:
                forget_compiled(model)

    def _end_losers(self, pools: Pools, read: Pool | None = None) -> None:
        """Ends all pools but the incumbent's and the one being read."""
        kept = self._incumbent.of_loader
        for changed in [changed for changed, pool in pools.items() if pool is not read and changed != kept]:
            pools.pop(changed).end()

    def end(self) -> None:
        """Ends for good, and restores the script's own setting."""
        self._end_earning()
        if self._phase != "over":
            self.give_up("another training begins")
        self._at_exit()
        atexit.unregister(self._at_exit)
        self._restore()
        for end in self._ends:
            end()

    def give_up(self, why: str) -> None:
        """Ends the search for a fault of its own; the training continues with the script's own setting."""
        if self._phase == "over" and self._incumbent is OWN:
            return
        self._restore()
        self._tell_end("over", won={}, paid=False, why=why, left=self.left)

    def _restore(self) -> None:
        """Ends the search, and restores the script's own setting."""
        self._phase, self._race, self._block, self._incumbent, self._gain = "over", None, None, OWN, 1.0
        self._winners.clear()
        self._called.end()
        self._compiler.end()
        with contextlib.suppress(Exception):
            self._end_guards()
            for changes in self._changes.values():
                changes.undo()
            self._changes.clear()
            self._forget_compiled()
        with contextlib.suppress(Exception):
            if (passing := self._pass) is not None:
                passing.go_on_with(self._pool_for(OWN, passing.loader, passing.pools))
        self._in_force = OWN

    def _now(self) -> dict[str, Any]:
        return {"t": perf_counter() - self._began, "steps": self._steps.count, "seconds": self._steps.trained}

    def _tell_pace(self, now: float) -> None:
        self._due = now + PACE_SECONDS
        if pace := self._steps.pace():
            self._adviser.tell(
                "pace", **pace, memory_bytes=resident_bytes(), setting=self._in_force.name, **self._now()
            )

    def _end_earning(self) -> None:
        """Ends a search that has decided all but whether to compile."""
        if self._phase == "earns":
            self._finish("all else is decided")

    def _at_exit(self) -> None:
        if os.getpid() == self._process and self._steps.count:
            self._end_earning()
            if self._phase == "warms up":
                steps = f"{self._steps.count} step{'s' if self._steps.count > 1 else ''}"
                why = f"the training ended after {steps}, before other settings could be tried"
                self._tell_end("over", won={}, paid=False, why=why, left=self.left)
            self._tell_end("ended", won=dict(self._incumbent.knobs))

    def _tell_end(self, event: str, **content: Any) -> None:
        cost, saved = self._ledger.cost, self._ledger.benefit
        self._adviser.tell(
            event, gained=self._gain, cost_seconds=cost, saved_seconds=saved, complete=self._is_complete,
            **content, **self._now(),
        )  # fmt: skip


def _in_short(error: Exception) -> str:
    """An error's class, and its first sentence: more may be torch's advice, which does not concern the script."""
    return f"{type(error).__name__}: {error}".split("\n")[0].split(". ")[0]


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """While open, Ctrl-C waits: a script that catches it may save an optimizer that is half changed.

    A second Ctrl-C does not wait: what is being done may hang.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[Any] = []
    process = os.getpid()  # forked workers handle it at once

    def hear(*arguments: Any) -> None:
        if came or os.getpid() != process:
            handler(*arguments)
        else:
            came.append(arguments)

    signal.signal(signal.SIGINT, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[0])


def begin(orders: dict[str, Any]) -> None:
    """Tunes what this process trains, as the command plans it, and sends the command a description of the loop."""
    parent = Parent(orders["socket"])
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    LiveTraining(parent, cpus, orders["allowed"])
    Observer(  # after it, so that it sees what our passes hand out
        lambda seen: parent.tell("seen", value=seen),
        lambda error: parent.tell("unseen", reason=f"{type(error).__name__}: {error}"),
        reads=orders["reads"],
    )
