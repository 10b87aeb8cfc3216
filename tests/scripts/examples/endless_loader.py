"""Makes its loader as YOLOv5 does: one iterator for all epochs, over a sampler that never ends."""

import torch
from endless import InfiniteDataLoader
from torch import nn
from torch.utils.data import TensorDataset

loader = InfiniteDataLoader(TensorDataset(torch.randn(320, 8), torch.randn(320, 1)), batch_size=16, shuffle=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(100_000):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
