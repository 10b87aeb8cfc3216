"""A baseline that runs out of memory is changed as little as it takes, and tuned from there."""

from __future__ import annotations

import dataclasses
from typing import Any

import optuna
import pytest

from autotune.knobs import Scalar
from autotune.knobs.config import TrainConfig
from autotune.measuring.numerics import NumericsGuard
from autotune.measuring.records import Burst, Outcome, Point
from autotune.search.driver import Search
from autotune.search.fitting import fit, rungs
from autotune.search.proposal import BASELINE, FIT, GAIN
from autotune.sessions.tuning_result import judge
from tests.search.surface import SurfaceRunner, example_rate, make_facts, make_search, make_space
from tests.spaces import space_where_lengths_vary

FITS = 20
"""The largest micro-batch that memory holds, of a baseline of 64."""


def fitted(**options: Any) -> tuple[Search, SurfaceRunner, list[str]]:
    """A search that is over, its runner, and what was told."""
    notes: list[str] = []
    search, runner = make_search(
        example_rate, **{"budget_seconds": 60.0, "oom_above": FITS, "note": notes.append, **options}
    )
    search.run()
    return search, runner, notes


def test_smaller_micro_batches_come_first_and_the_step_stays() -> None:
    """Half, then a quarter; what was too large is told, and what fits takes the baseline's place."""
    search, _, notes = fitted()
    config = search.baseline.config
    assert (config.batch_size, config.accumulation_steps) == (16, 4)
    tried = [trial.burst.point.config.batch_size for trial in search.log.trials if trial.stage == FIT]
    assert tried == [32, 16]
    (told,) = notes
    assert "with batch_size=16 accumulation_steps=4 it trains" in told
    assert "batch_size=32 accumulation_steps=2: oom" in told


@pytest.mark.parametrize(("coupling", "told"), [(0.05, True), (0.0, False)])
def test_a_loss_that_is_no_average_is_told(coupling: float, told: bool) -> None:
    """Then smaller micro-batches train something else, though the effective batch stays."""
    _, _, (note,) = fitted(facts=make_facts(coupling=coupling))
    assert ("the loss of a batch is not an average over its samples (it differs by 5%" in note) == told


def test_where_the_micro_batch_stays_coupling_is_not_told() -> None:
    """Fewer bits were enough: the same samples share a loss."""
    _, _, (note,) = fitted(
        facts=make_facts(coupling=0.05), space=make_space(pinned={"batch_size": 64}), oom_above=10**9,
        fits=lambda config: config.precision == "bf16",
    )  # fmt: skip
    assert "precision=bf16 it trains" in note
    assert "not an average" not in note


def test_it_is_tuned_from_there() -> None:
    """The answer is compared with the config that fits, and holds its effective batch."""
    search, _, _ = fitted(budget_seconds=120.0)
    point, speedup, _ = judge(search, "budget")
    assert speedup is not None
    assert speedup.confirmed
    assert point.config.effective_batch == 64
    assert point.config.batch_size <= FITS
    assert point.config.precision == "bf16"


def test_where_nothing_is_enough_that_is_told() -> None:
    """Each change and how it ended."""
    search, _, notes = fitted(oom_above=0)
    assert search.baseline.config.batch_size == 64
    assert search.log.incumbent() is None
    assert any("no change was enough" in note and "precision=bf16" in note for note in notes)


@pytest.mark.parametrize(
    ("seconds", "pinned", "ending"),
    [
        (100.0, {}, "and the time ended before a change was enough"),
        (0.0, {"batch_size": 64, "precision": "fp32"}, "and no change that needs less memory is allowed"),
    ],
    ids=["no time", "nothing to change"],
)
def test_where_nothing_was_tried_the_note_says_why(seconds: float, pinned: dict[str, Scalar], ending: str) -> None:
    """It does not say that changes were not enough."""
    space = make_space(pinned=pinned, only=("batch_size", "precision"))
    search, surface = make_search(example_rate, space=space)
    surface.clock.now = seconds
    failed = Burst(point=search.baseline, outcome=Outcome.OOM, seconds=1.0)
    fitted, summary = fit(search.baseline, space, search._bursts, failed, lambda _: True)
    assert fitted is None
    assert summary == f"what you train with today runs out of memory, {ending}"


def test_a_baseline_that_fits_is_left_alone() -> None:
    """Nothing is tried, and nothing is told."""
    search, _, notes = fitted(oom_above=10**9)
    assert search.baseline.config == TrainConfig(batch_size=64)
    assert notes == []


def test_a_resumed_search_fits_without_running_anything_again() -> None:
    """It knows from its trials how the baseline and the changes ended."""
    storage = optuna.storages.InMemoryStorage()
    first, _, _ = fitted(storage=storage)
    second, runner, _ = fitted(storage=storage)
    assert second.baseline == first.baseline
    assert not {first.baseline, Point(config=TrainConfig(batch_size=64))} & {*runner.ran[:1]}
    tried = {trial.burst.point for trial in first.log.trials if trial.stage in {BASELINE, FIT}}
    assert not (tried - {first.baseline}) & {*runner.ran}


def changes(outcome: Outcome, baseline: TrainConfig, **options: Any) -> list[dict[str, Any]]:
    """What the steps change, each over the baseline."""
    space = make_space(**options)
    point = Point(config=baseline)
    return [step.new_values(point) for step, _ in rungs(point, space, outcome)]


