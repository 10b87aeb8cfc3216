"""Other machines' results as first candidates: how they are brought here, and what is said of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.errors import ResultFileError
from autotune.hardware.model import Cpu
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Point
from autotune.results.files import write_document
from autotune.results.result import Result, Side
from autotune.results.summary import warm_start_text
from autotune.search.proposal import ALLOCATOR, BASELINE, WARM
from autotune.search.warm_start import candidates, read_results, records, rescaled
from autotune.sessions.options import Options
from autotune.sessions.tuning import Tuning
from autotune.sessions.tuning_result import judge
from tests.factories import GIB, make_gpu, make_hardware, make_measurement, make_result
from tests.search.surface import example_rate, make_search, make_space
from tests.search.surface import make_hardware as this_machine


def elsewhere(
    *, cpus: int = 2, memory_bytes: int | None = None, limit_bytes: int | None = None, **knobs: Any
) -> Result:
    """A result of a machine with so many CPUs, whose best config has these knobs."""
    result = make_result()
    cpu = Cpu(model="Other", physical_cores=cpus, logical_cores=cpus, budget=cpus, precisions=("fp32", "bf16"))
    best = Side(
        config=TrainConfig(**{"batch_size": 64, **knobs}),
        measurement=make_measurement(2000.0, device_memory_bytes=memory_bytes),
    )
    constraints = result.constraints.model_copy(update={"memory_limit_bytes": limit_bytes})
    return make_result(hardware=make_hardware(cpu=cpu), best=best, constraints=constraints)


def brought_here(result: Result, **space: Any) -> TrainConfig:
    """Its config on a machine of four CPUs."""
    (found,) = candidates(
        [("a.json", result)],
        make_space(**space),
        this_machine(),
        fingerprint="f",
        device="cpu",
        memory_limit_bytes=8 * GIB,
    )
    return found.point.config


def test_a_config_that_fits_is_taken_as_it_is() -> None:
    """Every knob that is offered here keeps its value."""
    config = brought_here(elsewhere(cpus=4, precision="bf16", memory_format="channels_last", allocator="tuned"))
    assert config == TrainConfig(batch_size=64, precision="bf16", memory_format="channels_last", allocator="tuned")


@pytest.mark.parametrize(("cpus", "there", "here"), [(2, 1, 2), (4, 2, 2), (16, 8, 2), (64, 4, 1)])
def test_workers_keep_their_share_of_the_cpus(cpus: int, there: int, here: int) -> None:
    """Half of the CPUs there are half of the CPUs here, and one is left at least."""
    assert brought_here(elsewhere(cpus=cpus, num_workers=there)).num_workers == here


def test_a_batch_that_took_more_memory_than_there_is_shrinks() -> None:
    """In proportion, to a size that the effective batch allows."""
    result = elsewhere(cpus=4, memory_bytes=16 * GIB, limit_bytes=20 * GIB)
    config = brought_here(result)
    assert (config.batch_size, config.effective_batch) == (32, 64)


def test_a_free_batch_grows_with_the_memory() -> None:
    """In proportion, on a GPU; one that is held does not grow, and one that fits does not shrink."""
    result = elsewhere(memory_bytes=1 * GIB, limit_bytes=2 * GIB)
    on_gpu = result.constraints.model_copy(update={"device": "cuda"})
    result = result.model_copy(update={"constraints": on_gpu})
    hardware = this_machine()
    assert rescaled(result, hardware, "cuda", 8 * GIB, batch_free=True).batch_size == 256
    assert rescaled(result, hardware, "cuda", 8 * GIB, batch_free=False).batch_size == 64
    assert rescaled(result, hardware, "cuda", 3 * GIB // 2, batch_free=True).batch_size == 64
    assert rescaled(result, hardware, "cpu", 8 * GIB, batch_free=True).batch_size == 64  # of another kind of memory


def test_an_argument_that_is_not_explored_here_is_told() -> None:
    """The config runs with build's own default, and the result says so."""
    result = elsewhere(cpus=4, precision="bf16")
    best = result.best.model_copy(update={"parameters": {"max_len": 128}})
    (found,) = candidates(
        [("a.json", result.model_copy(update={"best": best}))], make_space(), this_machine(), fingerprint="f",
        device="cpu", memory_limit_bytes=None,
    )  # fmt: skip
    assert found.point is not None
    assert found.point.parameters == {}
    assert "without max_len=128" in found.adapted


