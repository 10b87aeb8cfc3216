"""Which loaders and optimizers of a script may be tuned while it trains, and why the others may not."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from ...torch_settings.naming import has_own_iterator, start_method, weights_of
from ...torch_settings.process_settings import why_gradients_unfit
from ..attributes import REPEATING, held_by, why_trained
from ..samplers import own_samplers_of

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from .pools import OwnReading

CONNECTIONS = {
    "_socket", "socket", "sqlite3", "h5py", "lmdb", "psycopg", "psycopg2", "redis", "pymongo", "requests", "urllib3",
    "aiohttp", "boto3", "botocore", "grpc", "zmq",
}  # fmt: skip
"""Packages whose objects are connections or open files that processes cannot share."""


def why_not(loader: DataLoader[Any]) -> str | None:
    """Why a loader is left as it is; None where others may feed its pass."""
    if isinstance(loader.dataset, IterableDataset):
        return "the data set is iterable: its workers share it out themselves"
    if has_own_iterator(loader):
        return "the class of the loader makes its own iterator"
    if torch.get_default_device().type != "cpu":
        return "torch's default device is not the CPU"
    if not getattr(loader, "in_order", True):
        return "the script asks for batches out of order"
    samplers = loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None), loader.sampler
    if own_samplers_of(loader) or any(map(_draws_again, samplers)):
        return "the sampler may look at what was trained, or draw random numbers beside it"
    return None


def why_no_workers(loader: DataLoader[Any], reading: OwnReading) -> str | None:
    """Why workers might not read what this process reads; None where nothing speaks against it."""
    if reading.why_no_workers is not None:
        return reading.why_no_workers
    if start_method() != "fork":
        return "workers would be started anew here, and run the script's own lines again"
    if (why := next(filter(None, map(_why_not_copied, held_by(loader.dataset, loader.collate_fn))), None)) is not None:
        return why
    if reading.has_changed(loader):
        return "the data set changes while it is read or trained on, which workers would not see"
    if reading.draws_own(loader):
        return REPEATING
    return None


def _why_not_copied(part: Any) -> str | None:
    """Why workers might not use their copy of a part of the data set; None where nothing speaks against it."""
    if type(part).__module__.partition(".")[0] in CONNECTIONS:
        return f"the data set holds a {type(part).__qualname__}, which workers would share"
    return why_trained(part)


def why_not_fused(optimizer: Optimizer) -> str | None:
    """Why torch's fused form might fail, or compute something else, by the gradients of a step; else None."""
    weights = weights_of(optimizer)
    if (why := why_gradients_unfit(optimizer)) is not None:
        return why
    if any(weight.grad is not None and weight.grad.stride() != weight.stride() for weight in weights):
        return "some gradients do not lie in memory as their weights do"
    if (
        weights
        and weights[0].device.type == "cuda"
        and {"lightning", "lightning_fabric", "pytorch_lightning"} & {*sys.modules}
    ):
        return "Lightning refuses to clip gradients for a fused optimizer under a GradScaler"
    return None


def _draws_again(sampler: Any) -> bool:
    """Whether a sampler draws more than once in a pass from a generator of the script's."""
    return (
        isinstance(sampler, RandomSampler)
        and sampler.generator is not None
        and (sampler.replacement or sampler.num_samples > len(sampler.data_source))
    )
