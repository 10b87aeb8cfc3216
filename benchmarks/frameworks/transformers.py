"""Through a ``transformers.Trainer``."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

import torch
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from autotune.integrations.transformers import training_kwargs, tune_trainer
from benchmarks.frameworks.common import FrameworkLoop, refuse_iterable
from benchmarks.stopwatch import OnStep

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


QUIET = {
    "report_to": "none", "logging_strategy": "no", "logging_nan_inf_filter": False, "save_strategy": "no",
    "disable_tqdm": True,
}  # fmt: skip
LEARNS_AS_THE_WORKLOAD = {"lr_scheduler_type": "constant", "remove_unused_columns": False}
"""By default it would change the learning rate, and leave out what the model's ``forward`` does not name."""
STEPS_WITHOUT_END = 10**9


class WorkloadTrainer(Trainer):  # type: ignore[misc]
    """A Trainer with a workload's loss, data and optimizer."""

    def __init__(self, loop: FrameworkLoop, args: TrainingArguments) -> None:
        workload = loop.workload
        self.loop = loop
        super().__init__(
            workload.model, args, train_dataset=workload.dataset, optimizers=(workload.make_optimizer(), None)
        )

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The workload's, with its own sampler and collation."""
        return self.loop.loader

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,  # noqa: ARG002
        num_items_in_batch: Any = None,  # noqa: ARG002
    ) -> torch.Tensor:
        """The workload's loss of a counted batch."""
        samples, batch = inputs
        loss = self.loop.workload.loss(model, batch)
        self.loop.count(samples, loss)
        return loss


class Counting(TrainerCallback):  # type: ignore[misc]
    """Counts, and ends the training when it is enough."""

    def __init__(self, loop: FrameworkLoop, on_step: OnStep) -> None:
        self.loop = loop
        self.on_step = on_step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """An optimizer step is done."""
        control.should_training_stop = self.on_step(self.loop.take_samples())

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """An epoch is done."""
        self.loop.end_epoch()


class Loop(FrameworkLoop):
    """Trains with ``Trainer.train``."""

    def train(self, on_step: OnStep) -> None:
        """Until `on_step` says that it is enough.

        Raises:
            WorkloadError: When the dataset is iterable.
        """
        refuse_iterable(self.workload, "transformers")
        with tempfile.TemporaryDirectory() as folder:
            words = training_kwargs(
                self.tuned, output_dir=folder, max_steps=STEPS_WITHOUT_END,
                max_grad_norm=self.workload.clip_grad_norm or 0.0,  # it would clip at 1
                seed=torch.initial_seed() % 2**32,  # it seeds again, and numpy takes no longer one
                **QUIET, **LEARNS_AS_THE_WORKLOAD,
            )  # fmt: skip
            trainer = tune_trainer(self.tuned, WorkloadTrainer(self, TrainingArguments(**words)))
            trainer.remove_callback(PrinterCallback)
            trainer.add_callback(Counting(self, on_step))
            trainer.train()
