"""A real training of a real script, tuned while it runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from autotune.results.result import read_result
from tests.processes import run

SCRIPT = """
import json, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

class Rows(Dataset):
    def __len__(self):
        return 3200
    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.tensor([float(index), float(get_worker_info() is not None)])

model = nn.Linear(2, 1)
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(Rows(), batch_size=32, shuffle=True)
epochs, by_workers, deadline = [], 0, time.monotonic() + 400
while by_workers < 400 and time.monotonic() < deadline:
    epochs.append([])
    for batch in loader:
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
        epochs[-1] += batch[:, 0].int().tolist()
        by_workers = by_workers + 1 if batch[0, 1] else 0
print(json.dumps([by_workers, [sorted(epoch) == list(range(3200)) for epoch in epochs]]))
sys.exit(5)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_training_that_waits_for_its_data_gets_workers(tmp_path: Path) -> None:
    """While it runs: it trains on each sample once an epoch, and the result is that of the search."""
    (tmp_path / "train.py").write_text(SCRIPT)
    done = run(["train", "--out", "result.json", "--", sys.executable, "train.py"], tmp_path, seconds=500)
    assert done.status == 5, done.err
    by_workers, epochs = json.loads(done.out)
    assert by_workers >= 400, done.err
    assert all(epochs)
    result = read_result(tmp_path / "result.json")
    assert result.changed_knobs["num_workers"][1] > 0
    assert result.speedup is not None
    assert result.speedup.ci95.low > 1
    assert f"result file: result.json; next time: autotune launch result.json -- {sys.executable} train.py" in done.err
    launched = run(["launch", "result.json", "--", sys.executable, "-c", "print('launched')"], tmp_path)
    assert (launched.status, launched.out) == (0, "launched\n"), launched.err
