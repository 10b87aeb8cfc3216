"""Workloads whose numerics are known: sound ones, and some that half precision breaks."""

import dataclasses
import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from autotune import Workload


def sound(batch_norm=False, dropout=0.0, optimizer=None):
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(256, 16, generator=generator), torch.randint(0, 4, (256,), generator=generator))
    norm = nn.BatchNorm1d(64) if batch_norm else nn.Identity()
    model = nn.Sequential(nn.Linear(16, 64), norm, nn.ReLU(), nn.Dropout(dropout), nn.Linear(64, 4))

    def loss(model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1])

    return Workload(model, data, loss, batch_size=32, optimizer=optimizer, name="sound")


def with_batch_norm():
    return sound(batch_norm=True)


def with_dropout():
    return sound(dropout=0.5)


def in_bf16(model=True):
    """Its weights and its loss are bf16, or its loss alone."""
    workload = sound()

    def loss(model, batch):
        features = batch[0].to(next(model.parameters()).dtype)
        return functional.cross_entropy(model(features), batch[1]).bfloat16()

    trained = workload.model.bfloat16() if model else workload.model
    return dataclasses.replace(workload, model=trained, loss=loss)


def loss_in_bf16():
    return in_bf16(model=False)


def large_in_fp32():
    """Only half precision has memory for more than eight samples; the libraries raise no type of torch's for that."""

    def loss(model, batch):
        if len(batch[0]) > 8 and not torch.is_autocast_enabled("cpu"):
            raise RuntimeError("could not create a memory object")
        return functional.cross_entropy(model(batch[0]), batch[1])

    return dataclasses.replace(sound(), loss=loss)


def wrong_in_bf16():
    """Another loss under autocast, as where a mask value overflows: it trains, and trains something else."""
    workload = sound()

    def loss(model, batch):
        wrong = torch.is_autocast_enabled("cpu")
        return functional.cross_entropy(model(batch[0]) * (-1 if wrong else 1), batch[1])

    return Workload(workload.model, workload.dataset, loss, batch_size=32, name="wrong in bf16")


class Strips(nn.Module):
    """Strips of features to log-probabilities of symbols, time first."""

    def __init__(self):
        super().__init__()
        self.reader = nn.Linear(16, 33)

    def forward(self, strips):
        return self.reader(strips).log_softmax(-1).transpose(0, 1)


def ctc(summed_in_half=True):
    """CTC over long strips; summed over a batch in half precision, its loss passes 65,504, the most that fp16 holds."""
    generator = torch.Generator().manual_seed(0)
    strips = torch.randn(64, 400, 16, generator=generator)
    symbols = torch.randint(1, 33, (64, 50), generator=generator)

    def loss(model, batch):
        strips, symbols = batch
        scores = model(strips)
        lengths = torch.full((len(strips),), strips.shape[1]), torch.full((len(strips),), symbols.shape[1])
        each = functional.ctc_loss(scores.float(), symbols, *lengths, reduction="none")
        half = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") and summed_in_half else torch.float32
        return each.to(half).sum() / 1000

    return Workload(Strips(), TensorDataset(strips, symbols), loss, batch_size=64, name="ctc")


def ctc_summed_in_fp32():
    return ctc(summed_in_half=False)


def slow():
    workload = sound()

    def loss(model, batch):
        time.sleep(0.5)
        return model(batch[0]).square().mean()

    return Workload(workload.model, workload.dataset, loss, batch_size=32, name="slow")
