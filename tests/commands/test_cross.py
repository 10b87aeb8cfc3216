"""Another machine's config, measured here: what is made of the rounds, and real bursts of a tiny workload."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import Interrupted, UsageError
from autotune.knobs.config import TrainConfig
from autotune.measuring.progress import Progress
from autotune.measuring.records import Burst, Outcome, Point
from autotune.measuring.telemetry_summary import TelemetrySummary
from autotune.results.cross_file import Cross, default_cross_path
from autotune.results.files import read_document, write_document
from autotune.results.result import Result, Side
from autotune.scripts import Script
from autotune.search.stopping import Budget
from autotune.sessions import crossing
from autotune.sessions.crossing import (
    Place,
    cross_result,
    device_notes,
    judge_cross,
    learning_notes,
    own_notes,
    own_result,
    points_in_turn,
)
from autotune.stored import DeviceKind
from tests.crosses import on_gpu
from tests.factories import make_hardware, make_measurement, make_result
from tests.processes import slowness
from tests.spaces import make_facts

TINY, SLEEPY = "tests.workloads.tiny:build", "tests.workloads.sleepy:build"
BASELINE = TrainConfig(batch_size=32)
THEIRS = TrainConfig(batch_size=32, num_threads=1)
OWN = TrainConfig(batch_size=32, optimizer_impl="fused")


def result_of(best: TrainConfig, **changes: Any) -> Result:
    """A result that recommends a config."""
    sides = {
        "baseline": Side(config=BASELINE, measurement=make_measurement(1000)),
        "best": Side(config=best, measurement=make_measurement(2000)),
    }
    return make_result(**sides | changes)


def judged(
    rates: dict[TrainConfig, float],
    failed: dict[TrainConfig, Outcome] | None = None,
    *,
    own: Result | None = None,
    rounds: int = 4,
    source: Result | None = None,
) -> Cross:
    """The record of rounds in which each config had a rate, and of bursts that failed."""
    ran = [
        {
            Point(config=config): make_measurement(rate, seed=10 * number + n)
            for n, (config, rate) in enumerate(rates.items())
        }
        for number in range(rounds)
    ]
    bursts = [
        Burst(point=Point(config=config), outcome=outcome, reason="it broke", seconds=1.0)
        for config, outcome in (failed or {}).items()
    ]
    place = Place(make_hardware(), "cpu", make_facts(), ("own.json", own) if own is not None else None, ("a note",))
    return judge_cross(source or result_of(THEIRS), place, (ran, bursts))


def test_the_configs_ratio_to_this_machines_own_and_to_the_baseline() -> None:
    """Both from the same rounds."""
    cross = judged({THEIRS: 1660, OWN: 2000, BASELINE: 1000}, own=result_of(OWN))
    assert cross.over_own is not None
    assert cross.over_baseline is not None
    assert cross.over_own.ratio == pytest.approx(0.83, rel=0.02)
    assert cross.over_baseline.ratio == pytest.approx(1.66, rel=0.02)
    assert (cross.over_own_reason, cross.over_baseline_reason, cross.rounds) == (None, None, 4)
    assert cross.theirs.measurement is not None
    assert len(cross.theirs.measurement.blocks) == 4 * 8
    assert cross.own is not None
    assert (cross.own.path, cross.own.config) == ("own.json", OWN)


def test_what_was_measured_says_where_it_is_from() -> None:
    """Both machines and both workloads by name."""
    gpu = on_gpu(baseline=result_of(THEIRS).baseline, best=result_of(THEIRS).best)
    cross = judged({THEIRS: 1, BASELINE: 1}, source=gpu)
    assert (cross.machine, cross.device) == ("Intel(R) Xeon(R) Gold 6338, 2 CPUs", "cpu")
    origin = cross.config_of
    assert (origin.machine, origin.slug, origin.device) == (
        "NVIDIA GeForce RTX 4070, 2 CPUs", "nvidia-geforce-rtx-4070", "cuda",
    )  # fmt: skip
    assert cross.software.autotune is not None
    assert cross.notes == ("a note",)


def test_without_a_result_of_this_machine_there_is_the_baseline() -> None:
    """With what to do about it."""
    cross = judged({THEIRS: 1500, BASELINE: 1000})
    assert cross.over_own is None
    assert "--against" in (cross.over_own_reason or "")
    assert cross.over_baseline is not None


def test_a_machine_that_has_the_same_config_loses_nothing() -> None:
    """It is not measured twice either."""
    source, own = result_of(THEIRS), result_of(THEIRS)
    assert points_in_turn(source, ("own.json", own)) == (Point(config=THEIRS), [Point(config=BASELINE)])
    cross = judged({THEIRS: 1500, BASELINE: 1000}, own=own)
    assert cross.same_config
    assert cross.over_own_reason == "it is this machine's own config"


def test_a_result_that_recommends_the_baseline_is_compared_with_this_machines_own() -> None:
    """And alone, it is only seen to train."""
    source, own = result_of(BASELINE), result_of(OWN)
    assert points_in_turn(source, ("own.json", own)) == (Point(config=BASELINE), [Point(config=OWN)])
    alone = judged({BASELINE: 1000}, source=source, rounds=1)
    assert (alone.ran, alone.over_own, alone.over_baseline) == (True, None, None)
    assert alone.over_baseline_reason == "it is the baseline"


@pytest.mark.parametrize("outcome", [Outcome.OOM, Outcome.CRASHED, Outcome.UNSUPPORTED, Outcome.TIMEOUT])
def test_a_config_that_cannot_run_here_is_a_finding(outcome: Outcome) -> None:
    """With how it ended; a hang too, when it never ended well."""
    cross = judged({OWN: 2000, BASELINE: 1000}, {THEIRS: outcome}, own=result_of(OWN))
    assert (cross.ran, cross.outcome) == (False, outcome)
    assert cross.failure == f"it ended as {outcome.value}: it broke"
    assert (cross.over_own, cross.over_own_reason) == (None, cross.failure)


def test_a_config_that_fails_once_cannot_be_relied_on() -> None:
    """However many rounds it ended well before."""
    cross = judged({THEIRS: 1660, OWN: 2000, BASELINE: 1000}, {THEIRS: Outcome.OOM}, own=result_of(OWN))
    assert not cross.ran
    assert cross.over_own is None


def test_a_last_round_that_the_budget_cut_short_is_no_failure() -> None:
    """The rounds before it count."""
    cross = judged({THEIRS: 1660, OWN: 2000, BASELINE: 1000}, {THEIRS: Outcome.TIMEOUT}, own=result_of(OWN))
    assert cross.ran
    assert cross.over_own is not None


def test_this_machines_own_config_may_fail() -> None:
    """That says nothing about the other's, which is still compared with the baseline."""
    cross = judged({THEIRS: 1500, BASELINE: 1000}, {OWN: Outcome.CRASHED}, own=result_of(OWN))
    assert cross.ran
    assert cross.over_own_reason == "this machine's own config ended as crashed: it broke"
    assert cross.over_baseline is not None


