"""Scripts whose epoch does not end: by their own sampler's doing, or because a burst's never does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.measuring.records import Outcome
from autotune.recorder.ending import may_be_of_length
from autotune.scripts import ScriptIsolation
from tests.example_scripts import START_SECONDS, alone, played, script


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts write into the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_a_loader_without_an_end_trains_in_turn() -> None:
    """Both sides train the same batches, for as long as they are told to."""
    with ScriptIsolation(script("endless_loader")) as isolation:
        isolation.start(START_SECONDS)
        bursts = played(isolation, {"num_workers": 1})
    assert [burst.outcome for burst in bursts] == [Outcome.OK, Outcome.OK], bursts


@pytest.mark.slow
def test_epochs_of_so_many_steps_are_those_of_bursts() -> None:
    """Known from the first burst on that has met two: workers start as often as in training."""
    notes: list[str] = []
    with ScriptIsolation(script("leaving_off", "20"), notes.append) as isolation:
        isolation.start(START_SECONDS)
        before, after = alone(isolation), alone(isolation)
    assert before.measurement is not None
    assert after.measurement is not None
    assert (before.measurement.epoch_samples, after.measurement.epoch_samples) == (3200, 640)
    assert sum("begins its loader again after every 20 batches" in note for note in notes) == 1


@pytest.mark.parametrize("sized", ["schedule", "array", "another iterator"])
@pytest.mark.slow
def test_what_is_sized_by_an_epoch_lets_the_script_begin_again(sized: str) -> None:
    """It fails where its epoch should have ended; that is as good an end as any."""
    with ScriptIsolation(script("sized_by_an_epoch", sized, "100")) as isolation:
        isolation.start(START_SECONDS)
        burst = alone(isolation)
    assert burst.outcome is Outcome.OK, burst.reason
    assert burst.measurement is not None
    assert sum(block.samples for block in burst.measurement.blocks) > 0


@pytest.mark.slow
def test_a_script_that_ends_so_before_one_block_is_told_of_it() -> None:
    """Of three batches nothing can be measured; what it failed by is the reason."""
    with ScriptIsolation(script("sized_by_an_epoch", "schedule", "3")) as isolation:
        isolation.start(START_SECONDS)
        burst = alone(isolation)
    assert burst.outcome is Outcome.CRASHED
    assert "the script failed before one block was trained" in (burst.reason or "")
    assert "ValueError: Tried to step" in (burst.reason or "")


def out_of_a_generator() -> RuntimeError:
    """What Python makes of an iterator that ends within a generator."""

    def batches() -> Iterator[object]:
        yield next(iter(()))

    with pytest.raises(RuntimeError) as raised:
        next(batches())
    return raised.value


@pytest.mark.parametrize(
    ("error", "may_be"),
    [
        (ValueError("Tried to step 31 times. The total number of steps is 30"), True),
        (IndexError("index 30 is out of bounds for axis 0 with size 30"), True),
        (StopIteration(), True),
        (out_of_a_generator(), True),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."), False),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (FileNotFoundError("no such file"), False),
        (MemoryError(), False),
        (NotImplementedError("not in half precision"), False),
        (ValueError("loss is nan, stopping training"), False),
        (AssertionError("the loss is not finite"), False),
    ],
    ids=repr,
)
def test_an_error_may_be_that_of_an_epoch_without_an_end(error: BaseException, may_be: bool) -> None:
    """But not where the machine, another process or the numbers have failed."""
    assert may_be_of_length(error) is may_be
