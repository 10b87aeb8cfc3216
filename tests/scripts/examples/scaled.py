"""A loop with a GradScaler, whose first gradients overflow: the optimizer does not step then, and the scale halves."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(640, 20), torch.randint(0, 5, (640,)))
model = nn.Linear(20, 5)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
off = torch.amp.GradScaler("cpu", enabled=False)
scaler = torch.amp.GradScaler("cpu", init_scale=float(sys.argv[1]))
batches = 0
while True:
    for x, y in DataLoader(data, batch_size=32):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(off.scale(loss)).backward()
        batches += 1
        if batches <= 6:
            model.weight.grad.fill_(torch.inf)
        scaler.step(optimizer)
        scaler.update()
