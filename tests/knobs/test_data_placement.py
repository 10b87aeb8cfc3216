"""data_placement: offered where samples are always the same and fit, and in order with the workers that it replaces."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.errors import ConfigError
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Point
from autotune.search.ablation import reverted
from tests.hardware.readings import MIB
from tests.spaces import cpu_machine, gpu_machine, make_facts, space_of

NAME = "data_placement"
FITS: dict[str, Any] = {"placeable_bytes": 50 * MIB, "sample_seconds": 1e-5}


def test_a_cpu_may_collate_once_and_a_gpu_may_keep_it() -> None:
    """The device is the first guess where there is one; workers have nothing to do then."""
    on_cpu, on_gpu = space_of(cpu_machine(), make_facts(**FITS)), space_of(gpu_machine(), make_facts(**FITS))
    assert on_cpu.choices[NAME].values == ("loader", "collated")
    assert on_gpu.choices[NAME].values == ("loader", "collated", "device")
    assert (on_cpu.preferred[NAME], on_gpu.preferred[NAME]) == ("collated", "device")
    assert on_gpu.suggested()[0].data_placement == "device"
    assert on_gpu.suggested()[0].num_workers == 0


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"placeable_bytes": None, "unplaceable_reason": "its samples differ"}, "its samples differ"),
        ({"placeable_bytes": None}, "not examined"),
        ({"placeable_bytes": 10**15}, "of the memory that is free"),
        ({"sample_seconds": 0.01}, "--budget 417m"),  # 50,000 samples take 500 s, a fiftieth of 25,000
        ({"samples": None}, "cannot be collated once"),
    ],
)
def test_where_it_is_not_searched_the_reason_is_told(facts: dict[str, Any], reason: str) -> None:
    """Other samples each time, no memory, or no time to read them all."""
    assert reason in space_of(cpu_machine(), make_facts(**{**FITS, **facts})).skipped[NAME]


@pytest.mark.parametrize(("seconds", "tried"), [(2.4, True), (2.6, False)])
def test_a_short_budget_still_tries_a_data_set_that_is_soon_read(seconds: float, tried: bool) -> None:
    """Reading it a few times takes a third of a budget of 30 s, and a table is often twice as fast then."""
    facts = make_facts(**{**FITS, "sample_seconds": seconds / 50_000})
    assert (NAME in space_of(cpu_machine(), facts, budget_seconds=30.0).choices) == tried


def test_workers_that_are_asked_for_keep_their_work() -> None:
    """A pin holds in every candidate; and where only other knobs are searched, workers stay."""
    pinned = space_of(cpu_machine(), make_facts(**FITS), pinned={"num_workers": 2})
    assert "2 requested workers" in pinned.skipped[NAME]
    alone = space_of(cpu_machine(), make_facts(**FITS, num_workers=2), only=[NAME])
    assert "2 requested workers" in alone.skipped[NAME]
    both = space_of(cpu_machine(), make_facts(**FITS, num_workers=2), only=[NAME, "num_workers"])
    assert NAME in both.choices


def test_a_pin_leaves_workers_out() -> None:
    """They would have nothing to load, which is told; and both cannot be pinned."""
    space = space_of(cpu_machine(), make_facts(**FITS, num_workers=2), pinned={NAME: "collated"})
    assert space.start.num_workers == 0
    assert "nothing to load" in space.skipped["num_workers"]
    with pytest.raises(ConfigError, match="pin only one"):
        space_of(cpu_machine(), make_facts(**FITS), pinned={NAME: "collated", "num_workers": 2})


def test_a_pin_that_cannot_hold_is_refused() -> None:
    """Before any burst, with the reason."""
    facts = make_facts(unplaceable_reason="its samples differ")
    with pytest.raises(ConfigError, match="its samples differ; pin it to loader"):
        space_of(cpu_machine(), facts, pinned={NAME: "collated"})


def test_what_it_leaves_without_effect_is_reset() -> None:
    """Workers and all that goes with them; on the device also copies."""
    workers = {"num_workers": 4, "prefetch_factor": 4, "persistent_workers": True}
    assert TrainConfig(data_placement="collated", **workers) == TrainConfig(data_placement="collated")  # type: ignore[arg-type]
    pinned = TrainConfig(data_placement="collated", pin_memory=True, non_blocking=True)
    assert pinned.non_blocking
    assert pinned.replace(data_placement="device") == TrainConfig(data_placement="device")


def test_reverted_alone_it_gives_the_workers_back() -> None:
    """The ablation compares with the loader that the baseline had, not with one that nobody trained with."""
    before = Point(config=TrainConfig(num_workers=2, prefetch_factor=4, persistent_workers=True))
    winner = before.changed({NAME: "collated", "precision": "bf16"})
    found = reverted(winner, before)
    assert list(found) == ["precision", NAME]
    assert found[NAME] == before.changed({"precision": "bf16"})