def test_what_this_machine_does_not_offer_is_left_out_and_told() -> None:
    """Pinned memory and fp16 of a GPU's result stay behind on a CPU; the other knobs come along."""
    result = make_result(
        hardware=make_hardware(make_gpu()),
        best=Side(config=TrainConfig(batch_size=64, pin_memory=True, precision="fp16", optimizer_impl="fused"),
                  measurement=None),
    )  # fmt: skip
    (found,) = candidates(
        [("gpu.json", result)], make_space(), this_machine(), fingerprint="f", device="cpu", memory_limit_bytes=None
    )
    assert found.point.config == TrainConfig(batch_size=64, optimizer_impl="fused")
    assert found.adapted == ("precision=fp32 for fp16", "pin_memory=false for true")


def test_pins_hold_against_another_machines_config() -> None:
    """What the person asked for wins."""
    assert brought_here(elsewhere(precision="bf16"), pinned={"precision": "fp32"}).precision == "fp32"


def test_candidates_run_right_after_the_baseline_and_can_win() -> None:
    """On a surface where they are the optimum, they are the second burst and the answer."""
    result = elsewhere(cpus=4, precision="bf16", memory_format="channels_last", allocator="tuned", num_workers=2)
    space = make_space()
    found = candidates(
        [("a.json", result)], space, this_machine(), fingerprint="f", device="cpu", memory_limit_bytes=None
    )
    search, _ = make_search(
        example_rate, space=space, budget_seconds=60, first=[candidate.proposal for candidate in found], noise=0.002
    )
    search.run()
    assert [trial.stage for trial in search.log.trials if trial.stage != ALLOCATOR][:2] == [BASELINE, WARM]
    warm = next(trial for trial in search.log.trials if trial.stage == WARM)
    assert warm.burst.point == found[0].point
    best, _, _ = judge(search, "budget")
    (record,) = records(found, search.log.trials, best, search.baseline)
    assert record.helped
    assert record.samples_per_second == warm.burst.rate
    assert not record.same_workload
    assert "(a.json, measured on another workload)" in warm_start_text(record)


def test_a_candidate_that_is_slower_did_not_help() -> None:
    """And the result says so."""
    slow = Point(config=TrainConfig(batch_size=8, accumulation_steps=8))
    found = candidates(
        [("a.json", elsewhere(cpus=4, batch_size=8))], make_space(), this_machine(), fingerprint="a1b2c3",
        device="cpu", memory_limit_bytes=None,
    )  # fmt: skip
    assert found[0].point == slow
    search, _ = make_search(example_rate, budget_seconds=60, first=[found[0].proposal])
    search.run()
    (record,) = records(found, search.log.trials, judge(search, "budget")[0], search.baseline)
    assert not record.helped
    assert record.same_workload
    assert record.verdict == "it was not faster than the baseline"


def test_a_candidate_that_is_the_baseline_is_told() -> None:
    """It costs no burst of its own."""
    found = candidates(
        [("a.json", elsewhere(cpus=4))],
        make_space(),
        this_machine(),
        fingerprint="f",
        device="cpu",
        memory_limit_bytes=None,
    )
    search, _ = make_search(example_rate, budget_seconds=30, first=[found[0].proposal])
    search.run()
    (record,) = records(found, search.log.trials, judge(search, "budget")[0], search.baseline)
    assert record.verdict == "it is the baseline here"
    assert not any(trial.stage == WARM for trial in search.log.trials)


def test_a_file_that_cannot_be_read_costs_no_burst(tmp_path: Path) -> None:
    """It is told before the workload is even imported."""
    with pytest.raises(ResultFileError, match=r"none\.json"):
        Tuning(Options(target="nowhere:build", warm_start=(tmp_path / "none.json",)), None, None).run()  # type: ignore[arg-type]


def test_results_are_read_with_their_names(tmp_path: Path) -> None:
    """In the order in which they were given."""
    for name in ("b.json", "a.json"):
        write_document(make_result(), tmp_path / name)
    assert [name for name, _ in read_results([tmp_path / "b.json", tmp_path / "a.json"])] == [
        str(tmp_path / "b.json"), str(tmp_path / "a.json")
    ]  # fmt: skip
