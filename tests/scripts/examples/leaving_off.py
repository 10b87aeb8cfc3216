"""Epochs of so many steps: the loop leaves its loader off, which holds more, and begins it anew."""

import itertools
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(3200, 20), torch.randint(0, 5, (3200,)))
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=32, shuffle=True)
for _ in range(100_000):
    for x, y in itertools.islice(loader, int(sys.argv[1])):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
