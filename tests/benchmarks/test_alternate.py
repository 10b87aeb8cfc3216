"""The alternating loop: as many samples on each side, in turns, and who is not training is stopped with its workers."""

from __future__ import annotations

import random
import time

import psutil
import pytest

from autotune import TrainConfig
from autotune.errors import TargetError
from autotune.results.result import Side
from benchmarks import trainee
from benchmarks.alternate import Alternating, alternate, realise, samples_of_a_turn, sizes_of_turns
from benchmarks.stopwatch import Turns
from benchmarks.trainee import Request

TINY = "tests.workloads.tiny:build"


def request(config: TrainConfig, target: str = TINY) -> Request:
    """A side that warms up for a moment."""
    return Request(target, Side(config=config, measurement=None).model_dump_json(), "cpu", 0, 0.1)


@pytest.mark.parametrize(
    ("steps", "wanted", "samples"),
    [([32, 32], 100.0, 96), ([32, 48], 100.0, 96), ([32, 48], 10.0, 48), ([500, 512], 900.0, 1024), ([32], 1.0, 32)],
)
def test_a_turn_is_whole_steps_of_all_sides(steps: list[int], wanted: float, samples: int) -> None:
    """Or of the longest, where what they have in common is far more than is wanted."""
    assert samples_of_a_turn(steps, wanted) == samples


def test_a_side_of_huge_steps_does_not_make_all_turns_long() -> None:
    """It takes a step at a time; the others go on in turns of their own."""
    assert sizes_of_turns({"ours": 32, "theirs": 64, "finder": 4096}, 100.0) == {
        "ours": 128,
        "theirs": 128,
        "finder": 4096,
    }
    assert sizes_of_turns({"one": 4096, "other": 2048}, 100.0) == {"one": 4096, "other": 2048}


@pytest.mark.slow
def test_sides_train_as_much_and_stand_still_between_turns() -> None:
    """A process with a worker: between turns both are stopped, in a turn they run, and in the end none is left."""
    with Alternating(request(TrainConfig(batch_size=32, num_workers=1, persistent_workers=True))) as side:
        side.warm_up()
        (process,) = psutil.Process().children()[-1:]
        tree = [process, *process.children(recursive=True)]
        assert len(tree) == 2
        time.sleep(0.1)
        assert {one.status() for one in tree} == {psutil.STATUS_STOPPED}
        turns = [side.take_turn(256) for _ in range(3)]
        time.sleep(0.1)
        assert {one.status() for one in tree} == {psutil.STATUS_STOPPED}
        assert sum(turn.samples for turn in turns) == 768
        assert side.end().turns == tuple((turn.samples, turn.seconds) for turn in turns)
    assert not any(one.is_running() for one in tree)


@pytest.mark.slow
def test_one_round_has_a_run_of_each_side() -> None:
    """Over the same samples, to an optimizer step."""
    configs = {"before": TrainConfig(batch_size=32), "after": TrainConfig(batch_size=16, accumulation_steps=2)}
    runs = alternate({name: request(config) for name, config in configs.items()}, 0.3, random.Random(0), 0.1)
    before, after = runs["before"], runs["after"]
    assert len(before.turns) == len(after.turns) >= 2
    assert abs(sum(n for n, _ in before.turns) - sum(n for n, _ in after.turns)) <= 32
    assert before.samples_per_second > 0
    assert before.last_loss > 0
    assert 0 <= (before.foreign_cpu_fraction or 0) <= 1


@pytest.mark.slow
def test_what_goes_wrong_in_a_side_is_raised() -> None:
    """With its own sentence."""
    with pytest.raises(TargetError, match="expected a function 'nothing'"):
        realise("tests.workloads.tiny:nothing", {"a": Side(config=TrainConfig(), measurement=None)}, "cpu", 0.2, 2)


def test_a_training_that_ends_by_itself_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A framework may stop when it likes: half a round is no figure."""
    monkeypatch.setattr(Turns, "on_step", lambda *_: False)
    monkeypatch.setattr(trainee.Loop, "train", lambda _, on_step: on_step(32))
    with pytest.raises(RuntimeError, match="ended by itself"):
        trainee.train(None, request(TrainConfig(batch_size=32)))  # type: ignore[arg-type]
