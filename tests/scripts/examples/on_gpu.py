"""Images on a GPU: ten seconds of preparation, and CUDA opened by the model's move; with an argument, copies wait."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

time.sleep(10.0)
torch.manual_seed(0)
data = TensorDataset(torch.randn(4096, 3, 32, 32), torch.randint(0, 10, (4096,)))
model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.Linear(32 * 784, 10))
model.to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
loader = DataLoader(data, batch_size=64, shuffle=True)
waits = {"non_blocking": False} if len(sys.argv) > 1 else {}
for _ in range(1000):
    for x, y in loader:
        x, y = x.to("cuda", **waits), y.to("cuda", **waits)  # noqa: PLW2901
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
