"""Prepares for a while, opens CUDA by the function that torch opens it by, and makes a folder that must be new.

Its trace tells what was done how often.
"""

import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

time.sleep(2.0)
with open("trace", "a") as trace:
    trace.write("prepared ")
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
if hasattr(torch._C, "_cuda_init"):  # without a GPU there is none, unless a recorder waits for it
    torch._C._cuda_init()
with open("trace", "a") as trace:
    trace.write("opened ")
os.mkdir("out")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(256, 8), torch.randn(256, 1)), batch_size=16, shuffle=True)
for _ in range(5000):
    for x, y in loader:
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
