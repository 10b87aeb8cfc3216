"""A data set that draws random numbers for each sample; or one that counts its reads, and so differs with workers."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index):
        self.reads += 1
        x = torch.full((8,), index / 256) + torch.randn(8)
        return (x + self.reads if sys.argv[1] == "counting" else x), x.sum(0, keepdim=True)


if sys.argv[1] == "unseeded":
    import time

    torch.nn.functional.mse_loss, own = (lambda x, y: own(x, y) * (1 + time.time() % 1)), nn.functional.mse_loss
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
loader = DataLoader(Noisy(), batch_size=16, shuffle=True)
for _ in range(5000):
    for x, y in loader:
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