def test_runs_that_something_else_disturbed_are_told() -> None:
    """What was lost may be the neighbour's doing."""
    busy = TelemetrySummary(seconds=1.0, foreign_cpu_fraction=0.7, idle_cpu_fraction=0.0)
    ran = [
        {
            Point(config=THEIRS): make_measurement(1500, seed=number, telemetry=busy if number else None),
            Point(config=BASELINE): make_measurement(1000, seed=10 + number),
        }
        for number in range(3)
    ]
    cross = judge_cross(result_of(THEIRS), Place(make_hardware(), "cpu", make_facts(), None), (ran, []))
    (note,) = cross.notes
    assert note.startswith("2 of 6 runs were disturbed")
    assert note.endswith("other processes took 70% of the CPUs")


@pytest.mark.parametrize(
    "failed", [{}, {THEIRS: Outcome.TIMEOUT, BASELINE: Outcome.TIMEOUT}], ids=["none ran", "all timed out"]
)
def test_without_a_round_there_is_no_result(failed: dict[TrainConfig, Outcome]) -> None:
    """The person gives more time; nothing is claimed, and nothing written."""
    with pytest.raises(UsageError, match=r"expected time to train all configs in turn.* give a longer --budget"):
        judged({THEIRS: 1500, BASELINE: 1000}, failed, rounds=0)


