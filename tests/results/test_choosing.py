"""Where to train: the fastest and the cheapest machine, and what a whole training takes and costs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from autotune.knobs.config import TrainConfig
from autotune.measuring.telemetry_summary import TelemetrySummary
from autotune.results.compare import MOST_LISTED, WorkloadGroup, compare
from autotune.results.gather import Gathered
from autotune.results.result import Result, Side
from tests.crosses import on_gpu
from tests.factories import make_hardware, make_measurement, make_result


def priced(rate: float, name: str, dollars: float | None, spread: float = 0.001) -> Result:
    """A result of a machine that is called so, and costs so much an hour."""
    best = Side(config=TrainConfig(precision="bf16"), measurement=make_measurement(rate, spread=spread))
    return make_result(best=best, machine_name=name, dollars_per_hour=dollars)


def group_of(*results: Result, samples: int | None = None, at_least: float | None = None) -> WorkloadGroup:
    """The comparison of one workload."""
    named = [(f"{number}.json", result) for number, result in enumerate(results)]
    return compare(Gathered(results=named), samples, at_least).groups[0]


def test_the_fastest_and_the_cheapest_are_named() -> None:
    """Twice as fast for ten times the price is the fastest, and not the cheapest."""
    found = group_of(priced(2000, "a100", 2.0), priced(1000, "rtx", 0.2)).choices
    assert found == ("fastest: a100, 2,000 samples/s", "cheapest: rtx, 18,000,000 samples a dollar")


def test_what_cannot_be_told_from_the_best_is_named_beside_it() -> None:
    """Whose interval reaches the best one's may be as good."""
    found = group_of(priced(1000, "one", None), priced(1005, "two", None, 0.05), priced(500, "slow", None)).choices
    assert found == ("fastest: one, 1,000 samples/s; no certain difference from two",)


def test_the_cheapest_among_the_fast_is_named() -> None:
    """The cheapest of all is too slow; of the two that are fast enough the dearer one is not named."""
    machines = (priced(2000, "h100", 4.0), priced(1900, "a100", 2.0), priced(1000, "rtx", 0.2))
    found = group_of(*machines, at_least=0.9).choices
    assert found[1] == "cheapest of those that reach 90 % of the fastest: a100, 3,420,000 samples a dollar"


def frugal(rate: float, name: str, watts: float, *, gpu: bool, ranks: int = 1) -> Result:
    """A result of a machine that is called so, whose device takes so much power."""
    telemetry = TelemetrySummary(seconds=4.0, energy_joules=4.0 * watts)
    config, measured = TrainConfig(ranks=ranks), make_measurement(rate, spread=0.001, telemetry=telemetry)
    make = on_gpu if gpu else make_result
    return make(best=Side(config=config, measurement=measured), machine_name=name)


def test_the_most_frugal_are_told_by_kind_of_device() -> None:
    """What is counted of a processor is less than what is counted of a GPU: the two cannot be compared."""
    machines = [frugal(2000, "a100", 400, gpu=True), frugal(1000, "l4", 70, gpu=True)]
    assert group_of(*machines).choices[1] == "most frugal: l4, 14.3 samples a joule"
    machines += [frugal(900, "xeon", 60, gpu=False), frugal(800, "epyc", 80, gpu=False)]
    assert group_of(*machines).choices[1:] == (
        "most frugal, cuda alone: l4, 14.3 samples a joule",
        "most frugal, cpu alone: xeon, 15 samples a joule",
    )


def test_one_machine_leaves_nothing_to_choose() -> None:
    """Neither superlatives of one, nor of results without a rate."""
    assert group_of(priced(1000, "one", 1.0)).choices == ()
    unmeasured = make_result(best=Side(config=TrainConfig(), measurement=None), speedup=None)
    assert group_of(priced(1000, "one", 1.0), unmeasured).choices == ()


def test_a_whole_training_is_told_in_hours_and_dollars_the_cheapest_first() -> None:
    """A machine without a price comes last, with its time alone."""
    found = group_of(
        priced(2000, "a100", 2.0), priced(1000, "rtx", 0.2), priced(10, "laptop", None), samples=7_200_000
    ).choices[-3:]
    assert found == (
        "7,200,000 samples: 2 h 00 m and costs $0.40 on rtx",
        "7,200,000 samples: 1 h 00 m and costs $2.00 on a100",
        "7,200,000 samples: 8.3 days on laptop",
    )


