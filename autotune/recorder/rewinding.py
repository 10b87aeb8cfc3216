"""Generators of random numbers that samplers hold: draws for batches that nothing reads are taken back."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from .attributes import is_own_generator, state_of
from .samplers import own_samplers, samplers_within

LEFT_EARLY = (
    "the script leaves epochs early, after its sampler has drawn random numbers ahead, for workers: later epochs have "
    "other samples than those of its own loader; pin num_workers and prefetch_factor to avoid that"
)
_last: weakref.WeakValueDictionary[int, Rewinding] = weakref.WeakValueDictionary()
"""The last pass that draws from a generator, by the generator's id: where another begins, it takes back its draws."""


class Rewinding:
    """The generators that a pass's samplers hold, while indices are drawn ahead of training.

    A pass that the script leaves early has drawn more than the script's own loader would have by then. Samplers of
    torch and of frameworks are rewound. One of the script's own may hold a position as well, so it is left alone.

    Args:
        sampler: Draws the indices of batches.
    """

    def __init__(self, sampler: Any) -> None:
        held = [value for one in samplers_within(sampler) for value in (getattr(one, "__dict__", None) or {}).values()]
        self._generators = list({id(value): value for value in held if is_own_generator(value)}.values())
        self._is_own = bool(own_samplers(sampler))
        self._pending: deque[tuple[list[Any], list[Any]]] = deque()
        """States before and after each batch that is drawn and not due yet."""
        for generator in self._generators:
            if (former := _last.get(id(generator))) is not None:
                former.give_back()
            _last[id(generator)] = self

    def draw_ahead(self, draw: Callable[[], None]) -> None:
        """Draws a batch before it is due."""
        before = self._states()
        draw()
        if self._generators:
            self._pending.append((before, self._states()))

    def asked(self) -> None:
        """The next batch is due."""
        if self._pending:
            self._pending.popleft()

    def give_back(self) -> bool:
        """Takes back what was drawn for batches that are not due, unless something else has drawn since.

        Returns:
            Whether a sampler of the script's own has drawn, which stays.
        """
        pending = [*self._pending]
        has_drawn = bool(pending) and pending[0][0] != pending[-1][1]
        if self._is_own or not has_drawn:
            return has_drawn
        self._pending.clear()
        for number, (generator, now) in enumerate(zip(self._generators, self._states(), strict=True)):
            befores, afters = ([states[number] for states in side] for side in zip(*pending, strict=True))
            is_alone = afters == [*befores[1:], now]
            if is_alone and befores[0] != now and isinstance(generator, torch.Generator):
                generator.set_state(torch.frombuffer(bytearray(befores[0]), dtype=torch.uint8))
        return False

    def _states(self) -> list[Any]:
        return [state_of(generator) for generator in self._generators]
