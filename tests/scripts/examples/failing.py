"""Fails as it is told, once it has trained for some steps: more than a look at it takes."""

import os
import sys
import time

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
            if sys.argv[1] == "raise":
                raise ValueError("no such luck")
            if sys.argv[1] == "memory":
                raise MemoryError("all of it")
            if sys.argv[1] == "exit":
                sys.exit(3)
            if sys.argv[1] == "die":
                os.abort()
            if sys.argv[1] == "hang":
                time.sleep(600)
            if sys.argv[1] == "nan":
                loss = loss * float("nan")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
