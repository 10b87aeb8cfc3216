"""Workloads with one mistake each: the first group is seen when they are built, the second when a step is taken."""

from collections import UserDict

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from autotune import TrainConfig, Workload


def model():
    return nn.Linear(4, 2)


def dataset(samples=64):
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(samples, 4, generator=generator), torch.arange(samples) % 2)


def loss(model, batch):
    features, labels = batch
    return functional.cross_entropy(model(features), labels)


def workload(**changes):
    return Workload(**{"model": model(), "dataset": dataset(), "loss": loss, "batch_size": 8, **changes})


class Unsized(Dataset):
    def __getitem__(self, index):
        return torch.ones(4), 0


class BrokenLength(Dataset):
    def __getitem__(self, index):
        return torch.ones(4), 0

    def __len__(self):
        raise OSError("no index file")


class Stream(IterableDataset):
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        return iter([(torch.ones(4), 0)] * self.samples)


class SizedStream(Stream):
    def __len__(self):
        return self.samples


class Mapped(Dataset):
    """Samples that a function of the index makes."""

    def __init__(self, make):
        self.make = make

    def __getitem__(self, index):
        return self.make(index)

    def __len__(self):
        return 64


class Encoding(UserDict):
    """A batch that moves itself, in place, as those of transformers do."""

    def to(self, device):
        self.data = {name: value.to(device) for name, value in self.data.items()}
        return self


def encode(samples):
    return Encoding(default_collate(samples))


# Seen when it is built.


def nothing():
    return None


def two():
    return model(), dataset()


def dictionary():
    return {"model": model(), "dataset": dataset(), "loss": loss}


def workload_class():
    return Workload


def model_class():
    return workload(model=nn.Linear)


def swapped():
    return dataset(), model(), loss


def elsewhere():
    return workload(model=nn.Linear(4, 2, device="meta"))


def buffer_elsewhere():
    net = model()
    net.register_buffer("table", torch.ones(2, device="meta"))
    return workload(model=net)


def frozen():
    return workload(model=model().requires_grad_(False))


def loader_for_dataset():
    return workload(dataset=DataLoader(dataset()))


def path_for_dataset():
    return workload(dataset="data/train")


def splits_for_dataset():
    return workload(dataset={"train": dataset(), "test": dataset()})


def class_for_dataset():
    return workload(dataset=TensorDataset)


def number_for_dataset():
    return workload(dataset=7)


def generator_for_dataset():
    return workload(dataset=(sample for sample in dataset()))


def unsized_dataset():
    return workload(dataset=Unsized())


def broken_length():
    return workload(dataset=BrokenLength())


def empty_dataset():
    return workload(dataset=dataset(0))


def no_loss():
    return workload(loss=None)


def criterion_for_loss():
    return workload(loss=nn.CrossEntropyLoss())


def functional_for_loss():
    return workload(loss=functional.cross_entropy)


def optimizer_instance():
    return workload(optimizer=torch.optim.AdamW(model().parameters()))


def no_batch():
    return workload(batch_size=0)


def baseline_as_dict():
    return workload(baseline={"batch_size": 8})


def text_for_batch_size():
    return workload(batch_size="32")


def two_batch_sizes():
    return workload(batch_size=64, baseline=TrainConfig(batch_size=16))


# Seen when a step is taken.


def empty_stream():
    return workload(dataset=Stream(0))


def sampler_of_a_stream():
    return workload(dataset=Stream(64), sampler=[0, 1, 2])


def sample_raises():
    def read(index):
        raise FileNotFoundError(f"scan-{index}.png")

    return workload(dataset=Mapped(read))


def ragged_samples():
    return workload(dataset=Mapped(lambda index: (torch.ones(4 + index), 0)))


def none_samples():
    return workload(dataset=Mapped(lambda _: None))


def collate_raises():
    def pack(samples):
        raise KeyError("input_ids")

    return workload(collate_fn=pack)


def collate_raises_on_few():
    def pack(samples):
        if len(samples) < 8:
            raise ValueError("eight are needed")
        return default_collate(samples)

    return workload(collate_fn=pack)


def loss_raises():
    def fails(model, batch):
        return loss(model, batch[0])

    return workload(loss=fails)


def loss_per_sample():
    return workload(loss=lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1], reduction="none"))


def loss_as_float():
    return workload(loss=lambda model, batch: loss(model, batch).item())


def loss_as_output():
    return workload(loss=lambda model, batch: {"loss": loss(model, batch)})


def loss_detached():
    return workload(loss=lambda model, batch: loss(model, batch).detach())


def loss_nan():
    return workload(loss=lambda model, batch: loss(model, batch) * float("nan"))


def loss_of_another_model():
    other = model()
    return workload(loss=lambda _, batch: loss(other, batch))


def optimizer_raises():
    def make(params):
        return torch.optim.SGD(params, lr=-1.0)

    return workload(optimizer=make)


def optimizer_of_wrong_type():
    return workload(optimizer=list)


def optimizer_of_another_model():
    return workload(optimizer=lambda _: torch.optim.AdamW(model().parameters()))


def optimizer_with_closure():
    return workload(optimizer=torch.optim.LBFGS)


def clip_as_text():
    return workload(clip_grad_norm="often")


def out_of_memory():
    def fails(model, batch):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    return workload(loss=fails)
