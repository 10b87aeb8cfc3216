"""Starts a thread before it trains, so that it cannot be forked."""

import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

threading.Thread(target=threading.Event().wait, daemon=True).start()
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(256, 8), torch.randn(256, 1)), batch_size=16, shuffle=True)
for _ in range(2000):
    for x, y in loader:
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
