"""What configs cost: starts, compiling and samples, by what ran so far."""

from __future__ import annotations

import dataclasses

import pytest

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.knobs.compiling import COMPILE_SECONDS
from autotune.knobs.config import TrainConfig
from autotune.measuring.pairs import Pair
from autotune.measuring.records import Block, Burst, Outcome, Point
from autotune.measuring.statistics import Interval
from autotune.results.result import CONFIRM
from autotune.search.costs import Costs
from autotune.search.trials import Trial
from tests.factories import make_measurement
from tests.search.surface import example_rate, make_facts, make_search

BASELINE = Point(config=TrainConfig(batch_size=64))


def trial(point: Point, seconds: float, *, compiling: float | None = None, partner: Point | None = None) -> Trial:
    """A burst that ended well, beside a partner perhaps."""
    measured = make_measurement().model_copy(update={"compile_seconds": compiling})
    pair = Pair(partner=partner, ratio=1.0, ci95=Interval(0.9, 1.1), blocks=9) if partner is not None else None
    return Trial(Burst(point=point, outcome=Outcome.OK, measurement=measured, seconds=seconds), "", "", pair=pair)


def compiled(mode: str, **changes: object) -> Point:
    """The baseline in a mode of compiling."""
    return Point(config=BASELINE.config.replace(compile_mode=mode, **changes))


def test_each_mode_of_compiling_has_a_price() -> None:
    """CUDA graphs are cheap and a thorough search is not; nothing was seen yet."""
    costs = Costs([], BurstPlan())
    prices = [costs(compiled(mode)).compile_seconds for mode in ("cudagraphs", "blocks", "default", "max-autotune")]
    assert prices == sorted(set(prices))
    assert costs(BASELINE).compile_seconds == 0.0


@pytest.mark.parametrize("number", [None, 0], ids=["in a challenge", "in a round"])
def test_what_a_mode_took_tells_of_others_in_proportion(number: int | None) -> None:
    """On a machine that compiles three times as slowly, all modes do."""
    took = dataclasses.replace(trial(compiled("default"), 70.0, compiling=60.0), round=number)
    costs = Costs([took], BurstPlan())
    assert costs(compiled("blocks")).compile_seconds == 3 * COMPILE_SECONDS["blocks"]


def test_a_host_compiles_the_same_code_once() -> None:
    """Then a candidate costs its blocks; another process takes what the cache does not save."""
    played = [trial(BASELINE, 4.0), trial(compiled("default"), 30.0, compiling=20.0, partner=BASELINE)]
    costs = Costs(played, BurstPlan())
    same = compiled("default", optimizer_impl="fused")
    assert costs.challenge_seconds(same, BASELINE) < 20.0 < costs.challenge_seconds(compiled("blocks"), BASELINE) + 10
    assert 0 < costs(same).compile_seconds < 20.0


def test_rounds_of_long_steps_cost_their_steps_again() -> None:
    """One that took 15 s, with eight of them timed where two were planned, takes about as long the next time."""
    blocks = (Block(samples=64, seconds=2.0, data_wait_seconds=0.0),) * 4
    measured = make_measurement().model_copy(update={"blocks": blocks})
    burst = Burst(point=BASELINE, outcome=Outcome.OK, measurement=measured, seconds=15.0)
    costs = Costs(
        [Trial(burst, CONFIRM, "", round=1)], BurstPlan(), round_plans={CONFIRM: BurstPlan(measure_seconds=2)}
    )
    assert costs.round_seconds([BASELINE]) == pytest.approx(15, rel=0.2)


def test_only_what_needs_a_process_costs_a_start() -> None:
    """What switches in a live host does not; on a CPU nor does the allocator, which is the host's."""
    played = [
        trial(BASELINE, 4.0),
        trial(Point(config=BASELINE.config.replace(precision="bf16")), 0.5, partner=BASELINE),
    ]
    tuned = Point(config=BASELINE.config.replace(allocator="tuned"))
    on_cpu, on_gpu = (Costs(played, BurstPlan(), device) for device in ("cpu", "cuda"))
    assert on_cpu.challenge_seconds(tuned, BASELINE) == 0.5
    assert on_gpu.challenge_seconds(tuned, BASELINE) > 0.5


@pytest.mark.parametrize(("mode", "whole"), [(None, False), ("max-autotune", True)])
def test_a_first_compile_is_given_all_that_there_is(mode: str | None, whole: bool) -> None:
    """What is killed before its end was for nothing; a hang of anything else must not eat the budget."""
    point = compiled(mode) if mode is not None else BASELINE
    deadline = Costs([trial(BASELINE, 4.0)], BurstPlan()).challenge_deadline([point], BASELINE, 2000.0)
    assert (deadline == 2000.0) is whole


READING = 40.0
COLLATED = BASELINE.changed({"data_placement": "collated"})


def test_a_deadline_leaves_time_to_read_the_data_set() -> None:
    """A config that collates it first reads it, in a host that others started and in a process of its own."""
    costs = Costs([trial(BASELINE, 4.0)], BurstPlan(), reading_seconds=READING)
    assert costs.challenge_deadline([COLLATED], BASELINE, 2000.0) >= READING
    assert costs.deadline(COLLATED, BurstPlan(), 2000.0) >= READING
    assert costs.round_seconds([COLLATED]) - costs.round_seconds([BASELINE]) == READING
    assert costs.challenge_seconds(COLLATED, BASELINE) - costs.challenge_seconds(BASELINE, BASELINE) == READING


def test_a_host_reads_the_data_set_once() -> None:
    """Beside a partner that collates it too, a candidate selects its batches from the same copy."""
    played = [trial(BASELINE, 4.0), trial(COLLATED, READING + 0.5, partner=BASELINE)]
    costs = Costs([*played, trial(COLLATED, 0.5, partner=COLLATED)], BurstPlan(), reading_seconds=READING)
    faster = COLLATED.changed({"precision": "bf16"})
    assert costs.challenge_seconds(faster, COLLATED) == 0.5
    assert costs.challenge_seconds(faster, BASELINE) == 0.5 + READING
    placed_on_device = COLLATED.changed({"data_placement": "device"})
    assert costs.challenge_seconds(placed_on_device, COLLATED) == 0.5 + READING


def test_arguments_of_build_have_a_pace_of_their_own() -> None:
    """A wider model takes longer to train a sample, with the same config."""
    wider = Point(config=BASELINE.config, parameters={"width": 64})
    slower = trial(wider, 4.0)
    measured = make_measurement(10.0)
    slower = dataclasses.replace(slower, burst=slower.burst.model_copy(update={"measurement": measured}))
    costs = Costs([trial(BASELINE, 4.0), slower], BurstPlan())
    assert costs(wider).sample_seconds == pytest.approx(100 * costs(BASELINE).sample_seconds, rel=0.1)


def test_a_search_knows_how_long_reading_takes() -> None:
    """From the facts of its workload: as many samples, each of which takes as long."""
    search, _ = make_search(example_rate, facts=make_facts(samples=10_000, sample_seconds=0.004))
    costs = search._bursts.costs
    assert costs(COLLATED).start_seconds - costs(BASELINE).start_seconds == READING
