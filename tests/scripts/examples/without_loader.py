"""Batches cut out of one tensor, as in language models of a single file."""

import torch
from torch import nn

text = torch.randint(0, 50, (20_000,))
model = nn.Sequential(nn.Embedding(50, 32), nn.Linear(32, 50))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(20_000):
    at = torch.randint(0, len(text) - 33, (16,))
    x = torch.stack([text[i : i + 32] for i in at])
    y = torch.stack([text[i + 1 : i + 33] for i in at])
    loss = nn.functional.cross_entropy(model(x).transpose(1, 2), y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
