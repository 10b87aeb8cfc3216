"""The A/A test: both sides train the same, draws favour neither, and verdicts count both directions."""

from __future__ import annotations

import inspect
import json
import random
from pathlib import Path

import pytest

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Point
from autotune.measuring.speedup import Speedup
from autotune.measuring.statistics import Interval
from benchmarks import aa, digits, output
from benchmarks.aa_turns import turn_lengths
from tests.conftest import RunnerOf

SHORT = BurstPlan(measure_seconds=0.2)
TINY = "tests.workloads.tiny:build"


def recorded_noise(pairs: int = 24, spread: float = 0.02) -> list[aa.Pair]:
    """Pairs of processes, each of which has a level of its own."""
    rng = random.Random(0)

    def side() -> aa.Blocks:
        level = rng.gauss(1, spread)
        return aa.Blocks([100] * 10, [0.1 * level * rng.gauss(1, 0.01) for _ in range(10)])

    return [(side(), side()) for _ in range(pairs)]


def as_written(pairs: list[aa.Pair]) -> list[list[list[dict[str, object]]]]:
    """One real comparison, as it stands in a file."""
    return [[[side._asdict() for side in pair] for pair in pairs]]


def test_both_sides_train_alike() -> None:
    """They differ as values only: what the second states of `build()` is its default, and it is the baseline."""
    defaults = {name: p.default for name, p in inspect.signature(digits.build).parameters.items()}
    assert aa.FIRST != aa.SECOND
    assert aa.FIRST.config == aa.SECOND.config == digits.build().baseline_config
    assert aa.SECOND.parameters.items() <= defaults.items()


def test_blocks_survive_recording() -> None:
    """A measurement that is made of what was recorded has the same blocks."""
    blocks = aa.Blocks([64, 64, 128], [0.1, 0.2, 0.3])
    assert aa.blocks_of(aa.measurement_of(blocks)) == blocks


def test_each_recorded_pair_is_played_once() -> None:
    """What varies between rounds slows both sides of a pair: sides of different rounds are never mixed."""
    recorded = [(aa.Blocks([100], [level]), aa.Blocks([100], [1.01 * level])) for level in (1.0, 2.0, 4.0)]
    resampling = aa.Resampling(recorded, seed=0)
    played = [aa.well(resampling.play([aa.FIRST, aa.SECOND], number)) for number in range(3)]
    ratios = {round(max(a, b) / min(a, b), 3) for a, b in [[m.samples_per_second for m in pair] for pair in played]}
    assert ratios == {1.01}
    assert len({min(m.measure_seconds for m in pair) for pair in played}) == 3
    with pytest.raises(IndexError):
        resampling.play([aa.FIRST, aa.SECOND], 3)


def test_verdicts_count_both_directions() -> None:
    """An interval above 1 and one below are both wrong; one that ends at 1 is not."""
    intervals = [(0.9, 1.1), (1.0, 1.2), (1.01, 1.2), (0.8, 0.99)]
    row = aa.verdicts([Speedup(ratio=1.0, ci95=Interval(*ends), pairs=3) for ends in intervals])
    assert (row["no_difference"], row["faster"], row["slower"], row["goal"], row["met"]) == (2, 1, 1, 3, False)


def test_a_median_that_is_off_misses_the_goal() -> None:
    """However wide the intervals are."""
    assert not aa.verdicts([Speedup(ratio=1.03, ci95=Interval(0.5, 2.0), pairs=3)] * 5)["met"]
    assert aa.verdicts([Speedup(ratio=1.01, ci95=Interval(0.5, 2.0), pairs=3)] * 5)["met"]


@pytest.mark.usefixtures("few_resamples")
def test_resampled_comparisons_find_no_difference_in_noise() -> None:
    """Nearly all of a few dozen say so, for rounds as decided and for each fixed number."""
    rows = {name: aa.verdicts(found) for name, found in aa.resampled(recorded_noise(), 40).items()}
    assert set(rows) == {aa.DECIDED, "3 rounds", "5 rounds", "8 rounds"}
    assert all(row["faster"] + row["slower"] <= 6 for row in rows.values()), rows


def test_noise_is_told_of_pairs() -> None:
    """It is that of two processes, and neither side is favoured."""
    noise = aa.noise(recorded_noise(pairs=400))
    low, high = noise["second_over_first"]["ci95"]
    assert noise["of_a_pair"] == pytest.approx(0.02 * 2**0.5, rel=0.2)
    assert low < 1 < high


@pytest.mark.slow
def test_real_comparisons_record_both_sides(runner_of: RunnerOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Duets in processes of their own, of which the speed-up counts the quiet ones; and blocks of each length."""
    monkeypatch.setattr(aa, "FIRST", Point(config=TrainConfig()))
    monkeypatch.setattr(aa, "SECOND", Point(config=TrainConfig(), parameters={"width": 32}))
    monkeypatch.setattr(aa, "BLOCK_SECONDS", (0.02,))
    monkeypatch.setattr(aa, "TARGET", TINY)
    (speedup,), (pairs,) = aa.real(runner_of(TINY), 1, SHORT)
    assert len(pairs) >= speedup.pairs >= len(pairs) / 2 >= 1
    assert all(first.samples == second.samples and min(first.seconds) > 0 for first, second in pairs)
    (row,) = aa.block_lengths(runner_of(TINY), 2, 0.2)
    assert len(row["recorded"]) == 2
    assert row["measured_block_seconds"] < 0.2


@pytest.mark.slow
def test_turns_of_each_length_are_compared_with_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same two processes."""
    monkeypatch.setattr("benchmarks.aa_turns.BLOCK_SECONDS", (0.02, 0.05))
    monkeypatch.setattr("benchmarks.aa_turns.UNINTERRUPTED_SECONDS", 0.2)
    monkeypatch.setattr("benchmarks.aa_turns.EACH_SECONDS", 0.1)
    rows = turn_lengths(TINY, TrainConfig(batch_size=32), cycles=2, warmup_seconds=0.1)
    assert [row["turn_seconds"] for row in rows] == [0.02, 0.05]
    assert all(row["over_uninterrupted"]["ratio"] > 0 for row in rows)


def test_comparisons_can_be_resampled_again_from_what_was_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another statistic can be judged without the long measurement; what was real stays as it was."""
    real = aa.verdicts([Speedup(ratio=1.0, ci95=Interval(0.9, 1.1), pairs=3)])
    condition = {"plan": {}, "real": real, "recorded": as_written(recorded_noise())}
    folder = tmp_path / "benchmarks" / "output"
    folder.mkdir(parents=True)
    (folder / "aa.json").write_text(json.dumps({**condition, "old_key": 1, aa.NEIGHBOUR: condition}))
    monkeypatch.setattr(output, "FOLDER", folder)
    aa.main(["--simulate-only", "--simulations", "4"])
    after = json.loads((folder / "aa.json").read_text())
    assert "old_key" not in after
    for found in (after, after[aa.NEIGHBOUR]):
        assert found["real"] == real
        assert found["simulated"][aa.DECIDED]["repeats"] == 4
        assert "drawn from the 24 pairs of the real ones" in found["how_simulated"]
    assert "called different: 0 of 1" in capsys.readouterr().out
