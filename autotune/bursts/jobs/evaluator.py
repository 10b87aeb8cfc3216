"""Evaluates a micro-batch at a time, as during training: forward passes only, beside all memory of training."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from autotune.bursts.jobs.longest_samples import worst_batch
from autotune.bursts.jobs.trainer import Drain

if TYPE_CHECKING:
    from autotune.bursts.jobs.feed import Feed
    from autotune.bursts.jobs.trainer import Learner
    from autotune.training.tuned import Tuned
    from autotune.workload.workload import Workload


def evaluated(workload: Workload) -> Workload:
    """The workload as it is evaluated: on its own data for that, else on the training data."""
    if workload.evaluation is None:
        return workload
    return dataclasses.replace(workload, dataset=workload.evaluation, sampler=None)


class Evaluator(Drain):
    """Computes the loss of a micro-batch at a time in evaluation mode, without gradients.

    Weights and the optimizer's state lie in memory as in training, so that a batch that fits here fits there.
    """

    def __init__(self, workload: Workload, tuned: Tuned, feed: Feed, learner: Learner) -> None:
        super().__init__(tuned, feed)
        self.workload = workload
        self._model, self._optimizer = learner.model, learner.optimizer
        if not self._optimizer.state:
            self._make_state()

    def micro_step(self) -> int:
        """Evaluates the next micro-batch; returns its samples."""
        samples, batch = next(self.feed)
        self._evaluate(batch)
        return samples

    def train_on_worst(self, largest_samples: Sequence[int]) -> None:
        """Evaluates a batch of the largest samples: memory must hold for them too."""
        if largest_samples:
            self._evaluate(worst_batch(self.workload, largest_samples, self.tuned.batch_size))
            self.feed.clock.synchronize()

    def _evaluate(self, batch: Any) -> None:
        with torch.no_grad(), self.tuned.autocast():
            self.workload.loss(self._model, self.tuned.to_device(batch))

    def _make_state(self) -> None:
        """Takes one step on gradients of zero, so that the optimizer makes its state."""
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
