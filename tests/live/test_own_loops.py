"""`autotune.live` in a loop of one's own, and the callbacks of frameworks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT

pytestmark = pytest.mark.slow
# However fast the machine is, the training lasts until other settings are tried.
ARE_TRIED = """
from pathlib import Path

def are_tried():
    log = Path("result.live.jsonl")
    return log.exists() and '"planned"' in log.read_text()
"""
BY_HAND = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import autotune

loader = DataLoader(TensorDataset(torch.randn(256, 8), torch.randn(256, 1)), batch_size=16, shuffle=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters())
given = loader, model, optimizer
loader, model, optimizer = autotune.live(*given, out="result.json")
assert all(one is other for one, other in zip(given, (loader, model, optimizer)))
while not are_tried():
    for values, targets in loader:
        nn.functional.mse_loss(model(values), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
BY_LIGHTNING = """
import lightning, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from autotune.integrations.lightning import live_callback

class UntilTried(lightning.Callback):
    def on_train_epoch_end(self, trainer, module):
        trainer.should_stop = are_tried()

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 1)
    def training_step(self, batch, _):
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

loader = DataLoader(TensorDataset(torch.randn(256, 8), torch.randn(256, 1)), batch_size=16, shuffle=True)
callbacks = [live_callback("result.json"), UntilTried()]
lightning.Trainer(max_epochs=-1, accelerator="cpu", logger=False, enable_checkpointing=False,
                  enable_progress_bar=False, callbacks=callbacks).fit(Model(), loader)
"""
BY_TRANSFORMERS = """
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments
from autotune.integrations.transformers import live_callback

class UntilTried(TrainerCallback):
    def on_epoch_end(self, args, state, control, **kwargs):
        control.should_training_stop = are_tried()

class Rows(Dataset):
    def __len__(self):
        return 256
    def __getitem__(self, index):
        return {"x": torch.randn(8), "labels": index % 3}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 3)
    def forward(self, x, labels):
        return {"loss": nn.functional.cross_entropy(self.net(x), labels)}

arguments = TrainingArguments(output_dir="out", num_train_epochs=100_000, use_cpu=True, report_to=[],
                              save_strategy="no", logging_strategy="no", disable_tqdm=True)
Trainer(Model(), arguments, train_dataset=Rows(), callbacks=[live_callback("result.json"), UntilTried()]).train()
"""


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(BY_HAND, id="by hand"),
        pytest.param(BY_LIGHTNING, id="lightning"),
        pytest.param(BY_TRANSFORMERS, id="transformers"),
    ],
)
def test_a_loop_is_tuned_while_it_trains(script: str, tmp_path: Path) -> None:
    """It says what it tries and how it ended, and keeps a log."""
    (tmp_path / "train.py").write_text(ARE_TRIED + script)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "train.py", "--password", "correct horse"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "are tried while it trains; follow it with 'autotune watch" in done.stderr
    lines = [json.loads(line) for line in (tmp_path / "result.live.jsonl").read_text().splitlines()]
    assert lines[0]["command"] == "train.py --password '***'"
    events = [line["event"] for line in lines]
    assert events[:3] == ["started", "began", "planned"]
    assert events[-1] == "ended"
    assert ("the training ended before the search did; so far, " in done.stderr) is ("over" not in events)
