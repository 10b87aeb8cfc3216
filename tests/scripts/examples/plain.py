"""A loop as tutorials write it: an epoch of training, an evaluation, a checkpoint, a line in a log."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=500)
options = parser.parse_args()
torch.manual_seed(0)
data = TensorDataset(torch.randn(640, 20), torch.randint(0, 5, (640,)))
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
train_loader = DataLoader(data, batch_size=32, shuffle=True)
test_loader = DataLoader(data, batch_size=128)
for epoch in range(options.epochs):
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in test_loader)
    torch.save(model.state_dict(), "model.pt")
    with open("log.txt", "a") as log:
        log.write(f"{epoch} {right}\n")
print("trained", flush=True)
