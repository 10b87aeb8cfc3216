"""Evaluates an average of its weights, as YOLOv5 does: nothing is ever switched to evaluation but once."""

import copy
import sys
import time

import torch
from endless import InfiniteDataLoader
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

HOW = sys.argv[1]
"""``alike``: it validates from a loader like the one that trains; ``other``: from another, drawn with gradients on;
``tensors``: from none; ``teacher``: the average is called in each step, as a teacher."""
STEPS, EVALUATION_SECONDS = 10, 0.4


class Slow(nn.Linear):
    """Takes 10 ms to train on a batch."""

    def forward(self, x):
        if torch.is_grad_enabled() or HOW == "teacher":
            time.sleep(0.01)
        return super().forward(x)


def rows(mark, count=80):
    """A data set whose samples tell which one it is."""
    return TensorDataset(torch.full((count, 4), mark))


model = Slow(4, 1)
average = copy.deepcopy(model).eval()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
kind = InfiniteDataLoader if HOW == "alike" else DataLoader
loader, held_out = kind(rows(1.0), batch_size=8), kind(rows(2.0, 80 if HOW == "alike" else 72), batch_size=8)


def require(is_so, otherwise):
    """Not by an assertion: who fails that where an epoch should have ended, may begin again."""
    if not is_so:
        raise RuntimeError(otherwise)


def evaluate():
    """On what is held out, all of it and nothing else."""
    if HOW == "alike":
        with torch.no_grad():
            seen = [average(one).mean() for (one,) in held_out if (one == 2).all()]
        require(len(seen) == len(held_out), "validation was given batches of training")
    elif HOW == "other":
        for (one,) in held_out:
            with torch.no_grad():
                average(one)
    else:
        with torch.inference_mode():
            average(torch.full((8, 4), 2.0))
            time.sleep(EVALUATION_SECONDS)
        return
    time.sleep(EVALUATION_SECONDS)


step = 0
while True:
    for (batch,) in loader:
        require((batch == 1).all(), "training was given batches of validation")
        loss = model(batch).mean()
        with torch.no_grad():
            accuracy = (loss > 0).float()
            if HOW == "teacher":
                average(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % STEPS == 0 and HOW != "teacher":
            evaluate()
