"""Results of several machines: grouped by what was trained, with what they share and what makes them incomparable."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from autotune.errors import ResultFileError
from autotune.knobs.config import TrainConfig
from autotune.knobs.facts import ModelFacts
from autotune.measuring.speedup import Speedup
from autotune.measuring.statistics import Interval
from autotune.measuring.telemetry_summary import TelemetrySummary
from autotune.results.compare import Comparison, WorkloadGroup, compare, require_rows
from autotune.results.gather import Gathered
from autotune.results.result import Result, Side
from tests.crosses import compared, make_cross, on_gpu
from tests.factories import GIB, make_measurement, make_result
from tests.report.samples import beside_other_load

LATER = timedelta(days=1)


def tuned(config: TrainConfig, rate: float = 2000.0, **parameters: Any) -> Side:
    """A best side."""
    return Side(config=config, parameters=parameters, measurement=make_measurement(rate))


ALIKE = tuned(TrainConfig(batch_size=64, precision="bf16"))
"""A best side that learns as the baseline does."""


def group_of(*results: Result) -> WorkloadGroup:
    """The one group that results of one workload make."""
    (group,) = compared(*results).groups
    return group


# Groups and rows.


def test_rows_of_one_workload_stand_together_the_fastest_first() -> None:
    """Machines are compared on what they do best, whatever they are called."""
    results = [on_gpu(1200, "slow"), make_result(name="other", fingerprint="f2"), on_gpu(3000, "fast")]
    comparison = compared(*results)
    assert [(group.name, len(group.rows)) for group in comparison.groups] == [("digits", 2), ("other", 1)]
    assert [row.machine for row in comparison.groups[0].rows] == ["fast, 2 CPUs", "slow, 2 CPUs"]
    assert [row.path for row in comparison.groups[0].rows] == ["2.json", "0.json"]


def test_row_holds_before_after_and_what_changed() -> None:
    """All that a table or a script needs, with the intervals."""
    result = make_result(
        baseline=Side(config=TrainConfig(), measurement=make_measurement(1000, spread=0)),
        best=Side(config=TrainConfig(precision="bf16"), measurement=make_measurement(2000, spread=0)),
    )
    (row,) = group_of(result).rows
    assert row.before_samples_per_second == pytest.approx(1000)
    assert row.after_ci95 == pytest.approx(Interval(2000, 2000))
    assert row.speedup == result.speedup
    assert row.changed_knobs == {"precision": ("fp32", "bf16")}
    assert row.knobs == TrainConfig(precision="bf16").model_dump()
    assert (row.hostname, row.device, row.torch, row.status) == ("workstation", "cpu", "2.13.0", "complete")


def test_row_without_a_measurement_has_no_figures_and_comes_last() -> None:
    """What was not measured is null, never 0."""
    unmeasured = make_result(best=Side(config=TrainConfig(), measurement=None), speedup=None)
    rows = group_of(unmeasured, on_gpu(1)).rows
    last = rows[1]
    assert (last.after_samples_per_second, last.after_ci95, last.memory_bytes, last.samples_per_joule) == (None,) * 4


def test_memory_is_the_devices_own_where_it_has_one() -> None:
    """On the CPU it is the host's."""
    measured = make_measurement(1000, device_memory_bytes=3 * GIB, host_memory_bytes=2 * GIB)
    best = Side(config=TrainConfig(), measurement=measured)
    rows = {row.device: row for row in group_of(on_gpu(best=best), make_result(best=best)).rows}
    assert (rows["cuda"].memory_bytes, rows["cuda"].memory_of) == (3 * GIB, "device")
    assert (rows["cpu"].memory_bytes, rows["cpu"].memory_of) == (2 * GIB, "host")


