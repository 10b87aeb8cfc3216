"""The memory model: a line for each combination of knobs, censored where memory ran out, with a margin."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.knobs.config import TrainConfig
from autotune.measuring.memory_model import MAX_MARGIN, MIN_MARGIN, MemoryModel, fit
from autotune.measuring.records import Block, Burst, Measurement, Outcome, Point

MIB = 2**20
LIMIT = 1000 * MIB


def burst(batch_size: int, mib: float | None, **knobs: object) -> Burst:
    """A burst that took so much memory; None: it ran out."""
    point = Point(config=TrainConfig(batch_size=batch_size, **knobs))  # type: ignore[arg-type]
    if mib is None:
        return Burst(point=point, outcome=Outcome.OOM, seconds=1.0)
    measurement = Measurement(
        blocks=(Block(samples=1, seconds=1.0, data_wait_seconds=0.0),), start_seconds=0.0,
        build_seconds=0.0, warmup_seconds=0.0, device_memory_bytes=round(mib * MIB),
    )  # fmt: skip
    return Burst(point=point, outcome=Outcome.OK, measurement=measurement, seconds=1.0)


def model(*bursts: Burst, device: str = "cuda") -> MemoryModel:
    """A model under a target of 1,000 MiB."""
    return MemoryModel(bursts, LIMIT, device)  # type: ignore[arg-type]


def point(**knobs: object) -> Point:
    """A point with some knobs."""
    return Point(config=TrainConfig(**knobs))  # type: ignore[arg-type]


def test_two_batches_predict_the_largest() -> None:
    """100 MiB and 10 more a sample: of the 90 samples that fit into 1,000 MiB, 2 % are kept free."""
    assert model(burst(8, 180), burst(16, 260)).largest_batch(point()) == 88


def test_one_batch_predicts_nothing() -> None:
    """A slope takes two; the same batch twice does not help."""
    assert model(burst(8, 180)).largest_batch(point()) is None
    assert model(burst(8, 180), burst(8, 182)).largest_batch(point()) is None


def test_each_precision_has_its_own_line() -> None:
    """Half precision takes less, and says nothing about full precision."""
    known = model(burst(8, 180), burst(16, 260), burst(8, 140, precision="bf16"))
    assert known.line(point(precision="bf16")) is None
    assert known.line(point()) is not None


@pytest.mark.parametrize(("device", "known"), [("cuda", True), ("cpu", False)])
def test_workers_count_where_they_live(device: str, known: bool) -> None:
    """On the CPU they are part of the tree whose memory is measured; a GPU does not see them."""
    fitted = model(burst(8, 180), burst(16, 260), device=device)
    assert (fitted.line(point(num_workers=2)) is not None) == known


def test_running_out_turns_the_line_up() -> None:
    """What the line took for possible was not: the next prediction lies below it."""
    before = model(burst(8, 180), burst(16, 260)).largest_batch(point())
    after = model(burst(8, 180), burst(16, 260), burst(64, None)).largest_batch(point())
    assert before is not None
    assert after is not None
    assert after < 64 < before


def test_between_what_fitted_and_what_ran_out_is_tried_next() -> None:
    """By how much memory ran out is not known, and another burst that runs out teaches as little."""
    known = [burst(8, 180), burst(16, 260), burst(64, None)]
    assert model(*known).largest_batch(point()) == 32
    assert model(*known, burst(32, 440)).largest_batch(point()) == 45


def test_what_was_learnt_between_them_is_trusted_again() -> None:
    """Once the line expects what ran out to run out, it alone decides."""
    line = model(burst(8, 180), burst(16, 260), burst(64, None), burst(32, 640)).line(point())
    assert line is not None
    assert line.most is None


def test_larger_batches_weigh_more() -> None:
    """Where memory grows faster than at first, it is the last of it that decides."""
    line = fit({8: 180.0, 16: 200.0, 32: 400.0}, None, LIMIT)
    assert line.bytes_at(32) == pytest.approx(400.0, rel=0.02)
    assert abs(line.bytes_at(8) - 180.0) > abs(line.bytes_at(32) - 400.0)


def test_running_out_where_it_was_expected_changes_nothing() -> None:
    """A censored point says at least, not how much."""
    line = model(burst(8, 180), burst(16, 260), burst(512, None)).line(point())
    assert line == model(burst(8, 180), burst(16, 260)).line(point())


def test_one_success_and_one_out_of_memory_predict_nothing() -> None:
    """A line between the two would promise nearly the batch that ran out."""
    assert model(burst(8, 180), burst(64, None)).largest_batch(point()) is None


def test_the_most_similar_combination_speaks_for_one_that_is_not_known() -> None:
    """A batch that is far too large in full precision is not tried in half, before half was seen at all."""
    known = model(burst(8, 180), burst(16, 260))
    assert known.shortage(point(precision="bf16", batch_size=1000)) == pytest.approx(10_100 * MIB)
    assert known.shortage(point(precision="bf16", batch_size=64)) is None


def test_residuals_widen_the_margin() -> None:
    """Points that lie off the line make it less trusted, up to a limit."""
    straight = fit({8: 180.0, 16: 260.0, 32: 420.0}, None, LIMIT)
    bent = fit({8: 180.0, 16: 290.0, 32: 420.0}, None, LIMIT)
    assert straight.margin == MIN_MARGIN < bent.margin <= MAX_MARGIN


def test_memory_that_does_not_grow_bounds_no_batch() -> None:
    """A tiny model's noise may even fall."""
    assert model(burst(8, 181), burst(16, 180)).largest_batch(point()) is None


