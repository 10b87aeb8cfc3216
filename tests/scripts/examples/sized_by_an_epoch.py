"""Trains one epoch, by something that holds no more than an epoch: a schedule, an array, or another iterator."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

sized, samples = sys.argv[1], 16 * int(sys.argv[2])
data = TensorDataset(torch.randn(samples, 8), torch.randn(samples, 1))
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
loader = DataLoader(data, batch_size=16, shuffle=True)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=len(loader))
losses = torch.zeros(len(loader))
others = iter(DataLoader(TensorDataset(torch.randn(samples // 8, 8)), batch_size=2))
for step, (x, y) in enumerate(loader):
    time.sleep(0.002)
    loss = nn.functional.mse_loss(model(x), y)
    if sized == "another iterator":
        loss = loss + model(next(others)[0]).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if sized == "schedule":
        schedule.step()
    if sized == "array":
        losses[step] = loss.item()
