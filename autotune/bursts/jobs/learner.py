"""What the players of a host share: a model and its optimizer, which keep training whichever config plays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from autotune.training.tuned import Tuned
    from autotune.workload.workload import Workload


class Learner:
    """A model and its optimizer."""

    def __init__(self, workload: Workload, tuned: Tuned) -> None:
        self.optimizer = workload.make_optimizer()
        self.model, _ = tuned.prepare(workload.model, self.optimizer)
        self._in_force = tuned.in_force
        self._dtype = torch.get_default_dtype()

    def take(self, tuned: Tuned, *, trains: bool) -> None:
        """Switches to a config, and to training or evaluation.

        Raises:
            ConfigError: A setting did not come into effect.
        """
        if self._in_force is not None and self._in_force.config != tuned.config:
            self._in_force.switch(tuned.config)
            tuned.exchanges(self.model)
            torch.set_default_dtype(self._dtype)  # the user's code may have changed it while another player played
        if self.model.training != trains:
            self.model.train(trains)
