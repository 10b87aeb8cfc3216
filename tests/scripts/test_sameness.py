"""Losses to the last bit: what only feeds a script may not change them, where the script itself repeats them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from autotune.bursts.runner import ProcessRunner
from autotune.errors import WorkloadError
from autotune.knobs.config import TrainConfig
from autotune.measuring import Agreement, Point
from autotune.recorder.changes import Changes
from autotune.recorder.stream import Stream
from autotune.scripts import ScriptIsolation
from autotune.scripts.sameness import ScriptNumerics, first_difference
from tests.example_scripts import START_SECONDS, script

BASELINE = Point(config=TrainConfig())
FED = Point(config=TrainConfig(num_workers=2, persistent_workers=True))
LOSSES = (2.5, 2.25, 0.1 + 0.2, 2.0, 1.5, 1.25)


class Noisy(Dataset[torch.Tensor]):
    """Each sample draws random numbers of its own."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2,), float(index)) + torch.rand(2)


class Opened(Dataset[torch.Tensor]):
    """Read through a handle that each worker opens for itself, as torch's guide to workers and HDF5's do."""

    handle: range

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(self.handle[index])


def opens(_: int) -> None:
    """Starts a worker."""
    worker = get_worker_info()
    assert worker is not None
    worker.dataset.handle = range(24)  # type: ignore[attr-defined]


def never(*_: object) -> Agreement:
    """Nobody asks for arithmetic here."""
    raise AssertionError


def judge(losses: Callable[[Point], tuple[float, ...]]) -> tuple[ScriptNumerics, list[str], list[Point]]:
    """A guard whose losses come of a function; what it notes, and what it runs."""
    notes: list[str] = []
    runs: list[Point] = []

    def measured(point: Point, steps: int, _: float) -> tuple[float, ...]:
        runs.append(point)
        return losses(point)[:steps]

    return ScriptNumerics(never, BASELINE, notes.append, measured), notes, runs


def test_the_same_bits_are_told_as_such() -> None:
    """Asked again, or of another point with the same changes of the loader, nothing runs."""
    guard, notes, runs = judge(lambda _: LOSSES)
    verdict = guard.check(FED, 6, 1.0)
    threads = Point(config=FED.config.replace(num_threads=1))
    assert verdict.outcome == guard.check(threads, 6, 1.0).outcome == "unchanged"
    assert "the losses of 6 steps are the same to the last bit" in verdict.reason
    assert (notes, runs) == ([], [BASELINE, BASELINE, FED])


def test_a_single_other_bit_is_refused() -> None:
    """With the step and both losses."""
    guard, notes, _ = judge(lambda point: LOSSES if point == BASELINE else (*LOSSES[:2], 0.3, *LOSSES[3:]))
    verdict = guard.check(FED, 6, 1.0)
    assert verdict.outcome == "disagrees"
    assert guard.known(FED) == verdict
    assert "num_workers=2" in verdict.reason
    assert "the loss of step 3 is 0.3 instead of 0.30000000000000004" in verdict.reason
    assert "left out, since it trains on something else" in notes[0]


def test_a_script_that_does_not_repeat_itself_is_told_so_once() -> None:
    """Then its loader may be changed all the same."""
    counter = itertools.count()
    guard, notes, runs = judge(lambda _: (*LOSSES[:4], float(next(counter)), 1.0))
    more = Point(config=TrainConfig(num_workers=1))
    assert guard.check(FED, 6, 1.0).outcome == guard.check(more, 6, 1.0).outcome == "unchanged"
    assert runs == [BASELINE, BASELINE]
    assert notes == [guard.check(FED, 6, 1.0).reason.removeprefix("it computes as the baseline does; ")]
    assert "have other losses from step 5 on" in notes[0]


def test_a_comparison_that_fails_is_no_verdict() -> None:
    """Nor one for which there is no time."""

    def fails(_: Point) -> tuple[float, ...]:
        raise WorkloadError("no")

    guard, _, runs = judge(fails)
    assert guard.check(FED, 0, 1.0) == guard.known(FED)
    assert runs == []
    assert guard.check(FED, 6, 1.0).outcome == "unchecked"


