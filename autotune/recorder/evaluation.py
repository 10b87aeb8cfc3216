"""Evaluation during training: it is no part of a block, because configs reach it in different blocks."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable
from time import perf_counter  # by name: the script may replace what `time` holds
from typing import Any

import torch
from torch import nn

from ..torch_settings.naming import class_of, model_key, wrapped_in
from ..torch_settings.undo import nothing

OFTEN_STEPS = 2
"""A forward that recurs within this many steps is part of training, like that of a teacher. Not tuned: some scripts
train two networks in turn, and no known script evaluates that often without switching a model's mode."""


class Evaluation:
    """Distinguishes evaluation from training, and times it.

    Evaluation begins when a model that trains is switched to evaluation, unless each step does that between drawing its
    batch and training on it, to guess labels. It also begins when, less often than in each step, batches are drawn that
    training does not use, or a copy of the model is called. It ends with the next batch of training.

    Args:
        report: Called with ``evaluate`` and ``train``.
        synchronise: Waits for the device.
        step_batches: Batches that training draws for a step; 0 in a loop without a loader. There only a model's mode
            marks evaluation, because reinforcement learning collects the data that it trains on.

    Attributes:
        left_out: Seconds of evaluation since this was last set to 0.
    """

    def __init__(self, report: Callable[[str], None], synchronise: Callable[[], None], step_batches: int) -> None:
        self.left_out = 0.0
        self._report = report
        self._synchronise = synchronise
        self._step_batches = step_batches
        self._since: float | None = None
        self._switched: nn.Module | None = None  # the model whose mode began it; None: something else did
        self._seems_over: float | None = None
        self._shown: dict[str, tuple[int, bool]] = {}
        self._switches: dict[int, tuple[int, int]] = {}  # by the id of a model: draws at the last one, its number
        self._is_within_step = False  # a batch was drawn that is not trained on yet

    def on_mode(self, model: nn.Module, drawn: int, *, training: bool) -> None:
        """Notes that a model that trains is switched to evaluation, or back.

        Args:
            model: The model.
            drawn: Batches of training that were drawn so far.
            training: Whether it is switched back.
        """
        if not training:
            is_part_of_step = (
                self._is_within_step
                and self._step_batches > 0
                and not self._is_seldom(self._name_of_switch(model, drawn), drawn)
            )
            if self._since is None and not is_part_of_step:
                self._begin()
                self._switched = model
        elif self._switched is model:
            self._end_now()
        else:
            self.seems_over()

    def _name_of_switch(self, model: nn.Module, drawn: int) -> str:
        """Names a switch by its model and its number in a step: one more than usual is an evaluation."""
        last, count = self._switches.get(id(model), (drawn, 0))
        self._switches[id(model)] = drawn, count + 1 if last == drawn else 1
        return f"mode of {id(model)}, {self._switches[id(model)][1]}"

    def shows(self, by: str, drawn: int) -> None:
        """Notes an action that belongs to evaluation, unless each step does it.

        Args:
            by: Name of the action.
            drawn: Batches of training that were drawn so far.
        """
        if not self._step_batches:
            return
        if self._is_seldom(by, drawn) and self._since is None:
            self._begin()

    def _is_seldom(self, by: str, drawn: int) -> bool:
        """Whether an action comes less often than in each step; repeated within a step, it is what it was before."""
        before, is_seldom = self._shown.get(by, (-1, True))
        if before not in {-1, drawn}:
            is_seldom = drawn - before > OFTEN_STEPS * self._step_batches
        self._shown[by] = drawn, is_seldom
        return is_seldom

    def seems_over(self) -> None:
        """Gradients are enabled again: if training continues with a batch drawn before, evaluation ended here."""
        if self._since is not None and self._switched is None:
            self._synchronise()
            self._seems_over = perf_counter()

    def end(self) -> None:
        """Ends evaluation: training draws its next batch."""
        self._is_within_step = True
        self._end_now()

    def _end_now(self) -> None:
        if self._since is not None:
            self._synchronise()
            self._end(perf_counter() - self._since)

    def trains(self, *, steps: bool = True) -> None:
        """Gradients are computed with a batch drawn before.

        Args:
            steps: Whether the weights change: computing gradients alone may belong to an evaluation, as of attacks.
        """
        self._is_within_step = False
        if self._since is None:
            return
        if self._switched is None:
            self._end(0.0 if self._seems_over is None else self._seems_over - self._since)
        elif steps:  # it trains in that mode
            self._since = self._switched = None

    def _begin(self) -> None:
        self._synchronise()
        self._since, self._seems_over = perf_counter(), None
        self._report("evaluate")  # which may take longer than any block

    def _end(self, seconds: float) -> None:
        self._report("train")
        self.left_out += seconds
        self._since = self._switched = None


class Copies:
    """Copies of the models that train, such as an average of their weights: they are called to evaluate.

    Only the copies have hooks, so that no forward of training takes longer.

    Args:
        models: The models that train.
        called: Called with the name of a copy at each call in evaluation mode and without gradients.
    """

    def __init__(self, models: Iterable[nn.Module], called: Callable[[str], None]) -> None:
        models = list(models)
        self._keys = {model_key(own) for model in models for own in wrapped_in(model)}
        self._named = {key.split(" ", 1)[0] for key in self._keys}
        self._known = weakref.WeakSet(part for model in models for part in model.modules())
        self._called = called

    def look_for(self) -> None:
        """Finds the copies that already exist in this process."""
        if not self._named:
            return
        for one in gc.get_objects():
            if self._may_be(one):
                self.note(one)

    def note(self, module: nn.Module) -> None:
        """Notes a module that may be a copy, such as one that is switched to evaluation."""
        if not self._may_be(module) or module in self._known:
            return
        self._known.add(module)
        if (key := model_key(module)) in self._keys:
            module.register_forward_pre_hook(_ReportingHook(self._called, key))

    def _may_be(self, thing: Any) -> bool:
        """Whether an object may be a copy, by its type alone: touching the object might run code of the script."""
        return issubclass(type(thing), nn.Module) and class_of(thing) in self._named


class _ReportingHook:
    """A hook that stays with copies of its model. Pickling turns it into one that does nothing."""

    def __init__(self, called: Callable[[str], None], key: str) -> None:
        self._called = called
        self._key = key
        self._wants_gradients = torch.is_grad_enabled

    def __call__(self, module: nn.Module, _: Any) -> None:
        # torch.compile knows this and leaves out the code after it: the script's graphs stay the same.
        if not (torch.compiler.is_compiling() or module.training or self._wants_gradients()):
            self._called(self._key)

    def __deepcopy__(self, _: Any) -> _ReportingHook:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _ReportingHook, (nothing, self._key)
