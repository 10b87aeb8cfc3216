"""The observer: watches a training loop while the script trains, until it has seen enough.

Both a look (`look`) and a real training use it. Make one as soon as torch is imported::

    observer = Observer(enough, failed)

It installs hooks. After about `STEPS` steps it removes them and calls ``enough(seen)`` once, within the current draw,
step or backward pass. `scripts.seen.SeenScript.of` reads ``seen``. If the script ends earlier, `Observer.seen` returns
what was seen by then.

The script computes bitwise the same with and without it: the observer draws no random numbers, reads no samples, writes
to no tensor, and changes no setting of torch.

Its cost in a real training was measured on a CPU, in a process of 290,000 objects and 2,000 modules. Until enough is
seen, each call of a module takes 4 microseconds more, and each batch and step microseconds. For the first two batches,
counting their padding takes 0.7 ms for 32 rows of 512 tokens, and 0.15 s for 64 rows of 2048. For the first batch of
each loader, the observer counts the items in the data set's lists, at most a million per list.

The first step takes 0.03 to 0.08 s more. The observer asks Python which objects refer to the loaders' iterators, to
find an ``itertools.cycle``. That reads all objects and writes to none, so memory shared with forked workers stays
shared. If the script has made no optimizer of torch, each backward pass sums all weights (2 ms for 5 million), and
waits for the GPU to do so.

Once enough is seen, finding the script's own files among the modules takes most of 0.15 s. A data set of many parts
adds up to some tenths of a second. If the script calls ``model.compile()`` or ``model.forward()``, so that no call of a
model is seen, a search of all objects finds the models: 0.06 s more. Afterwards, each batch of a running pass takes 0.5
microseconds, and each step about one. If torch.compile has compiled something, the hooks on modules stay, since torch
would recompile without them: 4 microseconds for each call of a module outside compiled code.

Only a thorough observer, which a look uses, profiles the operators of the third step. It reads up to 16 samples itself:
that takes at most 0.3 s, and may draw random numbers. It sums the weights at each backward pass before the first step,
even if there is an optimizer. It counts the padding of every batch. It looks at the script's own samplers before and
after each batch, for about two seconds in all. It asks the system for other processes that train.

A real training knows the reading time of its own draws, if there are no workers. The share of small operators stays
unknown.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from time import perf_counter, time
from typing import TYPE_CHECKING, Any

import torch

from ..timing.devices import uuids
from ..timing.loop import (
    StepProfile,
    autocast_dtype,
    described,
    holders_of,
    is_compiled,
    merged,
    outermost,
    reading,
    rows_of,
    sums_of,
    trained_beside,
    training_facts,
    usual,
)
from ..timing.padding import Padding, padding_of
from ..torch_settings.compiled import compiled_graphs
from ..torch_settings.in_force import read
from ..torch_settings.naming import count_of, loader_key, model_key, tensors_in
from ..torch_settings.process_settings import why_gradients_unfit
from ..torch_settings.undo import in_reverse, nothing
from ..torch_settings.wrapping import is_in_backward
from . import hooks
from .attributes import Growth
from .functions import Functions
from .loader_passes import Pass, Passes
from .malloc_state import Activations
from .ranks import count_ranks, exchange_of
from .server import reason_of_others
from .sites import Sites

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

STEPS, SECONDS, FEWEST_STEPS = 6, 4.0, 3
"""Steps of the first optimizer to observe; after these seconds, the fewest steps are enough. Not tuned."""
FEWEST_LATE_STEPS = 2
"""Steps that are enough after ``late_seconds``."""
STEPS_OF_A_BATCH = 24
"""Steps on one batch after which the loop is assumed to draw no more. Not tuned."""
MOST_DRAWS = 5_000
"""Draws without a step after which an observer of a real training ends. Not tuned."""
PADDING_BATCHES = 2
"""Batches whose padding is counted in a real training. Not tuned."""


class Observer:
    """Watches a training loop.

    Args:
        enough: Called once with the findings, after the observer has ended.
        failed: Called once, within an ``except``, if the observer or one of the other functions raises an exception.
            The observer has ended by then, and the script continues.
        stepped: Called after each step with the number of steps, until enough is seen.
        is_thorough: Whether the observer may also take time and draw random numbers (see above), because the script
            ends afterwards.
        reads: Functions of `in_force` that read the values of knobs.
        late_seconds: Time from now on, after which `FEWEST_LATE_STEPS` steps are enough.
    """

    def __init__(
        self,
        enough: Callable[[dict[str, Any]], None],
        failed: Callable[[Exception], None],
        stepped: Callable[[int], None] = lambda _: None,
        *,
        is_thorough: bool = False,
        reads: Mapping[str, str],
        late_seconds: float = math.inf,
    ) -> None:
        self._default_threads = torch.get_num_threads()
        self._enough, self._failed, self._stepped = enough, failed, stepped
        self._is_thorough, self._reads = is_thorough, reads
        self._began, self._first_argv = time(), [*sys.argv]  # scripts may change it
        self._late = perf_counter() + late_seconds
        self._loaders: dict[int, Any] = {}
        self._passes = Passes(looks_at_samplers=is_thorough)
        self._draws: list[tuple[int, int]] = []  # loader id and samples of each draw
        self._batches: list[list[tuple[int, ...]]] = []
        self._batch_bytes = 0
        self._growth = Growth()
        self._padding: list[Padding] = []
        self._models: dict[int, Any] = {}
        self._optimizers: dict[int, Any] = {}
        self._steps: list[int] = []
        self._marks: list[int] = []  # draws at each step of the first optimizer
        self._drawn_when: list[set[int]] = [set()]  # draws at the backward passes of each step; the last is current
        self._first_step = 0.0
        self._steps_now = False
        self._first: Optimizer | None = None  # the first to begin a step, which may compute gradients many times
        self._may_fuse = True
        self._rows: int | None = None  # of the model's last call
        self._row_counts: list[int] = []  # the same, before each backward pass
        self._sums: list[float] = []  # of the weights: if they change without an optimizer, the script changes them
        self._updates_itself = False
        self._threads: dict[str, set[str]] = {"draw": set(), "train": set()}
        self._calls: Counter[int] = Counter()  # by model, and backward passes under 0; since the first step
        self._called: list[int] = []  # calls of models until each mark
        self._facts: dict[str, Any] = {"precision": None, "fork_unsafe_reason": None}
        self._profile = StepProfile()
        self._sites = Sites()
        self._forwards = 0
        self._functions = Functions()
        self._activations = Activations()
        self._is_over = False
        safely = self._safely
        self._note_draw = safely(self._on_draw)
        self._unhook = in_reverse(
            [
                self._sites.look_away,
                self._passes.look_away,
                hooks.on_group(self._on_group),
                hooks.on_iterate(self._on_iterate),
                hooks.on_step(safely(self._before_step), safely(self._on_step)),
                hooks.on_backward(safely(self._before_backward)),
                hooks.on_outermost_forward(
                    safely(self._on_forward), safely(self._on_inner_forward), self._activations.note
                ),
                # torch.jit cannot compile our replacement of torch's function, and pickle cannot find it.
                self._functions.watch() if is_thorough else nothing,
                hooks.on_autocast(safely(self._on_autocast)),
            ]
        )

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of steps, model calls, and loaders so far."""
        return {
            "steps": len(self._steps) or len(self._marks),
            "forwards": self._forwards,
            "loaders": len(self._loaders),
        }

    def seen(self) -> dict[str, Any] | None:
        """Returns what was seen so far, as plain values; None before the second step, and after the end."""
        return self._seen() if len(self._marks) >= 2 and not self._is_over else None

    def end(self) -> None:
        """Ends observing, and drops all references to objects of the script."""
        if self._is_over:
            return
        self._is_over = True
        self._profile.end()
        self._unhook()
        self._first = None
        for kept in (self._loaders, self._models, self._optimizers):
            kept.clear()

    def _safely(self, observe: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a hook: an error in it ends the observer, and never reaches the script."""

        def observed(*args: Any) -> Any:
            if self._is_over:  # a hook of the same call may have ended it
                return None
            try:
                return observe(*args)
            except Exception as error:  # noqa: BLE001 - the script is not to blame
                self.end()
                self._failed(error)
                return None

        return observed

    def _on_group(self) -> None:
        self._facts["opens_group"] = True

    def _on_iterate(self, loader: DataLoader[Any], iterate: hooks.Iterate) -> Iterator[Any]:
        begun = self._safely(self._begin)(loader)
        batches = iterate(loader)
        return batches if begun is None else begun.through(batches, lambda batch: self._note_draw(begun, batch))

    def _begin(self, loader: DataLoader[Any]) -> Pass:
        self._loaders[id(loader)] = loader
        if torch.is_grad_enabled() and not self._draws:
            self._facts["fork_unsafe_reason"] = reason_of_others()  # now: the loader may start processes itself
        return self._passes.begin(loader, trains=torch.is_grad_enabled())

    def _on_draw(self, begun: Pass, batch: Any) -> None:
        if not torch.is_grad_enabled():
            return
        self._threads["draw"].add(threading.current_thread().name)
        samples = count_of(batch)
        begun.note(len(self._draws), samples)
        self._growth.note(begun.loader, samples)
        tensors = list(tensors_in(batch))
        self._batch_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        self._batches.append([tuple(tensor.shape) for tensor in tensors])
        self._draws.append((id(begun.loader), samples))
        if len(self._draws) > MOST_DRAWS and not self._marks and not self._is_thorough:
            self.end()  # nothing trains here, and the observer keeps loaders and models alive
            return
        looks_for_padding = self._is_thorough or len(self._draws) <= PADDING_BATCHES
        if looks_for_padding and (padding := padding_of(batch)) is not None:
            self._padding.append(padding)
        self._turn_profile()
        if self._draws_again and self._is_enough():
            self._finish()

    def _on_forward(self, model: Any, arguments: tuple[Any, ...]) -> None:
        self._forwards += 1
        if is_in_backward():  # checkpointing recomputes parts
            return
        trains = torch.is_grad_enabled()
        if next(model.parameters(), None) is not None:
            self._passes.are_used(trains=trains and model.training)
        if not trains:
            return
        self._models[id(model)] = model
        if self._marks and not self._steps_now:
            self._calls[id(model)] += 1
        if not self._draws_feed:
            self._turn_profile()
        weight = next(model.parameters(), None)
        if weight is not None:  # a loss has none
            self._rows = rows_of(arguments)
            self._facts["device"] = weight.device.type
            if weight.dtype in {torch.bfloat16, torch.float16, torch.float64}:
                self._facts["precision"] = str(weight.dtype).removeprefix("torch.")
        self._on_inner_forward(arguments)

    def _on_inner_forward(self, arguments: tuple[Any, ...]) -> None:
        """Notes the arguments of an inner module: frameworks set a precision there."""
        if not torch.is_grad_enabled():  # such as a rollout or an evaluation
            return
        if "step_samples" not in self._facts and (rows := rows_of(arguments)) is not None:
            self._facts["step_samples"] = rows  # for compiled models, whose calls are invisible
        if (casts_to := autocast_dtype(self._facts.get("device", "cpu"))) is not None:
            self._facts["precision"] = casts_to

    def _before_step(self, optimizer: Optimizer) -> None:
        self._steps_now = True
        self._first = self._first or optimizer
        if id(optimizer) not in self._optimizers:
            self._may_fuse &= why_gradients_unfit(optimizer) is None

    def _on_step(self, optimizer: Optimizer) -> None:
        self._steps_now = False
        self._optimizers[id(optimizer)] = optimizer
        self._steps.append(id(optimizer))
        if id(optimizer) == self._steps[0]:
            self._mark()

    def _before_backward(self, _: Any) -> None:
        """Notes a backward pass. If no optimizer of torch steps, the script may change its weights itself."""
        if self._marks and not self._steps_now:
            self._calls[0] += 1
        self._passes.are_used(trains=True)
        self._drawn_when[-1].add(len(self._draws))
        self._row_counts += [self._rows] if self._rows is not None else []
        if self._steps or not (self._is_thorough or self._steps_now or not self._sites.has_optimizer):
            return
        sums = sums_of(self._models.values())
        if self._sums and len(sums) == len(self._sums) and sums != self._sums:
            self._updates_itself = True
            self._mark()
        self._sums = sums

    def _mark(self) -> None:
        """Notes a step."""
        self._passes.are_used(trains=True)
        if not self._marks:
            self._passes.look_for_cycles()
            self._first_step = perf_counter()
        self._threads["train"].add(threading.current_thread().name)
        self._marks.append(len(self._draws))
        self._called.append(self._calls.total() - self._calls[0])
        self._stepped(len(self._marks))
        self._drawn_when.append(set())
        if self._draws_no_more:
            if self._draws_feed:  # replayed batches are not drawn again
                self._profile.end()
            if self._is_enough():
                self._finish()

    @property
    def _draws_no_more(self) -> bool:
        """Whether training needs no further batch, as in a loop without a loader."""
        since = self._marks[-STEPS_OF_A_BATCH:]
        return not self._draws or (len(since) == STEPS_OF_A_BATCH and since[0] == len(self._draws))

    @property
    def _draws_again(self) -> bool:
        """Whether a batch was drawn between two steps: several steps on the first batch do not show its loader."""
        return bool(self._marks) and self._marks[-1] > self._marks[0]

    @property
    def _draws_feed(self) -> bool:
        """Whether batches are drawn between steps."""
        return len(self._draws) > (self._marks[0] if self._marks else 0)

    def _turn_profile(self) -> None:
        if self._is_thorough:
            self._profile.turn(len(self._marks))

    def _is_enough(self) -> bool:
        count, now = len(self._marks), perf_counter()
        if now > self._late and count >= FEWEST_LATE_STEPS:
            return True
        slow = now - self._first_step > SECONDS
        return not self._profile.runs and (count >= STEPS or (slow and count >= FEWEST_STEPS))

    def _on_autocast(self, device: str) -> None:
        """Notes the precision of autocast, also for compiled models, whose calls are invisible."""
        if torch.is_grad_enabled() and (casts_to := autocast_dtype(self._facts.get("device", device))) is not None:
            self._facts["precision"] = casts_to

    def _finish(self) -> None:
        """Reports what was seen, and ends."""
        self._profile.end()
        seen = self._seen()
        self.end()
        self._enough(seen)

    def _seen(self) -> dict[str, Any]:
        evaluated = self._passes.evaluating(self._marks)
        count = len(self._draws)  # a thread of the script may continue to draw
        places = [place for place in range(count) if place not in evaluated]
        marks = [bisect_left(places, mark) for mark in self._marks]
        drawn_from = [self._draws[place] for place in places]
        drawn = merged(drawn_from, {one: loader_key(loader) for one, loader in self._loaders.items()})
        between = drawn[marks[0] : marks[-1]] if marks else []
        merged_ids = {own: merged_id for (own, _), (merged_id, _) in zip(drawn_from, drawn, strict=True)}
        rounds = max(1, len(self._marks) - 1)
        loaders = [self._loaders[one] for one, _ in Counter(loader for loader, _ in between).most_common()]
        main = loaders[0] if loaders else None
        draws = [sum(loader == id(main) for loader, _ in drawn[since:mark]) for since, mark in pairwise(marks)]
        samples = [count for loader, count in between if main is not None and loader == id(main)]
        per_optimizer = Counter(self._steps)
        models = outermost(model for model in self._models.values() if next(model.parameters(), None) is not None)
        first = self._first
        if calls_unseen := not models:
            models = holders_of(self._optimizers.values())
        in_compiled_code = calls_unseen and compiled_graphs() > 0
        sample_seconds, wait_fraction = reading(main) if self._is_thorough else self._passes.reading(main)
        device = torch.device(self._facts.get("device", "cpu"))
        optimizers = [first] if first is not None else []
        optimizers += [one for one in self._optimizers.values() if one is not first]
        apart = self._threads["draw"] - self._threads["train"] if self._threads["train"] else set()
        return {
            "device": "cpu",
            "compiled": in_compiled_code or any(is_compiled(model) for model in models),
            "calls_unseen": calls_unseen and not in_compiled_code,
            "step_calls": [] if loaders else [after - before for before, after in pairwise(self._called)],
            "facts": {
                **training_facts(models, optimizers, self._padding, may_fuse=self._may_fuse),
                "batch_bytes": self._batch_bytes,
                "sample_seconds": sample_seconds,
                "sample_wait_fraction": wait_fraction,
                "small_operators_fraction": self._profile.small_operators,
                "has_attention": self._functions.attends,
                "classes": self._functions.classes,
                "score_bytes": self._functions.score_bytes,
                "fixed_shapes": len({str(self._batches[place]) for place in places[1:]}) <= 1,
            },
            "step_samples": 1,
            "opens_group": False,
            **self._facts,
            **({"step_samples": usual(self._row_counts)} if self._row_counts else {}),
            "in_force": read(self._reads, models, optimizers[:1], device),
            "pid": os.getpid(),
            "argv": sys.argv,
            "first_argv": self._first_argv,
            "seconds_to_loop": time() - self._began,
            "optimizers": len(per_optimizer),
            "optimizer": type(first).__name__ if first is not None else None,
            "updates_itself": self._updates_itself and not self._steps,
            "accumulation": max(1, usual(draws) if main is not None else round(self._calls_between / rounds)),
            "draws_ahead": usual(draws) > 1 and usual([len(each) for each in self._drawn_when[1:-1]]) == 1,
            "samples": samples[:20],
            "evaluation_bytes": self._activations.in_evaluation(
                max(samples, default=1), loaders, self._sites.loaders, self._sites.evaluates
            ),
            "loaders": [
                described(loader)
                | self._passes.described(id(loader), merged_ids, self._marks[0], evaluated)
                | {"keeps_samples": self._growth.is_seen(loader)}
                for loader in loaders
            ],
            "models": [model_key(model) for model in models],
            "model_names": [type(model).__name__ for model in models],
            "ranks": count_ranks(),
            "gpus": [uuids()],
            "ddp": exchange_of(models),
            "beside": trained_beside() if self._is_thorough else 0,
            "thread": min(apart, default=None),
            "threads": torch.get_num_threads(),
            "default_threads": self._default_threads,
            "source": self._sites.described(loaders, [self._optimizers[one] for one in per_optimizer]),
            "frameworks": [name for name in ("lightning", "transformers", "accelerate") if name in sys.modules],
            "cuda_opened": torch.cuda.is_initialized(),  # type: ignore[no-untyped-call]
        }

    @property
    def _calls_between(self) -> int:
        """Micro-batches since the first step in a loop without a loader: the fewest calls of any model or backward."""
        return min(self._calls.values(), default=0)