def test_the_own_result_is_of_the_same_workload_and_device(tmp_path: Path) -> None:
    """Of those the newest complete one; what cannot be read is told."""
    created = make_result().created
    write_document(result_of(OWN), tmp_path / "old.json")
    write_document(result_of(THEIRS, created=created + timedelta(days=1)), tmp_path / "new.json")
    write_document(result_of(OWN, created=created + timedelta(days=2), status="partial"), tmp_path / "partial.json")
    write_document(result_of(OWN, fingerprint="ffff"), tmp_path / "another.json")
    write_document(on_gpu(created=created + timedelta(days=3)), tmp_path / "gpu.json")
    (tmp_path / "broken.json").write_text("{")
    told: list[str] = []
    found = own_result(tmp_path, make_facts(), "cpu", told.append)
    assert found is not None
    assert found[0] == str(tmp_path / "new.json")
    assert ["broken.json" in note for note in told] == [True]
    assert own_result(tmp_path / "nowhere", make_facts(), "cpu") is None


def test_knobs_that_a_device_does_not_have_are_told() -> None:
    """What is tried on another kind of device is not all of the config."""
    config = TrainConfig(pin_memory=True, non_blocking=True, cudnn_benchmark=True, precision="tf32", num_threads=2)
    source = on_gpu(best=Side(config=config, measurement=None))
    (on_cpu,) = device_notes(source, "cpu")
    assert on_cpu.endswith(
        "on cpu, where precision=tf32, pin_memory=true, non_blocking=true, cudnn_benchmark=true have no effect"
    )
    (on_amd,) = device_notes(source, "rocm")
    assert on_amd.endswith("on rocm, where precision=tf32, cudnn_benchmark=true have no effect")
    assert list(device_notes(source, "cuda")) == []


def test_what_makes_the_own_result_less_comparable_is_told() -> None:
    """That it is the other's result itself, of another device, or of other arguments of build()."""
    source, facts = result_of(THEIRS), make_facts()
    assert list(own_notes(source, None, facts, "cpu")) == []
    assert list(own_notes(source, ("own.json", result_of(OWN)), facts, "cpu")) == []
    (same,) = own_notes(source, ("own.json", source), facts, "cpu")
    assert "autotune check" in same
    wider = Side(config=OWN, parameters={"width": 64}, measurement=None)
    told = list(own_notes(source, ("own.json", on_gpu(best=wider)), facts, "cpu"))
    assert ["tuned on cuda" in told[0], len(told)] == [True, 1]


def test_configs_that_learn_in_different_ways_are_told() -> None:
    """By other arguments of build(), or by another effective batch: a rate says nothing of that."""
    source = result_of(THEIRS)
    assert list(learning_notes(source, ("own.json", result_of(OWN)))) == []
    other = Side(config=OWN.replace(batch_size=2 * OWN.batch_size), parameters={"width": 64}, measurement=None)
    told = list(learning_notes(source, ("own.json", make_result(best=other))))
    assert ["different arguments" in told[0], "do not train alike" in told[1], len(told)] == [True, True, 2]


