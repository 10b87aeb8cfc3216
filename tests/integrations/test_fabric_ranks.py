"""Lightning Fabric on two ranks: gradients are exchanged once a step, as they were in bursts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT

TRAIN = """
import json, os, sys
import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, TensorDataset
from autotune import TrainConfig, Tuned
from autotune.integrations.fabric import fabric_kwargs, setup
tuned = Tuned(TrainConfig(ranks=2, batch_size=1, accumulation_steps=3))
fabric = Fabric(**fabric_kwargs(tuned))
fabric.launch()
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(TensorDataset(torch.arange(12.0)[:, None]), batch_size=1)
model, optimizer, loader = setup(tuned, fabric, model, optimizer, loader)
exchanged = []
(shared,) = [part for part in model.modules() if isinstance(part, torch.nn.parallel.DistributedDataParallel)]
def count(state, bucket):
    exchanged[-1] += 1
    ended = torch.futures.Future()
    ended.set_result(bucket.buffer())
    return ended
shared.register_comm_hook(None, count)
for micro_batches in tuned.accumulate(loader):
    for (batch,) in micro_batches:
        exchanged.append(0)
        fabric.backward(model(batch).mean() / len(micro_batches))
    optimizer.step()
    optimizer.zero_grad()
with open(f"{sys.argv[1]}.{fabric.global_rank}", "w") as target:
    target.write(json.dumps(exchanged))
fabric.barrier()
os._exit(0)  # gloo's threads abort one run in twelve on a busy machine (torch 2.13)
"""


@pytest.mark.slow
def test_gradients_are_exchanged_with_the_last_micro_batch_of_a_step(tmp_path: Path) -> None:
    """Six samples a rank are two steps of three micro-batches: two exchanges, and not six."""
    pytest.importorskip("lightning")
    (tmp_path / "train.py").write_text(TRAIN)
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(tmp_path / "train.py")]
    done = subprocess.run(
        [sys.executable, *start, str(tmp_path / "told")],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert json.loads((tmp_path / f"told.{rank}").read_text()) == [0, 0, 1, 0, 0, 1]
