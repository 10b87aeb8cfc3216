"""Prepares its data once, reads it from a file from then on, and replaces its last checkpoint in one go."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if not os.path.exists("cache.pt"):
    torch.save((torch.randn(256, 8), torch.randn(256, 1)), "cache.pt")
data = TensorDataset(*torch.load("cache.pt"))
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(2000):
    for x, y in DataLoader(data, batch_size=16, shuffle=True):
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.save(model.state_dict(), "last.tmp")
        os.replace("last.tmp", "last.pt")
