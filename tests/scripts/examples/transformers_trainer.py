"""A Trainer of transformers'."""

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments


class Rows(Dataset):
    def __len__(self) -> int:
        return 640

    def __getitem__(self, index: int) -> dict:
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(20, generator=generator)
        return {"x": x, "labels": x[:5].argmax()}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))

    def forward(self, x, labels=None):
        out = self.net(x)
        return {"loss": nn.functional.cross_entropy(out, labels), "logits": out}


arguments = TrainingArguments(
    output_dir="out", num_train_epochs=300, per_device_train_batch_size=16, gradient_accumulation_steps=2,
    use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
)  # fmt: skip
Trainer(Classifier(), arguments, train_dataset=Rows()).train()
