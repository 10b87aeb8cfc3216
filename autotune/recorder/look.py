"""A look at a script: it trains a few steps as it is, and tells which loop was seen."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from time import perf_counter, time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..sandbox.inside import begin_training, watch_reading
from . import hooks
from .attributes import Growth
from .blocks import count_blocks
from .effects import compiled_graphs
from .ending import BurstEnded, at_exit, end_burst, give_up, last_error, leave, note_exits, rest_in_the_end
from .failing import sentence_of
from .heap import Activations
from .loop import (
    StepProfile,
    autocast_dtype,
    chosen_by,
    described,
    has_sparse_gradients,
    holders_of,
    implementations,
    is_compiled,
    is_in_backward,
    merged,
    outermost,
    reading,
    rows_of,
    sums_of,
    trained_beside,
    usual,
)
from .naming import count_of, loader_key, model_key, shapes_hash, tensors_in
from .order import seed_start
from .padding import Padding, padding_of
from .passes import Pass, Passes
from .ranks import Meeting, count_ranks, exchange_of
from .saving import leave_out_checkpoints
from .server import reason_of_others
from .sites import Sites
from .traffic import traffic_of
from .wire import Wire

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

STEPS, SECONDS, FEWEST_STEPS = 6, 4.0, 3
"""Of the optimizer that steps first: so many, or fewer where they take long."""
LATE_SHARE, FEWEST_LATE_STEPS = 0.5, 2
"""Of the time that it has, after which two steps must do. Chosen: one more may take as long again."""
STEPS_OF_A_BATCH = 24
"""After so many on one batch, no further one will be drawn from a loader that was drawn from before. Chosen."""


def begin(orders: dict[str, Any]) -> None:
    """Looks on while the script trains, and tells the parent; its end, too, should it never train."""
    Look(orders)


class Look:
    """What was seen so far.

    Args:
        orders: ``socket``: the parent's; ``port``: where ranks may meet; ``seconds``: that the look may take;
            ``sandbox``, ``shared``: see `arrival`.
    """

    def __init__(self, orders: dict[str, Any]) -> None:
        import torch

        self._default_threads = torch.get_num_threads()
        self._socket, self._process_id = orders["socket"], os.getpid()
        self._wire = Wire.to(self._socket)
        self._wire.send("imported")
        self._any_network, self._shared = orders["sandbox"]["any_network"], orders["shared"]
        watch_reading(lambda host: self._wire.send("reads", host=host))
        self._began, self._first_argv = time(), [*sys.argv]  # scripts change it
        self._late = perf_counter() + LATE_SHARE * orders["seconds"]
        self._loaders: dict[int, Any] = {}
        self._passes = Passes()
        self._draws: list[tuple[int, int]] = []  # of which loader, how many samples; from the start
        self._batches: list[list[tuple[int, ...]]] = []
        self._growth = Growth()
        self._padding: list[Padding] = []
        self._models: dict[int, Any] = {}
        self._optimizers: dict[int, Any] = {}
        self._steps: list[int] = []
        self._marks: list[int] = []  # draws at each step of the optimizer that steps first
        self._drawn_when: list[set[int]] = [set()]  # draws at the backward passes of each step, the one under way last
        self._first_step = 0.0
        self._steps_now = False
        self._first: Optimizer | None = None  # that has begun a step, which may compute gradients many times
        self._has_sparse = False
        self._rows: int | None = None  # that the model was called with last
        self._row_counts: list[int] = []  # the same, before each backward pass
        self._sums: list[float] = []  # of the weights; where they change without an optimizer, the script changes them
        self._updates_itself = False
        self._threads: dict[str, set[str]] = {"draw": set(), "train": set()}
        self._calls: Counter[int] = Counter()  # of each model, and under 0 backward passes; since the first step
        self._called: list[int] = []  # calls of models by each mark
        self._facts: dict[str, Any] = {"precision": None, "attention": False, "fork_unsafe_reason": None}
        self._profile = StepProfile()
        self._sites = Sites()
        self._forwards = 0
        self._done = False
        seed_start()
        leave_out_checkpoints()
        Meeting(orders["port"], self._on_group)
        hooks.on_iterate(self._on_iterate)
        hooks.on_step(self._before_step, self._on_step)
        hooks.on_backward(self._before_backward)
        self._activations = Activations()
        self._end_of_forwards = hooks.on_outermost_forward(
            self._on_forward, self._on_inner_forward, self._activations.note
        )
        hooks.on_attention(self._on_attention)
        hooks.on_autocast(self._on_autocast)
        self._tell_of_end()

    def _on_group(self, _: int) -> None:
        self._facts["opens_group"] = True

    def _on_iterate(self, loader: DataLoader[Any], iterate: hooks.Iterate) -> Iterator[Any]:
        import torch

        self._loaders[id(loader)] = loader
        if torch.is_grad_enabled() and not self._draws:
            self._facts["fork_unsafe_reason"] = reason_of_others()  # now: the loader may start processes itself
        begun = self._passes.begin(loader, trains=torch.is_grad_enabled())
        return begun.through(iterate(loader), lambda batch: self._on_draw(begun, batch))

    def _on_draw(self, begun: Pass, batch: Any) -> None:
        import torch

        if not torch.is_grad_enabled():
            return
        if self._done:
            end_burst()
        self._threads["draw"].add(threading.current_thread().name)
        samples = count_of(batch)
        begun.note(len(self._draws))
        self._growth.note(begun.loader, samples)
        tensors = list(tensors_in(batch))
        self._facts["batch_bytes"] = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        self._batches.append([tuple(tensor.shape) for tensor in tensors])
        self._draws.append((id(begun.loader), samples))
        if (padding := padding_of(batch)) is not None:
            self._padding.append(padding)
        self._profile.turn(len(self._marks))
        if self._marks and self._is_enough():
            self._finish()

    def _on_forward(self, model: Any, arguments: tuple[Any, ...]) -> None:
        import torch

        self._forwards += 1
        if self._done or is_in_backward():  # there, checkpointing computes parts again
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
            self._profile.turn(len(self._marks))
        weight = next(model.parameters(), None)
        if weight is not None:  # a loss has none
            self._rows = rows_of(arguments)
            self._facts["device"] = weight.device.type
            if weight.dtype in {torch.bfloat16, torch.float16, torch.float64}:
                self._facts["precision"] = str(weight.dtype).removeprefix("torch.")
        self._on_inner_forward(arguments)

    def _on_inner_forward(self, arguments: tuple[Any, ...]) -> None:
        """What a module within is called with: frameworks choose a precision there."""
        import torch

        if not torch.is_grad_enabled():  # a rollout, say, or an evaluation
            return
        if "step_samples" not in self._facts and (rows := rows_of(arguments)) is not None:
            self._facts["step_samples"] = rows  # where a compiled model is not seen to be called
        if (casts_to := autocast_dtype(self._facts.get("device", "cpu"))) is not None:
            self._facts["precision"] = casts_to

    def _before_step(self, optimizer: Optimizer) -> None:
        self._steps_now = True
        self._first = self._first or optimizer
        if not self._has_sparse and id(optimizer) not in self._optimizers:
            self._has_sparse = has_sparse_gradients(optimizer)

    def _on_step(self, optimizer: Optimizer) -> None:
        self._steps_now = False
        if self._done:
            return
        self._optimizers[id(optimizer)] = optimizer
        self._steps.append(id(optimizer))
        if id(optimizer) == self._steps[0]:
            self._mark()

    def _before_backward(self, _: Any) -> None:
        """Where no optimizer of torch steps: the script may change its weights by itself."""
        if self._marks and not self._steps_now:
            self._calls[0] += 1
        if not self._done:
            self._passes.are_used(trains=True)
            self._drawn_when[-1].add(len(self._draws))
            self._row_counts += [self._rows] if self._rows is not None else []
        if self._steps or self._done:
            return
        sums = sums_of(self._models.values())
        if self._sums and len(sums) == len(self._sums) and sums != self._sums:
            self._updates_itself = True
            self._mark()
        self._sums = sums

    def _mark(self) -> None:
        """A step was taken."""
        self._passes.are_used(trains=True)
        if not self._marks:
            self._passes.look_for_cycles()
            self._first_step = perf_counter()
            if os.getpid() != self._process_id:  # the script trains in a process that it has forked
                self._wire, self._process_id = Wire.to(self._socket), os.getpid()
            self._begin_training()
        self._threads["train"].add(threading.current_thread().name)
        self._marks.append(len(self._draws))
        self._called.append(self._calls.total() - self._calls[0])
        self._wire.send("training", pid=os.getpid(), steps=len(self._marks))
        self._drawn_when.append(set())
        if self._draws_no_more:
            if self._draws_feed:  # what is replayed is not drawn again
                self._profile.end()
            if self._is_enough():
                self._finish()

    def _begin_training(self) -> None:
        """The parent keeps what start-up has made; connections are restricted from here on."""
        self._wire.send("begins")
        begin_training(self._shared, any_network=self._any_network)

    @property
    def _draws_no_more(self) -> bool:
        """Whether training needs no further batch, as in a loop without a loader."""
        since = self._marks[-STEPS_OF_A_BATCH:]
        return not self._draws or (len(since) == STEPS_OF_A_BATCH and since[0] == len(self._draws))

    @property
    def _draws_feed(self) -> bool:
        """Whether batches are drawn between steps."""
        return len(self._draws) > (self._marks[0] if self._marks else 0)

    def _is_enough(self) -> bool:
        count, now = len(self._marks), perf_counter()
        if now > self._late and count >= FEWEST_LATE_STEPS:
            return True
        slow = now - self._first_step > SECONDS
        return not self._profile.runs and (count >= STEPS or (slow and count >= FEWEST_STEPS))

    def _on_autocast(self, device: str) -> None:
        """Where a compiled model runs under it, no call of a module is seen."""
        import torch

        of_training = torch.is_grad_enabled() and not self._done
        if of_training and (casts_to := autocast_dtype(self._facts.get("device", device))) is not None:
            self._facts["precision"] = casts_to

    def _on_attention(self) -> None:
        self._facts["attention"] = True

    def _finish(self) -> None:
        """Enough was seen: tells it, and leaves the script."""
        self._profile.end()
        try:
            seen = self._seen()
        except Exception as error:  # noqa: BLE001 - of whatever kind: the script is not to blame
            give_up(self._wire, error)
        self._done = True
        self._end_of_forwards()
        rest_in_the_end(self._wire)
        self._wire.send("result", value=seen)
        end_burst()

    def _seen(self) -> dict[str, Any]:
        import torch

        evaluated = self._passes.evaluating(self._marks)
        count = len(self._draws)  # a thread of the script may go on drawing
        places = [place for place in range(count) if place not in evaluated]
        marks = [bisect_left(places, mark) for mark in self._marks]
        drawn_from = [self._draws[place] for place in places]
        drawn = merged(drawn_from, {one: loader_key(loader) for one, loader in self._loaders.items()})
        between = drawn[marks[0] : marks[-1]] if marks else []
        told_as = {own: told for (own, _), (told, _) in zip(drawn_from, drawn, strict=True)}
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
        sample_seconds, wait_fraction = reading(main)
        traffic = traffic_of(models, self._optimizers.values())
        tokens = sum(padding.tokens for padding in self._padding)
        apart = self._threads["draw"] - self._threads["train"] if self._threads["train"] else set()
        return {
            "device": "cpu",
            "compiled": in_compiled_code or any(is_compiled(model) for model in models),
            "calls_unseen": calls_unseen and not in_compiled_code,
            "step_calls": [] if loaders else [after - before for before, after in pairwise(self._called)],
            "small_operators_fraction": self._profile.small_operators,
            "batch_bytes": 0,
            "step_samples": 1,
            "pass_bytes": traffic.pass_bytes,
            "update_bytes": traffic.update_bytes,
            "padding_fraction": sum(one.padded for one in self._padding) / tokens if tokens else None,
            "opens_group": False,
            **self._facts,
            **({"step_samples": usual(self._row_counts)} if self._row_counts else {}),
            "chosen": chosen_by(first, models),
            "pid": os.getpid(),
            "argv": sys.argv,
            "first_argv": self._first_argv,
            "seconds_to_loop": time() - self._began,
            "steps": len(self._marks),
            "optimizers": len(per_optimizer),
            "optimizer": type(first).__name__ if first is not None else None,
            "optimizer_impls": [form for form in implementations(first) if form != "fused" or not self._has_sparse],
            "updates_itself": self._updates_itself and not self._steps,
            "accumulation": max(1, usual(draws) if main is not None else round(self._calls_between / rounds)),
            "draws_ahead": usual(draws) > 1 and usual([len(each) for each in self._drawn_when[1:-1]]) == 1,
            "samples": samples[:20],
            "evaluation_bytes": self._activations.in_evaluation(
                max(samples, default=1), loaders, self._sites.evaluates
            ),
            "loaders": [
                described(loader)
                | self._passes.described(id(loader), told_as, self._marks[0], evaluated)
                | {"keeps_samples": self._growth.is_seen(loader)}
                for loader in loaders
            ],
            "models": [model_key(model) for model in models],
            "model_names": [type(model).__name__ for model in models],
            "tensors": sum(1 for model in models for _ in model.parameters()),
            "weights": sum(weight.numel() for model in models for weight in model.parameters()),
            "images": any(weight.dim() == 4 for model in models for weight in model.parameters()),
            "shapes": shapes_hash(*models),
            "blocks": sum(count_blocks(model) for model in models),
            "recomputable_blocks": sum(count_blocks(model, recomputable=True) for model in models),
            "fixed_shapes": len({str(self._batches[place]) for place in places[1:]}) <= 1,
            "sample_seconds": sample_seconds,
            "sample_wait_fraction": wait_fraction,
            "ranks": count_ranks(),
            "ddp": exchange_of(models),
            "beside": trained_beside(),
            "thread": min(apart, default=None),
            "threads": torch.get_num_threads(),
            "default_threads": self._default_threads,
            "source": self._sites.told(loaders, [self._optimizers[one] for one in per_optimizer]),
            "frameworks": [name for name in ("lightning", "transformers", "accelerate") if name in sys.modules],
            "torchao": importlib.util.find_spec("torchao") is not None,
            "cuda_opened": torch.cuda.is_initialized(),  # type: ignore[no-untyped-call]
        }

    @property
    def _calls_between(self) -> int:
        """Micro-batches since the first step, in a loop without a loader: what every model and each backward shares."""
        return min(self._calls.values(), default=0)

    def _tell_of_end(self) -> None:
        """Should the script end before it has trained, the parent hears what was seen."""
        former = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            if isinstance(error, BurstEnded) or self._done:
                leave()
            former(kind, error, trace)
            sys.stderr.flush()
            self._wire.send("ended", error=sentence_of(error), **self._outline())

        def ended() -> None:
            if self._done:
                leave()
            error = last_error()  # where another hook than ours was told of it, or nobody
            told = sentence_of(error) if error is not None else None
            self._wire.send("ended", error=told, **self._outline())

        note_exits()
        sys.excepthook = hook
        at_exit(ended)

    def _outline(self) -> dict[str, Any]:
        seen = None
        with contextlib.suppress(Exception):  # the script's own end is to be told, whatever comes of it
            seen = self._seen() if len(self._marks) >= 2 else None
        return {
            "steps": len(self._steps) or len(self._marks),
            "forwards": self._forwards,
            "draws": len(self._draws),
            "loaders": len(self._loaders),
            "seen": seen,
        }
