"""Two models and two optimizers that step in turn."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

real = DataLoader(TensorDataset(torch.randn(512, 16)), batch_size=32, shuffle=True)
generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 16))
critic = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
for _ in range(400):
    for (batch,) in real:
        made = generator(torch.randn(len(batch), 4))
        of_critic.zero_grad()
        (critic(made.detach()).mean() - critic(batch).mean()).backward()
        of_critic.step()
        of_generator.zero_grad()
        (-critic(made).mean()).backward()
        of_generator.step()