def test_what_waits_in_the_loader_comes_first_where_the_host_is_full() -> None:
    """Batches of the queue, then workers; the micro-batch after them."""
    loading = TrainConfig(batch_size=64, num_workers=4, prefetch_factor=4)
    found = changes(Outcome.SHM_EXHAUSTED, loading)
    assert found[0] == {"prefetch_factor": 1}
    assert [step.get("num_workers", 4) for step in found[1:4]] == [2, 1, 0]
    assert "batch_size" in found[4]
    assert changes(Outcome.OOM, loading)[0]["num_workers"] == 0  # on a CPU, where all memory is one


def test_a_pin_that_the_baseline_does_not_meet_leaves_the_other_changes() -> None:
    """What a person wants of the answer says nothing against a smaller micro-batch now."""
    found = changes(Outcome.OOM, TrainConfig(batch_size=64), pinned={"num_workers": 1})
    assert found[0] == {"batch_size": 32, "accumulation_steps": 2}


def test_pins_hold() -> None:
    """A pinned micro-batch stays; fewer bits may still be enough."""
    found = changes(Outcome.OOM, TrainConfig(batch_size=64), pinned={"batch_size": 64})
    assert found[0] == {"precision": "bf16"}
    assert all("batch_size" not in step for step in found)


def test_what_was_reached_stays_where_the_next_halving_is_not_allowed() -> None:
    """Later changes keep the smallest micro-batch that a limit leaves."""
    found = changes(Outcome.OOM, TrainConfig(batch_size=64), pinned={"accumulation_steps": "<=4"})
    assert [step["batch_size"] for step in found] == [32, *[16] * (len(found) - 1)]
    assert found[2] == {"batch_size": 16, "accumulation_steps": 4, "precision": "bf16"}


@pytest.mark.parametrize("batch", [1, 7])
def test_batches_that_can_hardly_be_divided(batch: int) -> None:
    """Of seven samples there is only one smaller micro-batch, of one sample none."""
    steps = changes(Outcome.OOM, TrainConfig(batch_size=batch), effective_batch=batch)
    sizes = {step.get("batch_size") for step in steps}
    assert sizes - {None} == ({1} if batch == 7 else set())


BLOCKS: dict[str, Any] = {
    "effective_batch": 1,
    "facts": {"recomputable_blocks": 4, "baseline": TrainConfig(batch_size=1)},
}


def test_checkpointing_comes_after_precision() -> None:
    """Where blocks repeat, though it is not searched while memory is enough; a pin holds."""
    found = changes(Outcome.OOM, TrainConfig(batch_size=1), **BLOCKS)
    assert found[:2] == [{"precision": "bf16"}, {"precision": "bf16", "checkpointing": "blocks"}]
    pinned = changes(Outcome.OOM, TrainConfig(batch_size=1), **BLOCKS, pinned={"checkpointing": "none"})
    assert all("checkpointing" not in step for step in pinned)


def test_once_it_was_needed_checkpointing_is_searched() -> None:
    """The baseline has it, and candidates may have it from there on, those of the sampler too."""
    space = make_space(**BLOCKS, only=["precision", "checkpointing", "allocator", "memory_format"])
    search, runner = make_search(
        example_rate, space=space, budget_seconds=120.0, fits=lambda config: config.checkpointing == "blocks"
    )
    search.run()
    assert search.baseline.config.checkpointing == "blocks"
    assert search.space.choices["checkpointing"].values == ("none", "blocks")
    sampled = [trial.burst for trial in search.log.trials if trial.stage == GAIN]
    assert sampled
    assert "blocks" in {burst.point.config.checkpointing for burst in sampled}
    assert TrainConfig(batch_size=1) in {point.config for point in runner.ran}


def test_what_cannot_be_changed_in_a_script_makes_nothing_fit() -> None:
    """It accumulates by itself: a smaller batch would be a smaller step."""
    space = dataclasses.replace(make_space(), held=frozenset({"batch_size", "accumulation_steps"}))
    found = [point.config for point, _ in rungs(Point(config=space.baseline), space, Outcome.OOM)]
    assert {config.batch_size for config in found} == {space.baseline.batch_size}
    assert "bf16" in {config.precision for config in found}


def test_half_precision_comes_with_a_kernel_of_attention_that_takes_any_length() -> None:
    """Where torch would leave attention to cuDNN, which prepares a kernel for each."""
    space = space_where_lengths_vary()
    found = {step.config.precision: step.config for step, _ in rungs(Point(config=space.baseline), space, Outcome.OOM)}
    assert found["bf16"].sdpa_backend == "efficient_attention"
    assert found["fp32"].sdpa_backend == "default"


def test_a_fit_that_cannot_be_checked_in_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise there would be nothing to train with."""
    space = make_space()
    guard = NumericsGuard(lambda *_: pytest.fail("there is no time"), Point(config=space.baseline))
    search, _ = make_search(example_rate, budget_seconds=60, oom_above=FITS, space=space, numerics=guard)
    monkeypatch.setattr(search._bursts.costs, "numerics_steps", lambda *_: 0)
    search.run()
    assert search.baseline.config.batch_size <= FITS
    assert search.baseline_trains