@pytest.mark.parametrize(
    ("target", "ranks", "there", "device", "on_one"),
    [
        (TINY, 1, "cuda", None, True),
        (TINY, 1, "cpu", "cuda", True),
        (TINY, 1, "cpu", None, False),
        (TINY, 1, "cuda", "cpu", False),
        (TINY, 2, "cuda", None, False),
        (Script(("python", "train.py")), 1, "cuda", None, False),
    ],
)
def test_gpus_are_hidden_from_one_rank_on_a_gpu_only(
    target: str | Script,
    ranks: int,
    there: DeviceKind,
    device: DeviceKind | None,
    on_one: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several ranks use all of them, and a script those that it asks for, as while it was tuned; the CPU uses none."""
    told: list[bool] = []

    def opened(*_: Any, on_gpu: bool) -> None:
        told.append(on_gpu)
        raise Interrupted("seen enough")

    monkeypatch.setattr(crossing, "opened", opened)
    constraints = make_result().constraints.model_copy(update={"device": there})
    source = result_of(THEIRS.replace(ranks=ranks), constraints=constraints)
    with pytest.raises(Interrupted):
        cross_result(source, target, Budget(9.0), Progress(), device=device)
    assert told == [on_one]


# Real bursts.


def of_target(result: Result, target: str = TINY) -> Result:
    """The same result of a real workload."""
    return result.model_copy(update={"workload": result.workload.model_copy(update={"target": target})})


def of_tiny(best: TrainConfig, **changes: Any) -> Result:
    """A result of the tiny workload."""
    return of_target(result_of(best, **changes))


def crossed(source: Result, folder: Path, seconds: float = 40.0, **options: Any) -> Cross:
    """A real cross."""
    target = source.workload.target
    return cross_result(source, target, Budget(seconds * slowness()), Progress(), results=folder / "results", **options)


def asleep(batch_size: int) -> Side:
    """A micro-batch takes 30 ms, however large it is; a step holds 32 samples."""
    config = TrainConfig(batch_size=batch_size, accumulation_steps=32 // batch_size)
    return Side(config=config, parameters={"step_seconds": 0.03}, measurement=None)


@pytest.mark.slow
def test_a_config_is_measured_beside_this_machines_own_and_the_baseline(tmp_path: Path) -> None:
    """This machine's own result is found in its folder; half as many micro-batches are twice as fast."""
    baseline, theirs, own = asleep(8), asleep(16), asleep(32)
    here = crossed(of_target(make_result(baseline=baseline, best=baseline), SLEEPY), tmp_path)
    assert (here.ran, here.over_own, here.software.torch is not None) == (True, None, True)
    assert any("fingerprint" in note for note in here.notes)
    path = tmp_path / "results" / here.hardware.slug / "sleepy.json"
    tuned, source = (
        make_result(baseline=baseline, best=best).model_copy(update={"workload": here.workload})
        for best in (own, theirs)
    )
    write_document(tuned, path)
    cross = crossed(source, tmp_path, 50.0)  # as long as a busy machine needs; the rounds end when all is clear
    assert cross.own is not None
    assert (cross.own.path, cross.own.config) == (str(path), own.config)
    assert cross.over_own is not None
    assert cross.over_baseline is not None
    assert cross.over_own.ratio == pytest.approx(0.5, rel=0.3)
    assert cross.over_baseline.ratio == pytest.approx(2.0, rel=0.3)
    assert not any("fingerprint" in note for note in cross.notes)
    write_document(cross, tmp_path / default_cross_path(cross))
    assert read_document(tmp_path / default_cross_path(cross), Cross) == cross


@pytest.mark.slow
def test_memory_that_does_not_suffice_here_is_a_finding(tmp_path: Path) -> None:
    """Under a memory target that nothing fits into."""
    constraints = make_result().constraints.model_copy(update={"memory_target": 1e-6})
    cross = crossed(of_tiny(THEIRS, constraints=constraints), tmp_path)
    assert cross.outcome is Outcome.OOM
    assert "host memory" in (cross.failure or "")


@pytest.mark.slow
def test_a_device_that_is_not_here_is_refused_unless_another_is_named(tmp_path: Path) -> None:
    """With the option that names one; knobs that have no effect on it are told."""
    constraints = make_result().constraints.model_copy(update={"device": "mps"})
    config = TrainConfig(batch_size=32, pin_memory=True, cudnn_benchmark=True)
    source = of_tiny(config, baseline=Side(config=config, measurement=None), constraints=constraints)
    with pytest.raises(UsageError, match=r"the result is of mps .*autotune cross --device cpu"):
        crossed(source, tmp_path)
    with pytest.raises(UsageError, match=r"--device: expected one that this machine has .*, got xpu"):
        crossed(source, tmp_path, device="xpu")
    cross = crossed(source, tmp_path, device="cpu")
    assert (cross.ran, cross.device) == (True, "cpu")
    assert any("on cpu, where pin_memory=true, cudnn_benchmark=true have no effect" in note for note in cross.notes)


@pytest.mark.slow
def test_a_named_result_is_taken_as_it_is(tmp_path: Path) -> None:
    """Of another workload, or partial: that is told, and taken all the same."""
    own = of_tiny(BASELINE, status="partial")
    cross = crossed(of_tiny(BASELINE), tmp_path, against=("mine.json", own))
    assert cross.own is not None
    assert (cross.own.path, cross.same_config) == ("mine.json", True)
    told = [note for note in cross.notes if note.startswith("mine.json")]
    assert ["another workload" in told[0], "partial" in told[1], len(told)] == [True, True, 2]