@pytest.mark.parametrize(
    ("telemetry", "expected"),
    [
        (TelemetrySummary(seconds=4.0, energy_joules=800.0, power_watts=150.0), 5.0),
        (TelemetrySummary(seconds=4.0, power_watts=100.0), None),
        (TelemetrySummary(seconds=4.0, energy_joules=0.0), None),
        (TelemetrySummary(seconds=4.0, energy_joules=5e-324), None),
        (TelemetrySummary(seconds=4.0, energy_joules=1e-320), None),
        (TelemetrySummary(seconds=4.0), None),
        (None, None),
    ],
)
def test_samples_per_joule_is_the_objectives_score(telemetry: TelemetrySummary | None, expected: float | None) -> None:
    """800 J in 4 s are 200 W: 1000 samples/s of them are 5 a joule. A card that reports no energy has none."""
    best = Side(config=TrainConfig(), measurement=make_measurement(1000, spread=0, telemetry=telemetry))
    (row,) = group_of(on_gpu(best=best)).rows
    assert row.samples_per_joule == (pytest.approx(expected) if expected is not None else None)


def test_of_several_gpus_no_samples_per_joule_are_told() -> None:
    """The energy of one of them is counted; processors are counted together."""
    telemetry = TelemetrySummary(seconds=4.0, energy_joules=800.0)
    best = Side(config=TrainConfig(ranks=2), measurement=make_measurement(1000, spread=0, telemetry=telemetry))
    assert [group_of(make(best=best)).rows[0].samples_per_joule for make in (on_gpu, make_result)] == [
        None,
        pytest.approx(5.0),
    ]


def test_equal_rates_are_ordered_by_machine_and_time() -> None:
    """The same files give the same table, in whatever order they are named."""
    named = [("a.json", make_result()), ("b.json", make_result(created=make_result().created + LATER))]
    assert compare(Gathered(results=named)) == compare(Gathered(results=named[::-1]))


def test_two_hosts_of_one_kind_are_told_apart() -> None:
    """By their names; a machine that is alone of its kind needs none."""
    rows = group_of(on_gpu(3, hostname="left"), on_gpu(2, hostname="right"), make_result()).rows
    labels = {row.hostname: row.label for row in rows}
    assert labels["left"] == "NVIDIA GeForce RTX 4070, 2 CPUs on left"
    assert labels["right"] == "NVIDIA GeForce RTX 4070, 2 CPUs on right"
    assert labels["workstation"] == "Intel(R) Xeon(R) Gold 6338, 2 CPUs"


def test_same_workload_under_two_targets_is_one() -> None:
    """`train:build` and `train.py:build` are two spellings of one thing."""
    comparison = compared(make_result(), on_gpu(target="train.py:build", best=ALIKE))
    assert (len(comparison.groups), comparison.warnings) == (1, ())


def test_two_devices_of_one_named_machine_are_told_apart() -> None:
    """Each has its own row, label and knobs."""
    rows = group_of(on_gpu(3, machine_name="box"), make_result(machine_name="box")).rows
    assert [(row.label, row.judged) for row in rows] == [("box (cpu)", True), ("box (cuda)", True)]


def test_one_timed_block_leaves_the_rate_uncertain() -> None:
    """It shows no spread, so no machine is the fastest for sure."""
    single = Side(config=TrainConfig(), measurement=make_measurement(1000, blocks=1))
    group = group_of(on_gpu(best=single), make_result(best=tuned(TrainConfig(), 500.0)))
    assert group.rows[0].after_ci95 is None
    assert group.choices[0].endswith("; no certain difference from Intel(R) Xeon(R) Gold 6338, 2 CPUs")


# Shared and particular knobs.


def test_what_all_machines_agree_on_is_shared_and_the_rest_particular() -> None:
    """Of all knobs of the best configs, whether a machine changed them or had them in its baseline."""
    fast = on_gpu(best=tuned(TrainConfig(batch_size=64, precision="bf16", num_workers=8)))
    slow = make_result(best=tuned(TrainConfig(batch_size=64, precision="bf16", num_workers=2)))
    group = group_of(fast, slow)
    assert group.machines == 2
    assert group.shared_knobs == {"precision": "bf16", "prefetch_factor": 2}
    assert group.particular_knobs == {
        "num_workers": {"NVIDIA GeForce RTX 4070, 2 CPUs": 8, "Intel(R) Xeon(R) Gold 6338, 2 CPUs": 2}
    }


def test_a_value_that_only_one_baseline_has_already_is_shared() -> None:
    """What one machine gained by, another trains with from the start."""
    best = tuned(TrainConfig(batch_size=64, num_workers=4))
    group = group_of(on_gpu(best=best, baseline=tuned(best.config)), make_result(best=best))
    assert group.shared_knobs == {"num_workers": 4, "prefetch_factor": 2}