@given(
    base=st.floats(1, 500), slope=st.floats(0.01, 50), first=st.integers(1, 64), step=st.integers(1, 64),
)  # fmt: skip
def test_what_is_predicted_fits_on_a_true_line(base: float, slope: float, first: int, step: int) -> None:
    """On any straight line the predicted batch fits, and is within the margin of the largest."""
    line = fit({b: (base + slope * b) * MIB for b in (first, first + step)}, None, LIMIT)
    largest = line.largest_batch(LIMIT)
    assert largest is not None
    true = (1000 - base) / slope
    assert largest <= true + 1e-6
    assert largest >= (1 - line.margin) * true - 1 - 1e-6 * true


@pytest.mark.parametrize(("device", "largest"), [("cpu", 32), ("cuda", 88)])
def test_on_a_cpu_a_kill_by_the_kernel_is_memory_that_ran_out(device: str, largest: int) -> None:
    """The line that expected less there is mistrusted beyond the middle; a GPU's knows nothing of the host."""
    killed = Burst(point=point(batch_size=64), outcome=Outcome.HOST_OOM, seconds=1.0)
    assert model(burst(8, 180), burst(16, 260), killed, device=device).largest_batch(point()) == largest


@pytest.mark.parametrize(
    ("bursts", "wanted", "near"),
    [
        ([], {"batch_size": 999}, False),
        ([burst(16, 260)], {"batch_size": 32}, False),
        ([burst(16, 260)], {"batch_size": 64}, True),
        ([burst(16, 900)], {"batch_size": 16, "num_workers": 2}, False),
        ([burst(16, 260)], {"batch_size": 64, "precision": "bf16"}, True),
        ([burst(8, 180), burst(16, 260)], {"batch_size": 64}, False),
        ([burst(8, 180), burst(16, 260)], {"batch_size": 80}, True),
        ([burst(8, 180), burst(16, 260), burst(80, 900, precision="bf16")], {"batch_size": 80}, True),
        ([burst(16, 260), burst(64, 500, checkpointing="blocks")], {"batch_size": 64}, True),
    ],
    ids=[
        "of what nothing is known", "far below in proportion", "near in proportion", "as large a batch has run",
        "by what is most similar", "far below by its line", "near by its line", "as large, where less is taken",
        "as large, where memory is bought",
    ],
)  # fmt: skip
def test_what_is_near_the_target(bursts: list[Burst], wanted: dict[str, object], near: bool) -> None:
    """A larger batch than any that ran, which may take of the last fifth of the memory that samples can have."""
    assert model(*bursts, device="cpu").is_near_limit(point(**wanted)) is near


def test_what_ran_beside_others_is_known_to_fit() -> None:
    """The process shows the memory of all its players."""
    beside = burst(64, 0)
    assert beside.measurement is not None
    untold = beside.measurement.model_copy(update={"device_memory_bytes": None})
    ran = beside.model_copy(update={"measurement": untold})
    assert not model(burst(16, 260), ran, device="cpu").is_near_limit(point(batch_size=64))
