"""What a script evaluates in the midst of training: no part of a block, since sides come to it in different blocks."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable
from time import perf_counter  # by name: the script may replace what `time` holds
from typing import TYPE_CHECKING, Any

from .naming import class_of, model_key, wrapped_in

if TYPE_CHECKING:
    from torch import nn

OFTEN_STEPS = 2
"""What comes again after so many steps or fewer is a part of training, as a teacher is that is called in each. Chosen:
some train two networks in turn, and nobody evaluates as often as that without saying so by a model's mode."""


class Evaluation:
    """Tells evaluation from training, and how long it took.

    It begins where a model that trains is switched to evaluation, or where it shows by itself: other batches than those
    of training are drawn, or a copy of the model is called, and that not in each step. It ends with the next batch of
    training.

    Args:
        tell: Called with ``evaluate`` and ``train``.
        synchronise: Waits for the device.
        step_batches: That training draws for a step; 0 in a loop without a loader, where nothing is told from training
            but by a model's mode: reinforcement learning collects what it trains on.

    Attributes:
        left_out: Seconds of it, since that was last set to 0.
    """

    def __init__(self, tell: Callable[[str], None], synchronise: Callable[[], None], step_batches: int) -> None:
        self.left_out = 0.0
        self._tell = tell
        self._synchronise = synchronise
        self._step_batches = step_batches
        self._since: float | None = None
        self._switched: nn.Module | None = None  # the model by whose mode it began; None: it shows by itself
        self._seems_over: float | None = None
        self._shown: dict[str, int] = {}

    def on_mode(self, model: nn.Module, *, training: bool) -> None:
        """A model that trains is switched to evaluation, or back."""
        if not training and self._since is None:
            self._begin()
            self._switched = model
        elif training and self._switched is model:
            self.end()
        elif training:
            self.seems_over()

    def shows(self, by: str, drawn: int) -> None:
        """Something is done that belongs to evaluation, unless each step does it.

        Args:
            by: What it shows by.
            drawn: Batches of training that were drawn so far.
        """
        if not self._step_batches:
            return
        before, self._shown[by] = self._shown.get(by), drawn
        is_seldom = before is None or drawn - before > OFTEN_STEPS * self._step_batches
        if self._since is None and is_seldom:
            self._begin()

    def seems_over(self) -> None:
        """Gradients are wanted again: should training go on with a batch that it has, it was over here."""
        if self._since is not None and self._switched is None:
            self._synchronise()
            self._seems_over = perf_counter()

    def end(self) -> None:
        """Training draws its next batch, or says that it goes on."""
        if self._since is not None:
            self._synchronise()
            self._end(perf_counter() - self._since)

    def trains(self) -> None:
        """Gradients are computed, or a step is taken, with a batch that was drawn before."""
        if self._since is None:
            return
        if self._switched is not None:  # it trains in that mode
            self._since = self._switched = None
        else:
            self._end(0.0 if self._seems_over is None else self._seems_over - self._since)

    def _begin(self) -> None:
        self._synchronise()
        self._since, self._seems_over = perf_counter(), None
        self._tell("evaluate")  # which may take longer than any block

    def _end(self, seconds: float) -> None:
        self._tell("train")
        self.left_out += seconds
        self._since = self._switched = None


class Copies:
    """Copies of the models that train, such as an average of their weights: they are called to evaluate.

    Those are watched alone, so that no forward of training takes longer.

    Args:
        models: That train.
        called: Told the name of a copy each time that it is called in the mode of evaluation, and without gradients.
    """

    def __init__(self, models: Iterable[nn.Module], called: Callable[[str], None]) -> None:
        models = list(models)
        self._keys = {model_key(own) for model in models for own in wrapped_in(model)}
        self._named = {key.split(" ", 1)[0] for key in self._keys}
        self._known = weakref.WeakSet(part for model in models for part in model.modules())
        self._called = called

    def look_for(self) -> None:
        """Those that live in this process."""
        if not self._named:
            return
        for one in gc.get_objects():
            if self._may_be(one):
                self.note(one)

    def note(self, module: nn.Module) -> None:
        """A module, which may be a copy: somebody switches it to evaluation, say."""
        if not self._may_be(module) or module in self._known:
            return
        self._known.add(module)
        if (key := model_key(module)) in self._keys:
            module.register_forward_pre_hook(_Telling(self._called, key))

    def _may_be(self, thing: Any) -> bool:
        """By the type alone: asking the object itself might run code of the script's."""
        from torch import nn

        return issubclass(type(thing), nn.Module) and class_of(thing) in self._named


class _Telling:
    """A hook that goes along with a model that is copied, and tells nobody any more where it is pickled."""

    def __init__(self, called: Callable[[str], None], key: str) -> None:
        import torch

        self._called = called
        self._key = key
        self._wants_gradients = torch.is_grad_enabled
        # Known to torch.compile, which leaves out what comes after it: the script's graphs are the same as ever.
        self._is_compiling = getattr(torch.compiler, "is_compiling", lambda: False)

    def __call__(self, module: nn.Module, _: Any) -> None:
        if not (self._is_compiling() or module.training or self._wants_gradients()):
            self._called(self._key)

    def __deepcopy__(self, _: Any) -> _Telling:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _Telling, (_tell_nobody, self._key)


def _tell_nobody(_: str) -> None:
    """In another process, say."""
