"""Through Accelerate, which leaves the loop to its user."""

from __future__ import annotations

from accelerate import Accelerator

from autotune.integrations.accelerate import accelerator_kwargs, prepare
from benchmarks.frameworks.common import FrameworkLoop, refuse_iterable
from benchmarks.stopwatch import OnStep


class Loop(FrameworkLoop):
    """Trains in the loop of the guide to Accelerate."""

    def train(self, on_step: OnStep) -> None:
        """Until `on_step` says that it is enough.

        Raises:
            WorkloadError: When the dataset is iterable.
        """
        refuse_iterable(self.workload, "Accelerate")
        workload, clip = self.workload, self.workload.clip_grad_norm
        accelerator = Accelerator(**accelerator_kwargs(self.tuned))
        model, optimizer, loader = prepare(
            self.tuned, accelerator, workload.model, workload.make_optimizer(), self.loader
        )
        while True:
            for samples, batch in loader:
                with accelerator.accumulate(model):
                    loss = workload.loss(model, batch)
                    accelerator.backward(loss)
                    if clip is not None and accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), clip)
                    optimizer.step()
                    optimizer.zero_grad()
                self.count(samples, loss)
                if accelerator.sync_gradients and on_step(self.take_samples()):
                    return
            self.end_epoch()
