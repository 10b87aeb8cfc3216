"""Makes its loader as YOLOv5 does: one iterator for all epochs, over a sampler that never ends."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Repeated:
    """Batches of indices, epoch after epoch."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class InfiniteDataLoader(DataLoader):
    """Iterates once, and hands out an epoch at a time."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        object.__setattr__(self, "batch_sampler", Repeated(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


loader = InfiniteDataLoader(TensorDataset(torch.randn(320, 8), torch.randn(320, 1)), batch_size=16, shuffle=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(100_000):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
