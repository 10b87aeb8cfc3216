"""Through Lightning Fabric, which leaves the loop to its user."""

from __future__ import annotations

from lightning.fabric import Fabric

from autotune.integrations.fabric import fabric_kwargs, setup
from benchmarks.frameworks.common import FrameworkLoop
from benchmarks.stopwatch import OnStep


class Loop(FrameworkLoop):
    """Trains in the loop of the guide to Fabric."""

    def train(self, on_step: OnStep) -> None:
        """Until `on_step` says that it is enough."""
        workload, clip = self.workload, self.workload.clip_grad_norm
        fabric = Fabric(**fabric_kwargs(self.tuned))
        model, optimizer, loader = setup(self.tuned, fabric, workload.model, workload.make_optimizer(), self.loader)
        while True:
            for micro_batches in self.tuned.accumulate(loader):
                for samples, batch in micro_batches:
                    loss = workload.loss(model, batch)
                    fabric.backward(loss / len(micro_batches))
                    self.count(samples, loss)
                if clip is not None:
                    # Scaled gradients overflow now and then: that is no error.
                    fabric.clip_gradients(model, optimizer, max_norm=clip, error_if_nonfinite=False)
                optimizer.step()
                optimizer.zero_grad()
                if on_step(self.take_samples()):
                    return
            self.end_epoch()
