"""Training in several processes, the ranks: this process's rank, and one model on all ranks.

The bursts' own ranks, those of `torchrun`, and any others of ``torch.distributed`` look alike here.
"""

from __future__ import annotations

import datetime
import itertools
import math
import weakref
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, DistributedSampler, IterableDataset, Sampler

from autotune.errors import ConfigError
from autotune.hardware.host import read_cpu
from autotune.knobs import TrainConfig, ddp_arguments
from autotune.recorder import ranks
from autotune.recorder.order import Seeded
from autotune.training.sharding import split_among_ranks

if TYPE_CHECKING:
    from torch.optim import Optimizer

NO_DEADLINE = datetime.timedelta(days=7)
"""Timeout of a collective. A rank that waits for others is ended from outside. A runner may also be stopped inside a
collective while its partner trains, and torch's own 10 or 30 minutes would count that time."""


@dataclass(frozen=True)
class Rank:
    """One of the processes that train together."""

    number: int = 0  # from 0
    count: int = 1  # on all machines
    local: int = 0  # number on this machine, which decides the device
    local_count: int = 1  # on this machine

    @property
    def alone(self) -> bool:
        """Whether a single process trains."""
        return self.count == 1


def this_rank() -> Rank:
    """The rank of this process: from ``torch.distributed``, or from `torchrun` before that is initialised."""
    if not (distributed.is_available() and (distributed.is_initialized() or distributed.is_torchelastic_launched())):
        return Rank()  # other launchers leave variables of the same names to single processes
    number, count = ranks.this_rank(), ranks.count_ranks()
    return Rank(number, count, ranks.number_in("LOCAL_RANK", number), ranks.number_in("LOCAL_WORLD_SIZE", count))


def device_of_rank(device: torch.device) -> torch.device:
    """The device of this rank, for a kind of device: each rank has its own GPU."""
    rank = this_rank()
    if rank.alone or device.type != "cuda" or device.index is not None:
        return device
    if rank.local >= torch.cuda.device_count():
        raise ConfigError(
            f"rank {rank.number} needs a GPU of its own, but this machine shows {torch.cuda.device_count()}; "
            "start no more ranks than GPUs"
        )
    return torch.device("cuda", rank.local)


def join(device: torch.device, **how: Any) -> None:
    """Makes this process one of the ranks, unless it is already; `how` goes to ``init_process_group``."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if distributed.is_initialized():
        return
    # Beside NCCL, tensors on the CPU go through gloo, as by torch's own default.
    distributed.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", **how)


def threads_of_rank() -> int:
    """Threads that each rank may use in an operation: its share of the CPUs."""
    return max(1, read_cpu({}).budget // this_rank().local_count)


def on_all_ranks(
    model: nn.Module, config: TrainConfig, device: torch.device, optimizer: Optimizer | None = None
) -> nn.Module:
    """The model in a ``DistributedDataParallel``, or split among the ranks, as the config says.

    A model without trainable parameters is returned unchanged. The optimizer gets the parameters that are split.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return model
    if config.strategy == "fsdp":
        return split_among_ranks(model, config, device, optimizer)
    settings = ddp_arguments(config) if config.ranks > 1 else {}
    shared = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None, **settings)
    if config.exchange_dtype == "bf16":
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

        # torch refuses its own hook, by name, without NCCL; but gloo can add bf16 too (seen with torch 2.13).
        shared.register_comm_hook(None, lambda state, bucket: bf16_compress_hook(state, bucket))  # noqa: PLW0108
    return shared


