"""Statistics that are derived from raw blocks, and whether the intervals keep their promise."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from autotune.knobs.config import TrainConfig
from autotune.measuring.growth import Look
from autotune.measuring.records import MOST_BLOCKS, Block, Burst, Measurement, Outcome, Point, pool
from autotune.measuring.speedup import Rounds, Speedup
from autotune.measuring.statistics import (
    SPREAD_FACTOR,
    USUAL_SPREAD,
    Interval,
    deviation_bound,
    ratio_interval,
    student_t,
)
from autotune.measuring.telemetry_summary import TelemetrySummary
from benchmarks.ratios import speedup_in
from tests.factories import make_burst, make_measurement

STUDENT_T_975 = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 5: 2.5706, 7: 2.3646, 10: 2.2281, 30: 2.0423}
"""From the tables."""

SIMULATIONS = 500


BEFORE, AFTER = (Point(config=TrainConfig(batch_size=size)) for size in (64, 32))


def paired_speedup(pairs: Sequence[tuple[Measurement, Measurement]]) -> Speedup:
    """Of the second of each pair over the first."""
    return speedup_in([{BEFORE: before, AFTER: after} for before, after in pairs], BEFORE, AFTER)


def measured(*blocks: tuple[int, float, float], **changes: object) -> Measurement:
    """A measurement of given (samples, seconds, data wait seconds)."""
    made = tuple(Block(samples=n, seconds=s, data_wait_seconds=w) for n, s, w in blocks)
    return make_measurement(1, blocks=1).model_copy(update={"blocks": made, **changes})


def simulated_speedups(true_ratio: float, *, pairs: int, process_noise: float | None, seed: int) -> list[Speedup]:
    """Many confirmations of one true ratio: drift by the round, noise by the process and by the block.

    Args:
        true_ratio: The rate after over the rate before.
        pairs: Rounds of each.
        process_noise: Standard deviation of the logarithm of a process's rate; None draws it as workloads differ.
        seed: Of all that is drawn.
    """
    rng = random.Random(seed)

    def confirmed_once() -> Speedup:
        noise = process_noise
        if noise is None:
            noise = USUAL_SPREAD / math.sqrt(2) * SPREAD_FACTOR ** rng.gauss(0, 1)
        return paired_speedup([one_round(noise) for _ in range(pairs)])

    def noisy(rate: float, process_noise: float) -> Measurement:
        rate *= math.exp(rng.gauss(0, process_noise))
        return make_measurement(rate, spread=0.01, seed=rng.randrange(2**31))

    def one_round(noise: float) -> tuple[Measurement, Measurement]:
        drift = math.exp(rng.gauss(0, 0.05))
        return noisy(1000 * drift, noise), noisy(1000 * drift * true_ratio, noise)

    return [confirmed_once() for _ in range(SIMULATIONS)]


def test_rate_is_samples_over_seconds() -> None:
    """A long batch counts as what it takes: a median would hide it, and an epoch takes longer than it says."""
    assert measured((100, 1.0, 0), (100, 1.0, 0), (100, 3.0, 0)).samples_per_second == 60


def test_interval_lies_around_the_rate_and_within_the_blocks() -> None:
    """A bootstrap invents no rates beyond those that were seen."""
    measurement = make_measurement(1000, blocks=12, spread=0.05)
    low, high = measurement.ci95_samples_per_second
    assert min(measurement.block_rates) <= low < measurement.samples_per_second < high
    assert high <= max(measurement.block_rates)


def test_interval_of_one_block_has_no_width() -> None:
    """One value tells nothing of its spread; readers look at the number of blocks."""
    assert measured((100, 2.0, 0)).ci95_samples_per_second == Interval(50, 50)


def test_data_wait_is_a_share_of_the_timed_seconds() -> None:
    """Longer blocks count for more."""
    assert measured((1, 1.0, 1.0), (1, 3.0, 0.0)).data_wait_fraction == pytest.approx(0.25)


def test_epoch_boundaries_are_charged_to_the_rate() -> None:
    """Restarting the loader costs time in training, though no block holds it."""
    measurement = measured((100, 1.0, 0), epoch_samples=1000, epoch_boundary_seconds=5.0)
    assert measurement.samples_per_second == pytest.approx(1000 / 15)


def test_rate_without_epochs_has_no_boundaries() -> None:
    """An endless dataset is never restarted."""
    assert measured((100, 1.0, 0), epoch_samples=None).samples_per_second == 100


def test_measurement_survives_json_with_derived_figures_beside_it() -> None:
    """A file shows the derived figures, and they are derived again when it is read."""
    measurement = make_measurement(1000)
    text = measurement.model_dump_json()
    assert '"samples_per_second":' in text
    assert Measurement.model_validate_json(text) == measurement


@pytest.mark.parametrize("block", [(1, 0.0, 0.0), (1, math.inf, 0.0), (-1, 1.0, 0.0), (2**60, 1.0, 0.0)])
def test_impossible_blocks_are_refused(block: tuple[int, float, float]) -> None:
    """A block that would make a rate infinite or overflow is an error where it enters."""
    with pytest.raises(ValueError, match="Block"):
        measured(block)


def test_pooling_keeps_all_blocks_and_the_worst_memory() -> None:
    """Several bursts of one config are one measurement."""
    first = make_measurement(1000, seed=1, device_memory_bytes=10, compile_seconds=4.0)
    second = make_measurement(1100, seed=2, device_memory_bytes=30, compile_seconds=None)
    pooled = pool([first, second])
    assert pooled.blocks == first.blocks + second.blocks
    assert (pooled.device_memory_bytes, pooled.compile_seconds) == (30, 4.0)


def test_pooling_makes_no_more_blocks_and_looks_than_a_file_may_hold() -> None:
    """Neighbours become one, with the same sums; of looks every other stays."""
    looks = tuple(Look(samples=step, seconds=1.0) for step in range(MOST_BLOCKS))
    blocks = tuple(Block(samples=2, seconds=1.0, data_wait_seconds=0.5, joules=3.0) for _ in range(MOST_BLOCKS))
    first = make_measurement(1000).model_copy(update={"blocks": blocks, "looks": looks})
    last = first.model_copy(update={"blocks": (*blocks[:2], blocks[0].model_copy(update={"joules": None}))})
    pooled = pool([first, last])
    assert Measurement.model_validate(pooled.model_dump()) == pooled
    assert sum(block.samples for block in pooled.blocks) == 2 * (MOST_BLOCKS + 3)
    assert pooled.measure_seconds == pytest.approx(MOST_BLOCKS + 3)
    assert pooled.data_wait_fraction == pytest.approx(0.5)
    assert [block.joules for block in pooled.blocks[-3:]] == [6.0, 6.0, None]


def telemetry_of(seconds: float, **figures: Any) -> Measurement:
    """A burst that was watched for so long."""
    return measured((100, 1.0, 0)).model_copy(update={"telemetry": TelemetrySummary(seconds=seconds, **figures)})


def test_pooling_keeps_the_telemetry_of_all_bursts() -> None:
    """Means by the seconds, extremes, sums, every clock limit: samples per joule are those of all bursts."""
    first = telemetry_of(
        1.0, power_watts=100.0, energy_joules=100.0, temperature_celsius=60.0, power_min_watts=50.0,
        power_max_watts=120.0, clock_limits=("sw_power_cap",), allocator_retries=1, cpu_fraction=0.5,
    )  # fmt: skip
    second = telemetry_of(
        3.0, power_watts=200.0, energy_joules=600.0, temperature_celsius=50.0, power_min_watts=90.0,
        power_max_watts=250.0, clock_limits=("hw_slowdown",), allocator_retries=2, cpu_fraction=None,
    )  # fmt: skip
    pooled = pool([first, second]).telemetry
    assert pooled == TelemetrySummary(
        seconds=4.0, power_watts=175.0, energy_joules=700.0, temperature_celsius=60.0, power_min_watts=50.0,
        power_max_watts=250.0, clock_limits=("hw_slowdown", "sw_power_cap"), allocator_retries=3, cpu_fraction=0.5,
    )  # fmt: skip


def test_a_sum_is_unknown_where_one_burst_does_not_know_its_part() -> None:
    """Some bursts' energy over all bursts' time would be a power that never was; a burst without telemetry has none."""
    pooled = pool([telemetry_of(1.0, energy_joules=100.0), telemetry_of(1.0), measured((100, 1.0, 0))]).telemetry
    assert pooled is not None
    assert (pooled.seconds, pooled.energy_joules) == (2.0, None)
    assert pool([measured((100, 1.0, 0))]).telemetry is None


@pytest.mark.parametrize("field", sorted(TelemetrySummary.model_fields.keys() - {"seconds", "clock_limits"}))
def test_pooling_loses_no_figure_of_the_telemetry(field: str) -> None:
    """A field that is added is merged too."""
    burst = telemetry_of(2.0, **{field: 1})
    pooled = pool([burst, burst]).telemetry
    assert getattr(pooled, field) == (2 if field in {"energy_joules", "allocator_retries"} else 1)


def test_points_that_run_alike_are_one() -> None:
    """The order in which parameters are named is no difference, a value is one: no burst is run twice."""
    one = Point(config=TrainConfig(), parameters={"a": 1, "b": None})
    same = Point(config=TrainConfig(prefetch_factor=4), parameters={"b": None, "a": 1})
    other = Point(config=TrainConfig(), parameters={"a": 2, "b": None})
    assert len({one, same, other}) == 2


def test_only_a_burst_that_ended_well_has_a_rate() -> None:
    """A rate of a burst that failed could be taken for a result."""
    well = make_burst(1000)
    failed = Burst(point=well.point, outcome=Outcome.TIMEOUT, measurement=well.measurement, seconds=1)
    assert well.rate == pytest.approx(1000, rel=0.05)
    assert failed.rate is None


def test_measuring_time_is_warm_up_and_blocks() -> None:
    """The rest of a burst is overhead."""
    burst = make_burst(1000)
    assert burst.measurement is not None
    assert burst.measuring_seconds == burst.measurement.warmup_seconds + burst.measurement.measure_seconds
    assert make_burst(None, outcome=Outcome.OOM).measuring_seconds == 0


@pytest.mark.parametrize("outcome", list(Outcome))
def test_outcomes_of_memory_are_those_that_a_smaller_batch_may_cure(outcome: Outcome) -> None:
    """The guard against larger batches learns from these and from no others."""
    assert outcome.is_memory == (outcome.value in {"oom", "host_oom", "shm_exhausted"})


@pytest.mark.parametrize(("degrees", "quantile"), STUDENT_T_975.items())
def test_students_quantile_agrees_with_the_tables(degrees: int, quantile: float) -> None:
    """To all digits that tables print."""
    assert student_t(degrees) == pytest.approx(quantile, rel=1e-4)


def test_bootstrap_is_the_same_for_the_same_seed() -> None:
    """A file that is read twice shows the same interval twice."""
    rng = random.Random(3)
    samples, seconds = ([rng.uniform(1, 2) for _ in range(20)] for _ in range(2))
    assert ratio_interval(samples, seconds) == ratio_interval(samples, seconds)
    assert ratio_interval(samples, seconds, seed=1) != ratio_interval(samples, seconds)


def test_without_a_pair_there_is_no_comparison() -> None:
    """No ratio is made up."""
    assert Rounds([{BEFORE: make_measurement(1000)}]).speedup(BEFORE, AFTER) is None


def test_speedup_is_the_geometric_mean_of_the_pairs() -> None:
    """Twice as fast and half as fast are no gain."""
    pairs = [(measured((100, 1.0, 0)), measured((200, 1.0, 0))), (measured((200, 1.0, 0)), measured((100, 1.0, 0)))]
    speedup = paired_speedup(pairs)
    assert speedup.ratio == pytest.approx(1.0)
    assert not speedup.confirmed


def test_speedup_is_blind_to_drift_between_the_rounds() -> None:
    """A machine that slows down slows both sides of a pair: the ratio keeps its narrow interval."""
    slower = [1.0, 0.8, 0.6, 0.4]
    pairs = [
        (make_measurement(1000 * drift, spread=0, seed=1), make_measurement(1100 * drift, spread=0, seed=2))
        for drift in slower
    ]
    speedup = paired_speedup(pairs)
    assert speedup.ratio == pytest.approx(1.1, rel=0.001)
    assert speedup.ci95.high - speedup.ci95.low < 0.02


def test_the_baseline_against_itself_is_rarely_a_gain() -> None:
    """Of 100 comparisons of a config with itself, at most one may confirm a speed-up."""
    speedups = simulated_speedups(1.0, pairs=4, process_noise=0.02, seed=0)
    assert sum(speedup.confirmed for speedup in speedups) <= 0.01 * SIMULATIONS


@pytest.mark.parametrize("pairs", [1, 2, 3, 5])
def test_the_interval_covers_the_true_ratio(pairs: int) -> None:
    """A 95 % interval holds the truth in 95 of 100 cases, within what the simulations can tell."""
    speedups = simulated_speedups(1.25, pairs=pairs, process_noise=None, seed=1)
    covered = sum(speedup.ci95.low <= 1.25 <= speedup.ci95.high for speedup in speedups)
    two_sigma = 2 * math.sqrt(0.95 * 0.05 / SIMULATIONS)
    assert covered / SIMULATIONS >= 0.95 - two_sigma


def test_few_pairs_confirm_large_gains_only() -> None:
    """With one pair, a gain must exceed what processes of other workloads differ by; a second one that agrees helps."""
    least = {
        (pairs, ratio): simulated_speedups(ratio, pairs=pairs, process_noise=0.01, seed=0)[0].confirmed
        for pairs, ratio in [(1, 1.3), (1, 1.7), (2, 1.05), (2, 1.4)]
    }
    assert least == {(1, 1.3): False, (1, 1.7): True, (2, 1.05): False, (2, 1.4): True}


def test_many_pairs_need_no_other_workloads() -> None:
    """From ten pairs on the bound is that of Student's t."""
    assert deviation_bound(0.03, 12) == pytest.approx(student_t(11) * 0.03, rel=0.03)


def test_a_real_gain_is_confirmed() -> None:
    """The interval is not so wide that a gain of 10 % in 5 pairs goes unseen."""
    speedups = simulated_speedups(1.10, pairs=5, process_noise=0.02, seed=0)
    assert sum(speedup.confirmed for speedup in speedups) >= 0.9 * SIMULATIONS
