"""Four micro-batches a step, two loaders of one data set, sys.exit in the end, and a function that catches all."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> int:
    data = TensorDataset(torch.randn(512, 8), torch.randn(512, 1))
    model = nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(data, batch_size=16, shuffle=True, drop_last=True)
    mean = torch.cat([x for x, _ in DataLoader(data, batch_size=64)]).mean()
    for _ in range(300):
        for index, (x, y) in enumerate(loader):
            try:
                (nn.functional.mse_loss(model(x - mean), y) / 4).backward()
            except Exception:
                print("caught")
            if index % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
    return 0


if __name__ == "__main__":
    sys.exit(main())
