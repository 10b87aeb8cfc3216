"""What the players of a host share: a model and its optimizer, which go on training whichever config plays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import psutil
import torch

if TYPE_CHECKING:
    from autotune.training.tuned import Tuned
    from autotune.workload.workload import Workload

KEPT_SHARE = 0.125
"""Of the memory that is available, for a copy of weights and optimizer state. Chosen: where they are larger, a loss
that is not finite ends the host, which starts again without the player."""


class Learner:
    """A model and its optimizer.

    Args:
        workload: What is trained.
        tuned: The config to begin with.

    Attributes:
        model: What is called.
        optimizer: What steps it.
    """

    def __init__(self, workload: Workload, tuned: Tuned) -> None:
        self.optimizer = workload.make_optimizer()
        self.model, _ = tuned.prepare(workload.model, self.optimizer)
        self._own = workload.model
        self._in_force = tuned.in_force
        self._dtype = torch.get_default_dtype()
        self._kept: list[torch.Tensor] | None = None

    def take(self, tuned: Tuned, *, trains: bool) -> None:
        """Switches to a config, and to training or evaluation.

        Raises:
            ConfigError: A setting did not come into effect.
        """
        if self._in_force is not None and self._in_force.config != tuned.config:
            self._in_force.switch(tuned.config)
            tuned.exchanges(self.model)
            torch.set_default_dtype(self._dtype)  # which the user's code may have changed while another player played
        if self.model.training != trains:
            self.model.train(trains)

    def keep(self) -> None:
        """Copies weights and optimizer state, so that `restore` can put them back; not where memory is short."""
        tensors = list(self._tensors())
        size = sum(tensor.nbytes for tensor in tensors)
        if size > KEPT_SHARE * psutil.virtual_memory().available:
            self._kept = None
        elif self._kept is not None and len(self._kept) == len(tensors):
            for kept, tensor in zip(self._kept, tensors, strict=True):
                kept.copy_(tensor)
        else:
            self._kept = [tensor.detach().to("cpu", copy=True) for tensor in tensors]

    def restore(self) -> bool:
        """Puts back what was kept; returns whether there was something."""
        tensors = list(self._tensors())
        if self._kept is None or len(self._kept) != len(tensors):
            return False
        self.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for tensor, kept in zip(tensors, self._kept, strict=True):
                tensor.copy_(kept)
        return True

    def _tensors(self) -> Iterator[torch.Tensor]:
        yield from (weight.data for weight in self._own.parameters())
        yield from self._own.buffers()
        for state in self.optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, torch.Tensor))
