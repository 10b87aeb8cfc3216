"""Pins that hold or limit a knob, --only: kept everywhere, and refused when they contradict each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import ConfigError
from autotune.hardware import Hardware
from autotune.knobs.config import KNOB_NAMES, Scalar, TrainConfig
from autotune.knobs.constraints import at_most, limit_of
from tests.hardware.readings import GIB, MIB
from tests.spaces import all_loaders, cpu_machine, docker_machine, gpu_machine, make_facts, space_of


@pytest.mark.parametrize(
    "pinned",
    [
        {"precision": "fp32"},
        {"num_workers": 2, "prefetch_factor": 8},
        {"batch_size": 16},
        {"accumulation_steps": 4},
        {"pin_memory": False, "compile_mode": None},
        {"prefetch_factor": 4},
        {"persistent_workers": True},
    ],
)
def test_pins_hold_in_every_candidate(pinned: Mapping[str, Scalar]) -> None:
    """In whatever the search asks for, in the suggestions, and in the start, where it has an effect."""
    space = space_of(gpu_machine(), pinned=pinned)
    assert not set(pinned) & space.choices.keys()
    assert not set(pinned) & space.skipped.keys()
    wanted: dict[str, Scalar] = {knob: choices.values[-1] for knob, choices in space.choices.items()}
    for config in (space.config(wanted), *space.suggested()):
        assert config == config.replace(**pinned)
        assert config.effective_batch == 32


def test_pinned_batch_fixes_the_accumulation() -> None:
    """And the other way round."""
    by_batch = space_of(gpu_machine(), pinned={"batch_size": 8})
    assert (by_batch.start.batch_size, by_batch.start.accumulation_steps) == (8, 4)
    by_steps = space_of(gpu_machine(), pinned={"accumulation_steps": 4})
    assert (by_steps.start.batch_size, by_steps.start.accumulation_steps) == (8, 4)
    assert "batch_size" not in by_steps.choices


@pytest.mark.parametrize(
    ("pinned", "message"),
    [
        ({"batch_size": 12}, "12 does not divide the effective batch of 32.*--effective-batch free"),
        ({"accumulation_steps": 5}, "accumulation_steps=5 is pinned.*--effective-batch free"),
        ({"batch_size": 8, "accumulation_steps": 2}, "pin only one, or pass --effective-batch 16"),
        ({"bach_size": 8}, "'bach_size' is not a knob; the knobs are batch_size"),
        ({"precision": "int8"}, "precision='int8' cannot be used"),
        ({"prefetch_factor": 0}, "prefetch_factor=0 cannot be used"),
        ({"batch_size": 8, "accumulation_steps": at_most(2)}, "allows accumulation_steps of 2 at.*raise the limit"),
        ({"accumulation_steps": 2, "batch_size": at_most(8)}, "allows batch_size of 8 at most, .* batch_size=16"),
        ({"batch_size": at_most(8), "accumulation_steps": at_most(2)}, "allows batch_size of 8 at most"),
    ],
)
def test_pins_that_contradict_are_refused(pinned: Mapping[str, Scalar], message: str) -> None:
    """With the remedy in the message."""
    with pytest.raises(ConfigError, match=message):
        space_of(gpu_machine(), pinned=pinned)


def test_free_effective_batch_takes_any_pin() -> None:
    """Both may be pinned then."""
    start = space_of(gpu_machine(), effective_batch=None, pinned={"batch_size": 7, "accumulation_steps": 3}).start
    assert (start.batch_size, start.accumulation_steps) == (7, 3)


def test_only_restricts_what_is_searched() -> None:
    """The other knobs hold the baseline's values, and say why."""
    space = space_of(gpu_machine(), make_facts(num_workers=2), only=["precision", "optimizer_impl"])
    assert set(space.choices) == {"precision", "optimizer_impl"}
    assert "--only" in space.skipped["num_workers"]
    assert space.config({"precision": "bf16"}) == space.baseline.replace(precision="bf16")


def test_accumulation_alone_means_the_batch() -> None:
    """At a held effective batch the two are one choice."""
    assert set(space_of(gpu_machine(), only=["accumulation_steps"]).choices) == {"batch_size"}


def test_only_with_a_knob_that_does_not_apply() -> None:
    """It is skipped for its own reason."""
    space = space_of(cpu_machine(), only=["pin_memory"])
    assert space.choices == {}
    assert "cpu" in space.skipped["pin_memory"]


def test_unknown_knob_to_search_is_refused() -> None:
    """A slip of the finger must not search everything else, or nothing."""
    with pytest.raises(ConfigError, match="'precison' is not a knob"):
        space_of(gpu_machine(), only=["precison"])


@pytest.mark.parametrize("most", [0, 1, 3])
def test_worker_cap_is_honoured_everywhere(most: int) -> None:
    """In the start, though the baseline has more, in the choices, the suggestions and the check."""
    space = space_of(
        gpu_machine(), make_facts(num_workers=8, sample_seconds=0.01), pinned={"num_workers": at_most(most)}
    )
    assert space.baseline.num_workers == 8
    assert space.start.num_workers <= most
    assert all(config.num_workers <= most for config in (*all_loaders(space), *space.suggested()))
    assert space.violation(TrainConfig(num_workers=most + 1)) == (
        f"num_workers={most + 1} is more than the {most} that --pin allows"
    )


