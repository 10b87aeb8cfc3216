"""Fails as a file says, once it has trained for some steps: more than a look at it takes."""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(256, 8), torch.randn(256, 1)), batch_size=16, shuffle=True)
for _ in range(2000):
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), y)
        if step == 12:
            how = Path(sys.argv[1]).read_text()
            if how == "raise":
                raise ValueError("no such luck")
            if how == "memory":
                raise MemoryError("all of it")
            if how == "exit":
                sys.exit(3)
            if how == "die":
                os.abort()
            if how == "hang":
                time.sleep(600)
            if how == "nan":
                loss = loss * float("nan")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