def test_explored_arguments_are_knobs_too() -> None:
    """A machine whose config does not name one has build's own value."""
    best = TrainConfig(batch_size=64)
    group = group_of(on_gpu(best=tuned(best, 3000, max_len=256)), make_result(best=tuned(best)))
    assert list(group.particular_knobs) == ["max_len"]
    assert group.values_text("max_len").startswith("256 on NVIDIA GeForce RTX 4070, 2 CPUs; build's own on Intel")


def test_one_machine_shares_nothing() -> None:
    """However many results it has."""
    group = group_of(make_result(), make_result(created=make_result().created + LATER))
    assert (group.machines, group.shared_knobs, group.particular_knobs) == (1, {}, {})


def test_machines_are_judged_by_their_newest_complete_result() -> None:
    """Older ones and partial ones have rows, and are told."""
    first = make_result().created
    old = make_result(best=tuned(TrainConfig(precision="fp32")))
    new = make_result(best=tuned(TrainConfig(precision="bf16"), 1500), created=first + LATER)
    broken_off = make_result(status="partial", best=tuned(TrainConfig(precision="fp32"), 1), created=first + 2 * LATER)
    comparison = compared(old, new, broken_off, on_gpu())
    (group,) = comparison.groups
    assert [(row.path, row.judged) for row in group.rows] == [
        ("3.json", True), ("0.json", False), ("1.json", True), ("2.json", False),
    ]  # fmt: skip
    assert "precision" in group.shared_knobs
    assert any(warning.startswith("2.json is partial") for warning in comparison.warnings)
    assert any("has 3 results of digits" in w and w.endswith("1.json") for w in comparison.warnings)


def test_a_value_that_was_not_searched_for_is_marked() -> None:
    """A pin, or a knob that a machine does not have, is no finding; accumulation that follows from the batch is one."""
    constraints = make_result().constraints.model_copy(update={"pinned": {"precision": "fp32"}})
    skipped = {"pin_memory": "there is nothing to copy to", "accumulation_steps": "it follows from batch_size"}
    search = make_result().search.model_copy(update={"skipped_knobs": skipped})
    cpu = make_result(constraints=constraints, search=search, best=tuned(TrainConfig(accumulation_steps=2)))
    gpu = on_gpu(best=tuned(TrainConfig(precision="bf16", pin_memory=True), 3000))
    group = group_of(gpu, cpu)
    assert group.values_text("precision").endswith("fp32 on Intel(R) Xeon(R) Gold 6338, 2 CPUs (not searched)")
    assert group.values_text("pin_memory").endswith("false on Intel(R) Xeon(R) Gold 6338, 2 CPUs (not searched)")
    assert "not searched" not in group.values_text("accumulation_steps")


def test_machines_with_one_value_are_named_together() -> None:
    """A knob has a line, not one for each machine."""
    best = [TrainConfig(num_workers=workers) for workers in (8, 8, 2)]
    results = [on_gpu(3 - n, name, best=tuned(best[n])) for n, name in enumerate("abc")]
    assert group_of(*results).values_text("num_workers") == "8 on a, 2 CPUs, b, 2 CPUs; 2 on c, 2 CPUs"


# What makes rows incomparable.


def test_one_target_with_two_fingerprints_is_told() -> None:
    """Two workloads behind one name cannot be compared, and do not share a table."""
    comparison = compared(make_result(), make_result(fingerprint="ffff"))
    assert len(comparison.groups) == 2
    told = "train:build stands for 2 workloads (fingerprints a1b2c3, ffff): they differ in the model, the data"
    assert told in comparison.warnings[0]


def test_what_differs_behind_one_target_is_told_where_it_is_known() -> None:
    """Samples, effective batch, model and optimizer are in the files."""
    model = ModelFacts(name="Net", tensors=4, weights=1000, shapes="aa", optimizer="AdamW")
    left = make_result(samples=1000)
    right = make_result(samples=2000, fingerprint="ffff")
    left, right = (
        one.model_copy(update={"workload": one.workload.model_copy(update={"model": facts})})
        for one, facts in ((left, model), (right, model.model_copy(update={"weights": 2000, "shapes": "bb"})))
    )
    warning = compared(left, right).warnings[0]
    assert "they differ in samples (1,000; 2,000), model (Net with 1,000 weights in 4 tensors; " in warning
    assert "optimizer" not in warning


