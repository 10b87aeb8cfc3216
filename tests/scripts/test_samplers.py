"""A sampler of the script's own: is what it draws decided by what the script does with its batches?"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Sampler, TensorDataset, WeightedRandomSampler

from autotune.recorder.loader_passes import Pass
from autotune.recorder.samplers import MOST_SECONDS, own_samplers
from autotune.recorder.stream import ITERATE

SAMPLES = 64
losses_of_all: dict[int, float] = {}
Reads = Callable[[], Any]
"""What a sampler reads before each index."""
Trains = Callable[["Own"], object]
"""What the script does after each batch."""


class Own(Sampler[int]):
    """Draws all samples, in the order of lengths or by a generator of its own."""

    def __init__(self, reads: Reads, **held: Any) -> None:
        self.reads = reads
        self.epoch = self.drawn = 0
        vars(self).update(held)

    def __iter__(self) -> Iterator[int]:
        shuffled = random.Random(self.epoch).sample(range(SAMPLES), SAMPLES)
        for index in shuffled:
            self.reads()
            self.drawn += 1
            yield index

    def __len__(self) -> int:
        return SAMPLES

    def set_epoch(self, epoch: int) -> None:
        """Of the next pass."""
        self.epoch = epoch


class Uncertain(Own):
    """Asks a model."""

    model: nn.Module

    def __iter__(self) -> Iterator[int]:
        for index in range(SAMPLES):
            self.model(torch.zeros(1))
            yield index


def _in_place(model: nn.Module) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1)


def _nothing(_: Own) -> None:
    pass


HISTORY: list[float] = []
MODEL, FROZEN, OTHER = nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1)
GENERATOR, OWN_GENERATOR = torch.Generator(), torch.Generator()


def _history() -> Reads:
    history = HISTORY
    return lambda: sum(history)


FED_BACK: dict[str, tuple[Callable[[], Own], Trains]] = {
    "a tensor": (
        lambda: Own(_history(), losses=torch.zeros(SAMPLES)), lambda own: vars(own)["losses"][3:4].add_(1),
    ),
    "one of many": (
        lambda: Own(_history(), losses=np.zeros(50_000)), lambda own: vars(own)["losses"].put(49_999, own.drawn),
    ),
    "a table": (lambda: Own(_history(), losses={}), lambda own: vars(own)["losses"].update({7: own.drawn})),
    "an attribute": (lambda: Own(_history(), hardness=0.0), lambda own: setattr(own, "hardness", own.drawn)),
    "a global": (lambda: Own(lambda: losses_of_all.get(3)), lambda own: losses_of_all.update({3: own.drawn})),
    "a closure": (lambda: Own(_history()), lambda own: HISTORY.append(own.drawn)),
    "a model": (lambda: Uncertain(_history(), model=MODEL), lambda _: _in_place(MODEL)),
    "a generator": (
        lambda: Own(lambda: torch.rand(1, generator=GENERATOR)), lambda _: torch.rand(1, generator=GENERATOR),
    ),
}  # fmt: skip
HARMLESS: dict[str, tuple[Callable[[], Own], Trains]] = {
    "nothing": (lambda: Own(_history()), _nothing),
    "lengths": (lambda: Own(_history(), lengths=[*range(SAMPLES)], source=TensorDataset(torch.ones(4))), _nothing),
    "a generator of its own": (lambda: Own(lambda: torch.rand(1, generator=OWN_GENERATOR)), _nothing),
    "a model that it never asks": (lambda: Own(_history(), model=OTHER), lambda _: _in_place(OTHER)),
    "a frozen model": (lambda: Uncertain(_history(), model=FROZEN), lambda _: _in_place(MODEL)),
}  # fmt: skip


def is_fed_back(loader: DataLoader[Any], trains: Callable[[], object]) -> bool:
    """Whether feedback is seen in the first passes."""
    seen = []
    for epoch in range(2):
        own = own_samplers(loader.batch_sampler, loader.sampler)
        own[0].set_epoch(epoch)
        passing = Pass(loader, 0, [MOST_SECONDS])
        for _ in passing.through(ITERATE(loader), lambda _: None):
            trains()
        seen.append(passing.feedback.is_seen)
    return any(seen)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", [*FED_BACK, *HARMLESS])
def test_feedback_is_what_changes_between_two_batches(name: str, workers: int) -> None:
    """Not what the sampler changes itself as it draws, nor what is set between two passes."""
    make, trains = {**FED_BACK, **HARMLESS}[name]
    sampler = make()
    loader: DataLoader[Any] = DataLoader(range(SAMPLES), 16, sampler=sampler, num_workers=workers)  # type: ignore[arg-type]
    assert is_fed_back(loader, lambda: trains(sampler)) is (name in FED_BACK)


def test_samplers_of_ones_own_are_found_within_those_of_torch() -> None:
    """Torch's own read nothing that is trained, whatever weights they hold."""
    own = Own(_history())
    assert own_samplers(BatchSampler(own, 4, drop_last=False), None, own) == [own]
    assert own_samplers(BatchSampler(WeightedRandomSampler([1.0], 1), 4, drop_last=False)) == []
