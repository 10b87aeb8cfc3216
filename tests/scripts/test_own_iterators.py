"""Loaders whose class makes its own iterator, as PyTorch Geometric's do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from autotune.measuring.records import Outcome
from autotune.scripts import Script, ScriptIsolation
from autotune.scripts.changes import held_knobs
from tests.example_scripts import START_SECONDS, alone

OWN_ITERATOR = """
import torch
from torch import nn
from torch.utils.data import DataLoader

class Neighbours(DataLoader):  # as PyG's: what its workers collate is no batch yet
    def _get_iterator(self):
        return map(self.read, super()._get_iterator())
    def read(self, indices):
        return self.rows[indices], self.labels[indices]

Neighbours.rows, Neighbours.labels = torch.randn(512, 8), torch.randint(0, 3, (512,))
loader = Neighbours(range(512), batch_size=32, shuffle=True)
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(500):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_a_loader_that_makes_its_own_iterator_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it hands out, no other loader would; bursts train from it, and the rest can be changed."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(OWN_ITERATOR)
    with ScriptIsolation(Script((sys.executable, "train.py"))) as isolation:
        isolation.start(START_SECONDS)
        held = held_knobs(isolation.seen, batch_is_free=True)
        burst = alone(isolation, optimizer_impl="fused")
    assert {"batch_size", "num_workers", "pin_memory", "prefetch_factor"} <= {
        name for name, why in held.items() if "makes its own iterator" in why
    }
    assert burst.outcome is Outcome.OK, burst.reason