class Exchange:
    """Makes the models on all ranks exchange gradients only with the last micro-batch of a step."""

    def __init__(self) -> None:
        # Ordered, unlike a WeakSet: ranks exchange several models' gradients in one order.
        self._models: weakref.WeakKeyDictionary[DistributedDataParallel, None] = weakref.WeakKeyDictionary()
        self._learning: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()

    def __bool__(self) -> bool:
        return bool(self._models)

    def add(self, model: DistributedDataParallel) -> None:
        """Adds a model from `on_all_ranks`."""
        self._models[model] = None
        if model.static_graph:
            self._learning.add(model)

    def only_last(self, batches: Iterable[Any], size: int) -> Iterator[Any]:
        """Yields the batches of a step; gradients are exchanged with the last one, or after the data ends early."""
        number = 0
        try:
            for number, batch in enumerate(batches, 1):
                for model in self._models:  # what ``no_sync()`` does while it is open
                    model.require_backward_grad_sync = number == size or model in self._learning
                yield batch
                self._learning.clear()  # under static_graph the very first backward pass must end with an exchange
            if 0 < number < size:
                self._exchange()
        finally:
            for model in self._models:
                model.require_backward_grad_sync = True

    def _exchange(self) -> None:
        """Averages the gradients over all ranks, where no backward pass has done so.

        A weight without a gradient counts as zero, as in DDP; one that has none on any rank gets none.
        """
        for model in self._models:
            weights = [weight for weight in model.parameters() if weight.requires_grad]
            used = torch.tensor([weight.grad is not None for weight in weights], dtype=torch.int32)
            used = used.to(next(model.parameters()).device)  # of the backend
            distributed.all_reduce(used)
            for weight in itertools.compress(weights, used.tolist()):
                if weight.grad is None:
                    weight.grad = torch.zeros_like(weight)
                distributed.all_reduce(weight.grad)
                weight.grad /= distributed.get_world_size()


class SharedSampler(Sampler[Any]):
    """Shares another sampler's draws among ranks as ``DistributedSampler`` does.

    All ranks together draw the samples that one process would draw. Where these cannot be shared evenly, the first ones
    of a pass are drawn again.
    """

    def __init__(self, sampler: Any, rank: Rank) -> None:
        self._sampler = sampler
        self._rank = rank

    def __len__(self) -> int:
        return math.ceil(len(self._sampler) / self._rank.count)

    def __iter__(self) -> Iterator[Any]:
        first: list[Any] = []
        drawn = iter(self._sampler)
        while group := list(itertools.islice(drawn, self._rank.count)):
            first = first or group
            whole = itertools.chain(group, itertools.cycle(first))
            yield next(itertools.islice(whole, self._rank.number, None))

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch to a sampler that accepts it."""
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)


def place_in_data(place: int, length: int | None, rank: Rank) -> int:
    """Converts a place in the samples of all ranks to one in a data set whose epochs have no sample twice."""
    if rank.alone or not length:
        return place
    epoch, within = divmod(place, rank.count * math.ceil(length / rank.count))
    return epoch * length + min(within, length - 1)


class EpochSampler(DistributedSampler[Any]):
    """A ``DistributedSampler`` that moves to the next epoch by itself; you may still call ``set_epoch``."""

    def __iter__(self) -> Iterator[Any]:
        drawn = super().__iter__()
        self.epoch += 1
        return drawn


def shared_out(dataset: Dataset[Any], settings: dict[str, Any], rank: Rank) -> dict[str, Any]:
    """Keyword arguments of a ``DataLoader`` whose samples are shared out among the ranks.

    Raises:
        ConfigError: The batches come from a batch sampler without support for ranks, or from a sampler that may draw
            differently on each rank.
    """
    if isinstance(dataset, IterableDataset):
        return settings  # it shares itself, or cannot be shared
    batches, sampler = settings.get("batch_sampler"), settings.get("sampler")
    if batches is not None:
        if not hasattr(batches, "num_replicas") and not hasattr(getattr(batches, "sampler", None), "num_replicas"):
            raise ConfigError(
                "the batches of a batch_sampler cannot be shared out among ranks: each would train all of them; "
                "give it a torch.utils.data.DistributedSampler as its sampler, or pass sampler= instead"
            )
        return settings
    if hasattr(sampler, "num_replicas"):
        return settings  # shared out already
    others = {name: value for name, value in settings.items() if name not in {"sampler", "shuffle"}}
    if sampler is not None:
        if not isinstance(sampler, Sized):
            raise ConfigError(
                "expected a sampler with a length, which can be shared out among ranks, got "
                f"{type(sampler).__name__}; give it a __len__(), or pass a torch.utils.data.DistributedSampler"
            )
        return {**others, "sampler": SharedSampler(Seeded(sampler, 0), rank)}
    own = EpochSampler(dataset, rank.count, rank.number, shuffle=bool(settings.get("shuffle")))
    return {**others, "sampler": own}
