"""Trains on a machine whose four GPUs are made up: each rank asks torch for its own, `spread` for all of them."""

import os
import sys
from types import SimpleNamespace

import torch
import torch.distributed as ranks
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

rank = int(os.environ.get("LOCAL_RANK", "0"))
own = range(4) if "spread" in sys.argv else [rank]
visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1,2,3").split(",")
if max(own) >= len(visible):
    raise RuntimeError("CUDA error: invalid device ordinal")

torch.cuda.is_initialized = lambda: True
torch.cuda.device_count = lambda: len(visible)
torch.cuda.current_device = lambda: own[0]
torch.cuda.get_device_name = lambda *_: "NVIDIA GeForce RTX 4070"
torch.cuda.get_device_properties = lambda number: SimpleNamespace(uuid=f"40700000-000{number}")
torch.cuda.memory_reserved = lambda number=0: 2**20 if number in own else 0
torch.cuda.memory_allocated = lambda number=0: 2**20
torch.cuda.empty_cache = lambda: None

if "RANK" in os.environ:
    ranks.init_process_group("gloo")
rows = TensorDataset(torch.randn(512, 8), torch.randint(0, 3, (512,)))
model = nn.Linear(8, 3)
model = DistributedDataParallel(model) if ranks.is_initialized() else model
optimizer = torch.optim.AdamW(model.parameters())
sampler = DistributedSampler(rows) if ranks.is_initialized() else None
for epoch in range(1000):
    for x, y in DataLoader(rows, batch_size=16, sampler=sampler):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