def test_different_baselines_are_told() -> None:
    """A gain over a slow baseline is not the gain of a fast machine."""
    other = Side(config=TrainConfig(batch_size=64, num_workers=4), measurement=make_measurement(1000))
    (warning,) = compared(make_result(), on_gpu(baseline=other, best=ALIKE)).warnings
    assert warning.startswith("the baselines of digits differ in num_workers, prefetch_factor: ")


def test_configs_that_learn_in_different_ways_are_told() -> None:
    """By another effective batch, or by other arguments of build(): rates say nothing of that."""
    other = tuned(TrainConfig(batch_size=192), max_len=256)
    told = compared(make_result(), on_gpu(best=other)).warnings
    assert "the tuned configs of digits differ in their effective batch (64, 192): they do not train alike" in told
    assert any("give build() different arguments" in warning for warning in told)


@pytest.mark.parametrize(("foreign", "told"), [(0.04, False), (0.46, True)])
def test_a_gain_beside_other_programs_is_named(foreign: float, told: bool) -> None:
    """As `show` says it."""
    result = beside_other_load(foreign)
    words = f"digits on {result.machine}: measured while other load took 46 % of the CPUs: the gain may be larger"
    assert [warning.startswith(words) for warning in compared(result).warnings] == [True] * told


def test_nothing_to_compare_is_an_error_of_the_person_who_named_the_files() -> None:
    """With the status of wrong usage; one row is enough."""
    with pytest.raises(ResultFileError, match="nothing to compare") as caught:
        require_rows(compared(problems=["x.json is broken"]))
    assert caught.value.exit_status == 2
    require_rows(compared(make_result()))


# Crosses.


def test_a_cross_stands_with_its_workload_under_the_names_of_the_rows() -> None:
    """Where it was measured, whose config it was, and what was lost."""
    gpu, cpu = on_gpu(hostname="left", best=ALIKE), make_result()
    comparison = compared(gpu, on_gpu(hostname="right", best=ALIKE), cpu, crosses=[make_cross(gpu, cpu)])
    (cross,) = comparison.groups[0].crosses
    assert (cross.machine, cross.config_of) == (cpu.machine, f"{gpu.machine} on left")
    assert cross.finding.startswith("loses 17 % (13 – 21 %) with the config of NVIDIA GeForce RTX 4070, 2 CPUs")
    assert comparison.warnings == ()


def test_a_cross_without_a_result_of_its_workload_is_told() -> None:
    """It says how a config fares, and there is nothing to set it beside."""
    comparison = compared(make_result(fingerprint="ffff"), crosses=[make_cross()])
    assert comparison.groups[0].crosses == ()
    assert comparison.problems[0].startswith("cross-0.json measures a config of digits (train:build), but no")


def test_a_cross_of_a_config_that_is_outdated_is_told() -> None:
    """One of the machines was tuned again since."""
    old, new = on_gpu(), on_gpu(best=tuned(TrainConfig(precision="fp16")), created=make_result().created + LATER)
    comparison = compared(new, make_result(), crosses=[make_cross(old)])
    assert any(warning.startswith("cross-0.json measured another config of NVIDIA") for warning in comparison.warnings)


def test_comparison_is_json() -> None:
    """`--json` gives the rows, the warnings and the problems as one document."""
    comparison = compared(
        make_result(), on_gpu(), on_gpu(fingerprint="f2"), crosses=[make_cross()], problems=["x.json is broken"]
    )
    assert Comparison.model_validate_json(comparison.model_dump_json()) == comparison
    assert comparison.problems == ("x.json is broken",)


def test_a_speedup_that_is_none_is_none_in_the_row() -> None:
    """With the reason."""
    result = make_result(speedup=None, speedup_reason="there was no time")
    (row,) = group_of(result).rows
    assert (row.speedup, row.speedup_reason) == (None, "there was no time")
    (row,) = group_of(make_result(speedup=Speedup(ratio=2.0, ci95=Interval(1.9, 2.1), pairs=3))).rows
    assert row.speedup is not None
    assert row.speedup.ratio == 2.0
