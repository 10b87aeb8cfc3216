"""The A/A test: both sides train the same, draws favour neither, and verdicts count both directions."""

from __future__ import annotations

import inspect
import json
import random
from pathlib import Path

import pytest

from autotune.bursts.protocol import BurstPlan
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Point
from autotune.measuring.speedup import Speedup
from autotune.measuring.statistics import Interval
from benchmarks import aa, digits, output

SHORT = BurstPlan(warmup_seconds=0.1, measure_seconds=0.1, block_seconds=0.02)


def recorded_noise(rounds: int = 12, spread: float = 0.02) -> list[aa.Recorded]:
    """Rounds of a rate of a thousand, each burst of which has a level of its own."""
    rng = random.Random(0)

    def burst() -> list[float]:
        level = 1000 * rng.gauss(1, spread)
        return [level * rng.gauss(1, 0.01) for _ in range(10)]

    return [aa.Recorded(burst(), burst()) for _ in range(rounds)]


def test_both_sides_train_alike() -> None:
    """They differ as values only: what the second states of `build()` is its default, and it is the baseline."""
    defaults = {name: p.default for name, p in inspect.signature(digits.build).parameters.items()}
    assert aa.FIRST != aa.SECOND
    assert aa.FIRST.config == aa.SECOND.config == digits.build().baseline_config
    assert aa.SECOND.parameters.items() <= defaults.items()


def test_block_rates_survive_recording() -> None:
    """A measurement that is made of rates has those rates."""
    assert aa.measurement_of([90.0, 100.0, 120.0]).block_rates == pytest.approx([90, 100, 120])


def test_sides_of_a_drawn_round_belong_together() -> None:
    """What varies between rounds slows both sides of a pair: sides of different rounds are never mixed."""
    recorded = [aa.Recorded([100.0], [101.0]), aa.Recorded([10.0], [10.1])]
    resampling = aa.Resampling(recorded, seed=0)
    ratios = [
        after.samples_per_second / before.samples_per_second for before, after in (resampling.pair() for _ in range(50))
    ]
    assert {round(ratio, 3) for ratio in ratios} == {1.01, 0.99}


def test_verdicts_count_both_directions() -> None:
    """An interval above 1 and one below are both wrong; one that ends at 1 is not."""
    intervals = [(0.9, 1.1), (1.0, 1.2), (1.01, 1.2), (0.8, 0.99)]
    row = aa.verdicts([Speedup(ratio=1.0, ci95=Interval(*ends), pairs=3) for ends in intervals], goal=0.9)
    assert (row["no_difference"], row["faster"], row["slower"], row["goal"], row["met"]) == (2, 1, 1, 4, False)


@pytest.mark.usefixtures("few_resamples")
def test_simulations_find_no_difference_in_noise() -> None:
    """Most of a few dozen say so, for rounds as decided and for each fixed number."""
    rows = {name: aa.verdicts(found, 0.8) for name, found in aa.simulated(recorded_noise(), 20).items()}
    assert set(rows) == {aa.DECIDED, "2 rounds", "3 rounds", "5 rounds", "8 rounds"}
    assert all(row["met"] for row in rows.values()), rows


def test_noise_is_told_of_pairs_and_of_blocks() -> None:
    """A pair's is that of two processes."""
    noise = aa.noise(recorded_noise(rounds=400))
    assert noise["of_a_pair"] == pytest.approx(0.02 * 2**0.5, rel=0.2)
    assert noise["of_blocks"] == pytest.approx(0.01, rel=0.2)


@pytest.mark.slow
def test_real_confirmations_record_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bursts in processes of their own, in as many rounds as the speed-up has pairs."""
    monkeypatch.setattr(aa, "TARGET", "tests.workloads.tiny:build")
    monkeypatch.setattr(aa, "FIRST", Point(config=TrainConfig()))
    monkeypatch.setattr(aa, "SECOND", Point(config=TrainConfig(), parameters={"width": 32}))
    (speedup,), (rounds,) = aa.real(1, SHORT)
    assert speedup.pairs == len(rounds) >= 2
    assert all(rate > 0 for one in rounds for side in one for rate in side)


def test_simulations_can_be_run_again_from_what_was_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another statistic can be judged without the long measurement; what was real stays as it was."""
    real = aa.verdicts([Speedup(ratio=1.0, ci95=Interval(0.9, 1.1), pairs=3)], 0.9)
    before = {"how_recorded": "in a test", "plan": {}, "real": real, "recorded_block_rates": [recorded_noise()]}
    (tmp_path / "aa.json").write_text(json.dumps(before))
    monkeypatch.setattr(output, "FOLDER", tmp_path)
    aa.main(["--simulate-only", "--simulations", "4"])
    after = json.loads((tmp_path / "aa.json").read_text())
    assert after["real"] == real
    assert after["simulated"][aa.DECIDED]["repeats"] == 4
    assert "no difference in 1 of 1" in capsys.readouterr().out
