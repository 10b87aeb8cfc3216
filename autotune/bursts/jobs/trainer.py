"""Trains or evaluates a micro-batch at a time, with the functions that the user's own training uses."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from autotune.bursts.jobs.feed import Feed, copied
from autotune.bursts.jobs.longest_samples import WORST_STEPS, worst_batch
from autotune.bursts.jobs.ranks import Ranks
from autotune.timing.failing import PlayerError, exhausted
from autotune.torch_settings.naming import weights_of

if TYPE_CHECKING:
    from autotune.bursts.jobs.feed import Feed
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
            torch.set_default_dtype(self._dtype)  # the user's code may have changed it while another player played
        if self.model.training != trains:
            self.model.train(trains)


class WorkerKilledError(PlayerError):
    """A DataLoader worker was ended by a signal."""

    def __init__(self, signal_number: int) -> None:
        name = signal.Signals(signal_number).name
        is_full = name == "SIGBUS"
        self.outcome = "shm_exhausted" if is_full else "crashed"
        full = ", so shared memory is full" if is_full else ""
        super().__init__(f"a DataLoader worker was killed by {name}{full}")


class Drain:
    """Draws a micro-batch at a time and drops it, to time the loader alone; a subclass computes with it."""

    def __init__(self, tuned: Tuned, feed: Feed) -> None:
        self.tuned = tuned
        self.feed = feed
        self.scaler = torch.amp.GradScaler(enabled=False)
        self.updates: list[tuple[Any, Any]] = []  # marks around each step of the optimizer; the reader clears them
        self.steps = 0  # of the optimizer
        self.loss: torch.Tensor | None = None  # of the last backward pass; None if no weights are trained

    def micro_step(self) -> int:
        """Takes the next micro-batch; returns its samples."""
        samples, _ = next(self.feed)
        return samples

    def train_on_worst(self, largest_samples: Sequence[int]) -> None:
        """Takes as much memory as training may ever take; the loader alone takes none."""

    def check_weights(self) -> None:
        """Makes sure that all ranks train the same model, where one is trained."""

    def close(self) -> None:
        """Drops its batches, and ends its loader."""
        self.feed.close()


class Trainer(Drain):
    """Trains a micro-batch at a time, with the functions that the user's own training uses.

    Args:
        learner: What it trains, with these settings in force; made from the workload when None.
    """

    def __init__(self, workload: Workload, tuned: Tuned, feed: Feed, learner: Learner | None = None) -> None:
        super().__init__(tuned, feed)
        self.workload = workload
        self.learner = learner or Learner(workload, tuned)
        self.optimizer, self.model = self.learner.optimizer, self.learner.model
        self.model.train()
        self._loss_of = tuned.compiled_loss(workload.loss)
        self.scaler = tuned.scaler()
        self._ranks = Ranks()
        self._steps = self._train()

    def micro_step(self) -> int:
        """Trains on the next micro-batch, and updates after the last one of a step; returns the samples consumed."""
        return next(self._steps)

    def step(self) -> int:
        """Trains on the micro-batches of one optimizer step; returns the samples consumed."""
        return sum(self.micro_step() for _ in range(self.tuned.accumulation_steps))

    def _train(self) -> Generator[int, None, None]:
        for group in self.tuned.accumulate(self.feed):
            for number, (samples, batch) in enumerate(group, 1):
                self._backward(batch, len(group), first=number == 1)
                if number == len(group):
                    began = self.feed.clock.mark()
                    self._update()
                    self.updates.append((began, self.feed.clock.mark()))
                    self.steps += 1
                yield samples

    def train_on_worst(self, largest_samples: Sequence[int]) -> None:
        """Takes two optimizer steps on a batch of the largest samples: memory must be enough for them too."""
        if largest_samples:
            batch = worst_batch(self.workload, largest_samples, self.tuned.batch_size)
            for _ in range(WORST_STEPS):
                self._backward(self.tuned.to_device(copied(batch)), 1, first=True)
                self._update()
            self.feed.clock.synchronize()

    def _backward(self, batch: Any, parts: int, *, first: bool) -> None:
        with self.tuned.autocast():
            loss = self._loss_of(self.model, batch)
        if first and self.workload.keeps_gradients:
            self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss / parts).backward()  # type: ignore[no-untyped-call]
        self.loss = loss.detach()

    def _update(self) -> None:
        if self.workload.clip_grad_norm is not None:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.workload.clip_grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if not self.workload.keeps_gradients:
            self.optimizer.zero_grad(set_to_none=True)

    def check_weights(self) -> None:
        """Makes sure that all ranks train the same model.

        Raises:
            RanksDifferError: They do not.
        """
        self._ranks.require_equal(weights_of(self.optimizer))

    def close(self) -> None:
        """Drops its batches, and ends its loader."""
        self._steps.close()
        super().close()


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
        """Takes one step on gradients of zero, so that the optimizer makes its state.

        `SparseAdam` refuses them: its state is then missing.
        """
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        try:
            self._optimizer.step()
        except RuntimeError as error:
            if exhausted(error, self.tuned.device.type) is not None:
                raise
        self._optimizer.zero_grad(set_to_none=True)
