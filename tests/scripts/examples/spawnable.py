"""A loop that starts only in the process that the user started, so that its workers can be spawned."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    """Trains for long."""
    data = TensorDataset(torch.randn(6400, 20), torch.randint(0, 5, (6400,)))
    model = nn.Linear(20, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(500):
        for x, y in DataLoader(data, batch_size=32, shuffle=True, num_workers=1):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
