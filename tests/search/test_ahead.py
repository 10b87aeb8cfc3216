"""What compiles does so beside others where processors are to spare, and nowhere else."""

from __future__ import annotations

import pytest

from autotune.bursts.protocol import BurstPlan
from autotune.knobs.config import TrainConfig
from autotune.knobs.space import build_space
from autotune.measuring.records import Burst, Point
from autotune.search.driver import Search
from autotune.search.stages import SUGGESTED, Proposal
from tests.search.surface import SurfaceRunner, example_rate, make_facts, make_hardware, make_search

COMPILING_SECONDS = 30.0


def rate(config: TrainConfig) -> float:
    """Compiling brings more than anything else."""
    return example_rate(config) * (2.0 if config.compile_mode is not None else 1.0)


def searched(cpus: int, budget_seconds: float = 300.0, **options: object) -> tuple[Search, SurfaceRunner, list[Point]]:
    """A search that is over, its runner, and what was asked to compile beside others; two threads compute."""
    space = build_space(
        make_hardware(), make_facts(baseline=TrainConfig(batch_size=64, num_threads=2)), device="cpu",
        effective_batch=64, only=["precision", "compile_mode", "allocator", "memory_format", "num_workers"],
    )  # fmt: skip
    search, runner = make_search(
        rate, budget_seconds=budget_seconds, space=space, cpus=cpus, compile_cost=COMPILING_SECONDS, **options
    )  # type: ignore[arg-type]
    began: list[Point] = []
    prepare = runner.prepare

    def remembered(candidate: Point, plan: object) -> None:
        began.append(candidate)
        prepare(candidate, plan)  # type: ignore[arg-type]

    runner.prepare = remembered  # type: ignore[assignment]
    search.run()
    return search, runner, began


def compiles(point: Point) -> bool:
    """Whether a point is compiled."""
    return point.config.compile_mode is not None


def test_others_play_while_a_candidate_compiles() -> None:
    """It is challenged with when it is ready, and costs the search only its duet."""
    search, _, began = searched(cpus=16)
    (first, *_) = began
    trials = [trial for trial in search.log.trials if trial.round is None]
    run = next(index for index, trial in enumerate(trials) if trial.burst.point == first)
    assert trials[run].burst.seconds < COMPILING_SECONDS
    meanwhile = [trial for trial in trials[:run] if not compiles(trial.burst.point)]
    assert len(meanwhile) >= 5  # all that there is to try here
    assert compiles(search.confirmation.answer())


def test_more_is_tried_in_the_same_budget() -> None:
    """The minute that a compiler takes is not lost."""
    tried = {cpus: len(searched(cpus, budget_seconds=150.0)[1].ran) for cpus in (2, 16)}
    assert tried[16] > tried[2]


@pytest.mark.parametrize("cpus", [2, 5])
def test_without_processors_to_spare_nothing_does(cpus: int) -> None:
    """Training's two threads would share theirs with the compiler."""
    assert searched(cpus)[2] == []


def test_where_memory_holds_no_third_process_nothing_does() -> None:
    """The incumbent, a candidate, and what compiles would be alive at once."""
    limits = {"memory_limit_bytes": 10**9, "bytes_of": lambda _: 4e8}
    assert searched(cpus=16, **limits)[2] == []


def test_what_compiles_last_is_waited_for() -> None:
    """When nothing else is left to try, the search does not end without it."""
    space = build_space(
        make_hardware(), make_facts(baseline=TrainConfig(batch_size=64, num_threads=2)), device="cpu",
        effective_batch=64, only=["compile_mode"],
    )  # fmt: skip
    search, _ = make_search(rate, budget_seconds=300, space=space, cpus=16, compile_cost=COMPILING_SECONDS)
    search.run()
    assert any(compiles(trial.burst.point) and trial.burst.ok for trial in search.log.trials)


def test_no_ceiling_is_measured_while_a_compiler_runs_beside_it() -> None:
    """A loader and a step that are timed alone share the processors with it; afterwards they are asked for."""
    baseline = TrainConfig(batch_size=64, num_threads=2)
    space = build_space(
        make_hardware(), make_facts(baseline=baseline), device="cpu", effective_batch=64,
        only=["compile_mode", "num_workers"],
    )  # fmt: skip
    compiled = Proposal(Point(config=baseline.replace(compile_mode="default")), SUGGESTED, "first of all")
    search, runner = make_search(
        rate, budget_seconds=300, space=space, cpus=16, compile_cost=COMPILING_SECONDS, first=[compiled], wait=0.4,
        loader_rate=lambda config: 1200 * config.num_workers,
    )  # fmt: skip
    run, beside = runner.run, list[bool]()

    def noted(point: Point, plan: BurstPlan, deadline_seconds: float) -> Burst:
        if plan.part == "loader":
            beside.append(bool(runner.prepared))
        return run(point, plan, deadline_seconds)

    runner.run = noted  # type: ignore[method-assign]
    search.run()
    assert beside
    assert not any(beside)
