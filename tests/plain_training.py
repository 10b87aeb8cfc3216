"""Training as a person writes it in plain PyTorch: what a burst's figures are held against.

Timed on the machine as it is now, rather than calculated: after a moment's sleep a shared processor's caches are cold,
and a step of microseconds takes milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

if TYPE_CHECKING:
    import torch

    from autotune.measuring.records import Measurement
    from autotune.workload.workload import Workload


def agreeing(measure: Callable[[], Measurement], expected: Callable[[], float], *, within: float) -> Measurement:
    """The burst whose rate is the expected one, of up to three.

    Others may take the CPU during the burst and not during the long run, or the other way round: a wrong method is
    wrong each time.
    """
    tried = []
    for _ in range(3):
        measured = measure()
        tried.append(measured.samples_per_second / expected())
        if abs(tried[-1] - 1) <= within:
            return measured
    raise AssertionError(f"measured over expected: {tried}")


def loader_of(workload: Workload) -> DataLoader[Any]:
    """A loader with the baseline's knobs."""
    config = workload.baseline_config
    return DataLoader(
        workload.dataset,
        batch_size=config.batch_size,
        num_workers=config.num_workers,
        prefetch_factor=config.prefetch_factor,
        persistent_workers=config.persistent_workers,
        worker_init_fn=workload.worker_init_fn,
    )


def train_on(workload: Workload, optimizer: torch.optim.Optimizer, batch: Any) -> int:
    """One plain step; returns its samples."""
    workload.loss(workload.model, batch).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    return len(batch)


def rate_over_epochs(workload: Workload, epochs: int) -> float:
    """Samples per second, from the end of the first epoch on."""
    loader, optimizer = loader_of(workload), workload.make_optimizer()
    for batch in loader:
        train_on(workload, optimizer, batch)
    began = time.perf_counter()
    samples = sum(train_on(workload, optimizer, batch) for _ in range(epochs) for batch in loader)
    return samples / (time.perf_counter() - began)


def rate_within_an_epoch(workload: Workload, skip: int, batches: int) -> float:
    """Samples per second, once so many batches are past."""
    loader, optimizer = iter(loader_of(workload)), workload.make_optimizer()
    for _ in range(skip):
        train_on(workload, optimizer, next(loader))
    began = time.perf_counter()
    samples = sum(train_on(workload, optimizer, next(loader)) for _ in range(batches))
    return samples / (time.perf_counter() - began)


def waiting_fraction(workload: Workload, skip: int, batches: int) -> float:
    """Share of the time that goes into waiting for batches, epoch after epoch, once so many batches are past."""
    stream, optimizer = chain.from_iterable(repeat(loader_of(workload))), workload.make_optimizer()
    for batch in islice(stream, skip):
        train_on(workload, optimizer, batch)
    began, waited = time.perf_counter(), 0.0
    for _ in range(batches):
        asked = time.perf_counter()
        batch = next(stream)
        waited += time.perf_counter() - asked
        train_on(workload, optimizer, batch)
    return waited / (time.perf_counter() - began)


def rate_of_steps(workload: Workload, steps: int) -> float:
    """Samples per second of training on one batch again and again."""
    batch, optimizer = next(iter(loader_of(workload))), workload.make_optimizer()
    began = time.perf_counter()
    return sum(train_on(workload, optimizer, batch) for _ in range(steps)) / (time.perf_counter() - began)


def rate_of_reading(workload: Workload, skip: int, batches: int) -> float:
    """Samples per second of a loader whose batches nobody trains on, once so many are past."""
    loader = iter(loader_of(workload))
    for _ in range(skip):
        next(loader)
    began = time.perf_counter()
    return sum(len(next(loader)) for _ in range(batches)) / (time.perf_counter() - began)