def test_of_many_machines_the_first_few_are_told() -> None:
    """A fleet of a thousand must not fill a screen; the table has them all."""
    results = [priced(1000 + number, f"m{number}", 1.0) for number in range(MOST_LISTED + 3)]
    found = group_of(*results, samples=10**6).choices
    assert found[-1] == "and on 3 more machines"
    assert len(found) == 2 + MOST_LISTED + 1


def test_samples_per_dollar_stand_in_the_row() -> None:
    """An hour of 1,000 samples a second for half a dollar."""
    (row,) = group_of(priced(1000, "rtx", 0.5)).rows
    assert row.machine == row.label == "rtx"
    assert row.samples_per_dollar is not None
    assert abs(row.samples_per_dollar / 7_200_000 - 1) < 0.01


def test_your_result_stands_among_those_of_the_same_processor() -> None:
    """Its place, and its rate over each other's with the knobs that differ; another card does not count."""
    slow = Side(config=TrainConfig(precision="bf16", num_workers=4), measurement=make_measurement(900, spread=0.001))
    results = [
        on_gpu(1000, hostname="a"),
        on_gpu(2000, hostname="b"),
        on_gpu(hostname="c", best=slow),
        on_gpu(9000, name="H100"),
    ]
    named = [(f"{number}.json", result) for number, result in enumerate(results)]
    group = compare(Gathered(results=named), mine="0.json").groups[0]
    assert {row.path: row.kin for row in group.rows} == {
        "0.json": "yours", "1.json": "like yours", "2.json": "like yours", "3.json": ""
    }  # fmt: skip
    first, faster, slower = group.choices[-3:]
    assert first.startswith("yours: ")
    assert first.endswith(" samples/s, number 2 of 3 with NVIDIA GeForce RTX 4070")
    assert faster.endswith("(1.json); it has the same knobs")
    assert faster.startswith("yours runs at 0.500× of NVIDIA GeForce RTX 4070, 2 CPUs on b")
    assert slower.endswith("(2.json); it has num_workers=4, prefetch_factor=2")


def cpus(budget: int, hostname: str = "there", *, ranks: int = 1, **changes: Any) -> Result:
    """A result of so many CPUs of one model."""
    hardware = make_hardware(hostname=hostname)
    best = Side(config=TrainConfig(ranks=ranks), measurement=make_measurement(1000))
    cpu = hardware.cpu.model_copy(update={"budget": budget})
    return make_result(hardware=hardware.model_copy(update={"cpu": cpu}), best=best, **changes)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(cpus(64), id="more CPUs of the model"),
        pytest.param(cpus(2, ranks=2), id="more ranks"),
        pytest.param(cpus(2, "here", created=make_result().created - timedelta(days=1)), id="your own older one"),
        pytest.param(cpus(2, status="partial"), id="a partial one"),
    ],
)
def test_your_result_stands_only_beside_what_may_do_the_same(other: Result) -> None:
    """The newest complete result of each other machine with the same hardware and ranks."""
    named = [("mine.json", cpus(2, "here")), ("other.json", other)]
    last = compare(Gathered(results=named), mine="mine.json").groups[0].choices[-1]
    assert last.endswith(
        "no other machine's complete result of this workload comes from Intel(R) Xeon(R) Gold 6338, 2 CPUs"
    )
    named.append(("alike.json", cpus(2)))
    group = compare(Gathered(results=named), mine="mine.json").groups[0]
    assert any(choice.endswith("number 1 of 2 with Intel(R) Xeon(R) Gold 6338, 2 CPUs") for choice in group.choices)


def test_what_cannot_be_told_apart_from_yours_is_said() -> None:
    """Intervals that overlap are no finding; and with no other result of that processor there is no comparison."""
    wide = Side(config=TrainConfig(precision="bf16"), measurement=make_measurement(1000, spread=0.2))
    named = [("0.json", on_gpu(hostname="a", best=wide)), ("1.json", on_gpu(1010, hostname="b"))]
    assert "no certain difference" in compare(Gathered(results=named), mine="0.json").groups[0].choices[-1]
    alone = compare(Gathered(results=named[:1]), mine="0.json").groups[0].choices
    assert alone[0].endswith("no other machine's complete result of this workload comes from NVIDIA GeForce RTX 4070")
    assert compare(Gathered(results=named[:1])).groups[0].choices == ()