def test_losses_that_are_not_numbers_are_alike() -> None:
    """In the same place."""
    assert first_difference((1.0, float("nan")), (1.0, float("nan"))) is None
    assert first_difference((1.0, float("nan")), (1.0, 2.0)) == 1


def drawn(seeds_reading: bool, **changes: object) -> list[float]:
    """All figures of two epochs."""
    loader = DataLoader(Noisy(), batch_size=4, shuffle=True)
    torch.manual_seed(0)
    stream = Stream(loader, Changes({"loader": changes}), 0, seeds_reading=seeds_reading)
    figures = [figure for _, batch in itertools.islice(stream, 12) for figure in batch.flatten().tolist()]
    return [*figures, torch.rand(1).item()]


def test_samples_draw_the_same_random_numbers_in_every_process() -> None:
    """And the script's own numbers go on alike, whatever the workers; without that, neither holds."""
    workers = {"num_workers": 1, "persistent_workers": True}
    assert drawn(True) == drawn(True, **workers)
    assert drawn(False) != drawn(False, **workers)


def test_what_a_worker_sets_on_its_data_set_is_there_when_it_reads() -> None:
    """Though samples are read with seeds."""
    loader = DataLoader(Opened(), batch_size=4, num_workers=1, worker_init_fn=opens)

    def losses(point: Point) -> tuple[float, ...]:
        changes = {"num_workers": max(1, point.config.num_workers)}
        stream = Stream(loader, Changes({"loader": changes}), 0, seeds_reading=True)
        return tuple(batch.sum().item() for _, batch in itertools.islice(stream, 6))

    verdict = judge(losses)[0].check(FED, 6, 1.0)
    assert (verdict.outcome, verdict.steps) == ("unchanged", 6), verdict.reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "outcome", "told"),
    [
        ("augmenting", "unchanged", "the same to the last bit"),
        ("counting", "disagrees", "num_workers=2, prefetch_factor=2 must not change a bit"),
        ("unseeded", "unchanged", "cannot be compared to the last bit"),
    ],
)
def test_scripts_are_compared_bit_by_bit(
    how: str, outcome: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Augmentation and dropout repeat themselves; a data set that counts does not; nor does the time of day."""
    monkeypatch.chdir(tmp_path)
    with ScriptIsolation(script("reading", how)) as isolation:
        isolation.start(START_SECONDS)
        runner = ProcessRunner(isolation, "cpu")
        baseline = Point(config=runner.check(START_SECONDS).baseline)
        guard = ScriptNumerics(never, baseline, lambda _: None, runner.losses)
        verdict = guard.check(Point(config=baseline.config.replace(num_workers=2)), 8, 60.0)
    assert verdict.outcome == outcome, verdict.reason
    assert told in verdict.reason


@pytest.mark.slow
def test_a_script_in_half_precision_is_compared_with_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients of its first step, computed in two processes, point almost the same way."""
    monkeypatch.chdir(tmp_path)
    with ScriptIsolation(script("plain")) as isolation:
        isolation.start(START_SECONDS)
        runner = ProcessRunner(isolation, "cpu")
        half = runner.check(START_SECONDS).baseline.replace(precision="bf16")
        agreement = runner.agreement(Point(config=half), 5, 60.0)
    assert 0.99 < agreement.candidate.cosine < 1 - 1e-9
    assert len(agreement.candidate.losses) == 5
    assert agreement.candidate.gradient_norm == pytest.approx(agreement.reference.gradient_norm, rel=0.1)


@pytest.mark.slow
def test_losses_are_those_before_a_scaler_scales_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A config whose gradients overflow once more than others has another scale, but the same losses."""
    monkeypatch.chdir(tmp_path)
    found = []
    for scale in ("1024", "512"):
        with ScriptIsolation(script("scaled", scale)) as isolation:
            isolation.start(START_SECONDS)
            runner = ProcessRunner(isolation, "cpu")
            found.append(runner.losses(Point(config=runner.check(START_SECONDS).baseline), 5, 60.0))
    assert found[0] == found[1]
    assert 1.0 < found[0][0] < 3.0