def test_any_number_may_be_limited() -> None:
    """The batch within its effective batch, and what workers prefetch."""
    pinned = {"batch_size": at_most(16), "prefetch_factor": at_most(4)}
    space = space_of(gpu_machine(), make_facts(batch_size=64), effective_batch=64, pinned=pinned)
    assert max(space.choices["batch_size"].values) == 16
    assert max(space.choices["prefetch_factor"].values) == 4
    assert (space.start.batch_size, space.start.effective_batch) == (16, 64)
    assert all(config.batch_size <= 16 for config in space.suggested())
    why = space_of(gpu_machine(), pinned={"prefetch_factor": at_most(1)}).skipped["prefetch_factor"]
    assert why == "what could be chosen is left out: --pin allows 1 at most"


def test_a_limit_of_accumulation_raises_the_batch() -> None:
    """The effective batch stays: what was accumulated is trained at once."""
    facts = make_facts(batch_size=16, accumulation_steps=4)
    space = space_of(gpu_machine(), facts, pinned={"accumulation_steps": at_most(1)})
    assert (space.start.batch_size, space.start.accumulation_steps) == (64, 1)
    assert space.suggested()


def test_pinned_workers_prefetch_within_a_limit() -> None:
    """Though torch's own number is above it."""
    pinned = {"num_workers": 4, "prefetch_factor": at_most(1)}
    assert space_of(gpu_machine(), pinned=pinned).start.prefetch_factor == 1


def test_worker_cap_above_the_budget_changes_nothing() -> None:
    """Six CPUs carry six workers, whatever is allowed."""
    assert max(space_of(gpu_machine(), pinned={"num_workers": at_most(64)}).choices["num_workers"].values) == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"effective_batch": 0}, "the effective batch 0"),
        ({"explored": {"max_len": ()}}, "--explore max_len=a,b"),
        ({"explored": {"checkpointing": (True, False)}}, "--explore checkpointing names a knob"),
        ({"device": "mps"}, "expected a device of this machine, got 'mps'"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    """Each names what came, and what to do."""
    with pytest.raises(ConfigError, match=message):
        space_of(gpu_machine(), **options)


def test_explored_arguments_are_handed_on() -> None:
    """They are the person's own, so nothing is added and nothing left out."""
    assert space_of(gpu_machine(), explored={"max_len": (256, 384)}).parameters == {"max_len": (256, 384)}


PINS = st.fixed_dictionaries(
    {},
    optional={
        "batch_size": st.sampled_from([1, 4, 12, at_most(4)]),
        "accumulation_steps": st.sampled_from([1, 2, 4, at_most(1), at_most(2)]),
        "num_workers": st.sampled_from([0, 2, 8, at_most(0), at_most(1), at_most(3)]),
        "prefetch_factor": st.sampled_from([1, 4]),
        "precision": st.just("fp32"),
    },
)


@settings(max_examples=200, deadline=None)
@given(
    where=st.sampled_from([cpu_machine, gpu_machine, docker_machine]),
    batch=st.sampled_from([1, 5, 12, 32, 256]),
    workers=st.sampled_from([0, 2, 12]),
    batch_bytes=st.sampled_from([0, 4 * MIB, 100 * MIB, 5 * GIB]),
    effective=st.sampled_from([None, 1, 48, 256]),
    pinned=PINS,
    data=st.data(),
)
def test_no_combination_escapes_the_caps(
    where: Callable[[], Hardware],
    batch: int,
    workers: int,
    batch_bytes: int,
    effective: int | None,
    pinned: dict[str, Scalar],
    data: st.DataObject,
) -> None:
    """Whatever is asked for: either it is refused at once, or every candidate keeps all of it."""
    facts = make_facts(batch_size=batch, num_workers=workers, batch_bytes=batch_bytes)
    try:
        space = space_of(where(), facts, effective_batch=effective, pinned=pinned)
    except ConfigError:
        return
    limits = {knob: most for knob, pin in pinned.items() if (most := limit_of(pin)) is not None}
    held = {knob: pin for knob, pin in pinned.items() if limit_of(pin) is None}
    drawn = {knob: data.draw(st.sampled_from(choices.values), knob) for knob, choices in space.choices.items()}
    for config in (space.start, space.config(drawn), *space.suggested()):
        assert effective is None or config.effective_batch == effective
        assert config == config.replace(**held)
    for config in (space.start, *space.suggested()):
        assert all(getattr(config, knob) <= most for knob, most in limits.items())
    assert all(space.violation(config) is None for config in space.suggested())
    assert space.baseline not in space.suggested()
    assert sorted([*space.choices, *space.skipped, *held]) == sorted(KNOB_NAMES)
