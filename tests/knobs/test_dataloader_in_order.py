"""dataloader_in_order, from the space to torch's DataLoader and back from a user's own: the documentation's example."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

from autotune.knobs.config import TrainConfig
from autotune.results.files import parse_document
from autotune.results.result import Result
from autotune.training.tuned import Tuned
from autotune.workload.adapters.loaders import baseline, read_loader
from benchmarks.surfaces import loader_part
from tests.factories import make_result
from tests.spaces import gpu_machine, make_facts, space_of

NAME = "dataloader_in_order"
OUT_OF_ORDER = TrainConfig(batch_size=1, num_workers=2, dataloader_in_order=False)


class SlowFirst(Dataset[int]):
    """Numbers, of which the first takes longer than starting a worker and all others together."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        time.sleep(2.0 if index == 0 else 0.0)
        return index


def test_it_is_searched_only_when_asked_for() -> None:
    """No two runs train alike without it, so that nobody gets it unasked; the reason says how to ask."""
    space = space_of(gpu_machine(), make_facts(num_workers=2))
    assert "--only" in space.skipped[NAME]
    assert all(config.dataloader_in_order for config in space.suggested())
    asked = space_of(gpu_machine(), make_facts(num_workers=2), only=[NAME])
    assert asked.choices[NAME].values == (True, False)
    assert not asked.suggested()[0].dataloader_in_order


def test_it_is_searched_where_the_baseline_has_given_it_up() -> None:
    """Who trains so already is not told that it may not be."""
    space = space_of(gpu_machine(), make_facts(num_workers=2, dataloader_in_order=False))
    assert space.choices[NAME].values == (True, False)


def test_a_pin_gives_it_up_everywhere() -> None:
    """In every candidate with workers; without any it has no effect."""
    space = space_of(gpu_machine(), pinned={NAME: False})
    assert {space.config({"num_workers": n}).dataloader_in_order for n in (1, 2)} == {False}
    assert space.config({"num_workers": 0}).dataloader_in_order


@pytest.mark.parametrize(
    ("changes", "pinned", "reason"),
    [({}, {"num_workers": 0}, "without workers"), ({"samples": None, "num_workers": 2}, {}, "may have an order")],
)
def test_it_needs_workers_and_a_map_style_data_set(changes: Any, pinned: Any, reason: str) -> None:
    """Where it would change nothing, or too much, it is not searched though it was asked for."""
    space = space_of(gpu_machine(), make_facts(**changes), only=[NAME], pinned=pinned)
    assert reason in space.skipped[NAME]


@pytest.mark.parametrize(("in_order", "first"), [(True, 0), (False, 1)])
def test_a_slow_batch_holds_up_others_only_in_order(in_order: bool, first: int) -> None:
    """The loader of bursts, and of the user's own training, is told; all samples come either way."""
    tuned = Tuned(OUT_OF_ORDER.replace(dataloader_in_order=in_order))
    batches = [int(batch) for batch in tuned.dataloader(SlowFirst())]
    assert batches[0] == first
    assert sorted(batches) == list(range(8))


def test_it_is_read_from_a_users_loader() -> None:
    """What a person trains with today is the baseline."""
    parts = read_loader(DataLoader(SlowFirst(), batch_size=1, num_workers=2, in_order=False))
    assert baseline(parts) == OUT_OF_ORDER


def test_a_file_from_before_it_is_read() -> None:
    """Files of version 1 were measured in order."""
    data = json.loads(make_result().model_dump_json(by_alias=True))
    for side in ("baseline", "best"):
        assert data[side]["config"].pop(NAME) is True
    assert parse_document(data, "digits.json", Result).best.config.dataloader_in_order


def test_a_replay_takes_it_for_part_of_the_loader() -> None:
    """The loader alone of a config that gives it up gives it up."""
    assert not loader_part(OUT_OF_ORDER, TrainConfig()).dataloader_in_order
