"""Generators of random numbers that samplers hold: what was drawn from them for nothing is given back."""

from __future__ import annotations

import contextlib
import pickle
import random
from collections import deque
from typing import Any

import torch

from .samplers import samplers_within


class Rewinding:
    """The generators that a pass's samplers hold, while indices are drawn ahead of training.

    A pass that the script leaves early has drawn more than the script's own loader would have by then.

    Args:
        sampler: Draws the indices of batches.
    """

    def __init__(self, sampler: Any) -> None:
        held = (value for one in samplers_within(sampler) for value in (getattr(one, "__dict__", None) or {}).values())
        self._generators = [one for one in held if _state(one) is not None]
        self._before: deque[list[Any]] = deque()  # states before each batch that is drawn and not due yet
        self._after: list[Any] = []  # and after the last of them

    def begins_batch(self) -> None:
        """A batch is drawn ahead."""
        if self._generators:
            self._before.append([_state(one) for one in self._generators])

    def has_drawn(self) -> None:
        """It was drawn."""
        if self._generators:
            self._after = [_state(one) for one in self._generators]

    def asked(self) -> None:
        """The next batch is due."""
        if self._before:
            self._before.popleft()

    def give_back(self) -> None:
        """Restores the generators to before the first batch that is not due, unless others have drawn since."""
        if self._before and [_state(one) for one in self._generators] == self._after:
            for generator, state in zip(self._generators, self._before[0], strict=True):
                _restore(generator, state)
        self._before.clear()


def _state(generator: Any) -> Any:
    """The state of a generator, which can be compared; None for anything else."""
    with contextlib.suppress(Exception):
        if isinstance(generator, torch.Generator):
            return generator.get_state().numpy().tobytes()
        if isinstance(generator, random.Random):
            return generator.getstate()
        if str(type(generator).__module__).startswith("numpy.random"):
            return pickle.dumps(_of_numpy(generator).state)  # arrays in it cannot be compared
    return None


def _restore(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        _of_numpy(generator).state = pickle.loads(state)  # noqa: S301 - of this process


def _of_numpy(generator: Any) -> Any:
    """The bit generator of one of NumPy's generators."""
    return getattr(generator, "bit_generator", None) or generator._bit_generator
