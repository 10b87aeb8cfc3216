"""Any of our workloads, as loadtune takes them: a file with a ``get_workload()``."""

from __future__ import annotations

import os
from typing import Any

from torch import nn

from autotune.workload.batches import move
from autotune.workload.target import load_workload
from benchmarks.plain import make_optimizer

VARIABLE = "AUTOTUNE_PEER_TARGET"
"""Of the environment: names the workload."""


def get_workload() -> Any:
    """The workload that the environment names; it is built once a process, which is once a trial."""
    from loadtune.workload import Workload

    workload = load_workload(os.environ[VARIABLE])

    def train_step(model: Any, optimizer: Any, batch: Any, device: Any) -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = workload.loss(model, move(batch, device))
        loss.backward()  # type: ignore[no-untyped-call]
        if workload.clip_grad_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), workload.clip_grad_norm)
        optimizer.step()
        return loss

    return Workload(
        name=os.environ[VARIABLE],
        make_dataset=lambda: workload.dataset,
        make_model=lambda: workload.model,
        train_step=train_step,
        make_optimizer=lambda _: make_optimizer(workload, "default"),
        default_batch_size=workload.batch_size,
        collate_fn=workload.collate_fn,
    )
