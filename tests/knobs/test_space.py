"""The space on the machines of the guides and in a small container; its order and its suggestions."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from autotune.errors import ConfigError
from autotune.knobs.config import Scalar, TrainConfig
from tests.hardware.readings import GIB, GUIDES, I5_9400F, MIB, gtx_1660_ti, hardware_of, partitioned_a100, rtx_4070
from tests.spaces import all_loaders, cpu_machine, docker_machine, gpu_machine, make_facts, space_of


@pytest.mark.parametrize(
    ("name", "precisions"),
    [
        ("rtx-3060", ("fp32", "tf32", "bf16", "fp16")),
        ("rtx-4070", ("fp32", "tf32", "bf16", "fp16")),
        ("rtx-a6000", ("fp32", "tf32", "bf16", "fp16")),
        ("rtx-2070", ("fp32", "fp16")),
    ],
)
def test_precisions_that_a_card_has_are_tried(name: str, precisions: tuple[str, ...]) -> None:
    """Tensor cores decide; the reason can be printed."""
    spec, make_card = GUIDES[name]
    choices = space_of(hardware_of(spec, make_card())).choices["precision"]
    assert choices.values == precisions
    assert "tensor cores" in choices.reason


@pytest.mark.parametrize("card", [GUIDES["gtx-1070"][1], gtx_1660_ti], ids=["gtx-1070", "gtx-1660-ti"])
def test_no_half_precision_without_tensor_cores(card: Any) -> None:
    """Neither the choices nor the suggestions hold fp16, and the reason says why."""
    space = space_of(hardware_of(I5_9400F, card()))
    assert "no tensor cores" in space.skipped["precision"]
    assert {config.precision for config in space.suggested()} == {"fp32"}
    assert "flash_attention" not in space.choices["sdpa_backend"].values


@pytest.mark.parametrize("name", GUIDES)
def test_workers_stay_within_the_cpu_budget(name: str) -> None:
    """From none to all usable CPUs, a handful of values, and the suggestions too."""
    spec, make_card = GUIDES[name]
    hardware = hardware_of(spec, make_card())
    space = space_of(hardware, make_facts(num_workers=64))
    workers = space.choices["num_workers"].values
    assert workers[0] == 0
    assert max(workers) == hardware.cpu.budget
    assert len(workers) <= 8
    assert all(config.num_workers <= hardware.cpu.budget for config in space.suggested())


def test_workers_that_are_held_keep_their_number() -> None:
    """Also beyond the CPUs: the order of an iterable data set's samples depends on it."""
    space = space_of(cpu_machine(), make_facts(num_workers=8), held={"num_workers": "the order would change"})
    assert {config.num_workers for config in space.suggested()} == {8}


@pytest.mark.parametrize("name", GUIDES)
def test_waiting_batches_fit_into_shared_memory_and_memory(name: str) -> None:
    """Whatever may run takes half of /dev/shm and an eighth of memory at most, and something may run."""
    spec, make_card = GUIDES[name]
    hardware = hardware_of(spec, make_card())
    assert hardware.memory.shm_bytes is not None
    space = space_of(hardware, make_facts(batch_bytes=300 * MIB))
    limit = min(hardware.memory.shm_bytes // 2, hardware.memory.available_bytes // 8)
    configs = all_loaders(space)
    assert any(config.num_workers > 0 for config in configs)
    for config in (*configs, *space.suggested()):
        batch_bytes = 300 * MIB * config.batch_size / 32
        waiting = config.num_workers * (config.prefetch_factor or 0) + 2 if config.num_workers else 0
        assert waiting * batch_bytes <= limit


@pytest.mark.parametrize("name", GUIDES)
def test_best_guess_turns_everything_on(name: str) -> None:
    """The first suggestion is what the guides advise, as far as the card has it, less what costs minutes: compiling."""
    spec, make_card = GUIDES[name]
    hardware = hardware_of(spec, make_card())
    best = space_of(hardware).suggested()[0]
    assert best.compile_mode is None
    assert best.pin_memory
    assert best.non_blocking
    assert best.persistent_workers
    assert best.cudnn_benchmark
    assert best.optimizer_impl == "fused"
    assert best.num_workers >= 6
    assert best.precision in {"bf16", "fp16"} or hardware.gpus[0].precisions == ("fp32",)
    assert (best.memory_format == "channels_last") == (best.precision != "fp32")


def test_language_model_guide_is_within_reach() -> None:
    """G5's own answer, 32 × 4 with 8 workers and fp16, is a point of the space; so are its 12 workers."""
    spec, make_card = GUIDES["rtx-a6000"]
    facts = make_facts(batch_size=16, accumulation_steps=8, convolves=(), batch_bytes=MIB)
    space = space_of(hardware_of(spec, make_card()), facts)
    advice: dict[str, Scalar] = {
        "batch_size": 32, "num_workers": 8, "prefetch_factor": 4, "precision": "fp16", "pin_memory": True,
        "persistent_workers": True, "non_blocking": True, "compile_mode": "reduce-overhead",
    }  # fmt: skip
    assert all(value in space.choices[knob].values for knob, value in advice.items())
    assert 12 in space.choices["num_workers"].values
    config = space.config(advice)
    assert (config.batch_size, config.accumulation_steps) == (32, 4)
    assert space.violation(config) is None
    assert space.suggested()[0].batch_size == 32
    assert space.suggested()[0].num_workers == 8


def test_transformer_guide_keeps_its_effective_batch() -> None:
    """G2's variants 12 × 4, 8 × 6 and 16 × 3 are all there, and nothing else than 48 in all."""
    spec, make_card = GUIDES["rtx-4070"]
    facts = make_facts(batch_size=12, accumulation_steps=4)
    space = space_of(hardware_of(spec, make_card()), facts)
    assert {8, 12, 16} <= set(space.choices["batch_size"].values)
    sizes = {space.config({"batch_size": size}).effective_batch for size in space.choices["batch_size"].values}
    assert sizes == {48}


def test_slice_gets_candidates_of_its_own() -> None:
    """A MIG slice has tensor cores, and the memory of the slice bounds the batch."""
    hardware = hardware_of(I5_9400F, partitioned_a100())
    facts = make_facts(batch_bytes=10 * GIB)
    space = space_of(hardware, facts, effective_batch=None)
    assert "bf16" in space.choices["precision"].values
    assert space.choices["batch_size"].values == (8, 16, 32)  # 64 would take 20 GiB for the input alone


def test_docker_limits_workers_and_prefetching() -> None:
    """Batches of 4 MiB: half of 64 MB holds eight, so three workers with two each are the most."""
    space = space_of(docker_machine(), effective_batch=None, pinned={"batch_size": 32})
    allowed = {(config.num_workers, config.prefetch_factor) for config in all_loaders(space)}
    assert allowed == {(0, None), (1, 2), (1, 4), (2, 2)}
    assert max(space.choices["num_workers"].values) == 2
    assert space.choices["prefetch_factor"].values == (2, 4)
    assert "/dev/shm" in space.choices["prefetch_factor"].reason


def test_docker_is_named_when_a_config_must_not_run() -> None:
    """The sentence has the figures in it."""
    reason = space_of(docker_machine()).violation(TrainConfig(batch_size=32, num_workers=6, prefetch_factor=4))
    assert reason == (
        "6 workers × 4 batches of 32 samples take 104 MiB, more than the 32.0 MiB that /dev/shm has for them"
    )


def test_batches_too_large_for_any_worker() -> None:
    """Then no workers are tried, nor what depends on them, and the remedy is named."""
    space = space_of(docker_machine(), make_facts(batch_bytes=2 * GIB))
    assert "--shm-size" in space.skipped["num_workers"]
    assert {"prefetch_factor", "persistent_workers"} <= space.skipped.keys()
    assert all(config.num_workers == 0 for config in space.suggested())


def test_baseline_that_does_not_fit_starts_smaller() -> None:
    """The knobs that are not searched must not make every candidate impossible."""
    facts = make_facts(num_workers=6, prefetch_factor=4)
    space = space_of(docker_machine(), facts, only=["precision"])
    assert space.violation(space.start) is None
    # Prefetching is given up before workers: two batches each are enough to keep a worker busy.
    assert (space.start.num_workers, space.start.prefetch_factor) == (3, 2)
    assert space.baseline == facts.baseline


def test_baseline_that_prefetches_less_may_have_more_workers() -> None:
    """Six workers with one batch each fit into 64 MB, and stay among the choices."""
    space = space_of(docker_machine(), make_facts(num_workers=6, prefetch_factor=1), pinned={"batch_size": 32})
    assert space.start == space.baseline
    assert 6 in space.choices["num_workers"].values
    assert 1 in space.choices["prefetch_factor"].values


def test_memory_of_the_baseline_is_granted() -> None:
    """A loader that the person trains with today is no violation, though it takes more than an eighth."""
    hardware = hardware_of(dataclasses.replace(I5_9400F, shm_bytes=64 * GIB), rtx_4070())
    facts = make_facts(num_workers=6, prefetch_factor=4, batch_bytes=200 * MIB)
    space = space_of(hardware, facts)
    assert space.start == facts.baseline
    assert space.violation(facts.baseline) is None
    assert space.violation(facts.baseline.replace(prefetch_factor=8)) is not None


def test_pins_that_cannot_fit_are_refused() -> None:
    """Better one sentence at once than a bus error in every burst."""
    with pytest.raises(ConfigError, match=r"num_workers=6, prefetch_factor=8 pinned, .*--shm-size"):
        space_of(docker_machine(), make_facts(batch_bytes=64 * MIB), pinned={"num_workers": 6, "prefetch_factor": 8})


def test_system_without_shared_memory_is_bounded_by_memory() -> None:
    """On macOS and Windows workers send batches another way."""
    hardware = hardware_of(I5_9400F, rtx_4070())
    memory = hardware.memory.model_copy(update={"shm_bytes": None, "available_bytes": 128 * MIB})
    space = space_of(hardware.model_copy(update={"memory": memory}), pinned={"batch_size": 32})
    assert {config.num_workers for config in all_loaders(space)} == {0, 1}
    assert "of memory" in (space.violation(TrainConfig(batch_size=32, num_workers=4)) or "")


def test_costly_samples_put_the_workers_first() -> None:
    """Where a batch takes long to fetch, the loader is what training waits for."""
    assert next(iter(space_of(gpu_machine(), make_facts(sample_seconds=1e-6)).choices)) == "precision"
    assert next(iter(space_of(gpu_machine(), make_facts(sample_seconds=0.01)).choices)) == "num_workers"


def test_cheap_samples_suggest_no_workers_on_the_cpu() -> None:
    """They would take cores from training and give nothing back."""
    cheap = space_of(cpu_machine(), make_facts(sample_seconds=1e-6, num_workers=4))
    assert cheap.suggested()[0].num_workers == 0
    costly = space_of(cpu_machine(), make_facts(sample_seconds=0.01))
    assert 0 < costly.suggested()[0].num_workers <= 3


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("sample_seconds", [1e-6, 0.01])
def test_suggestions_differ_and_may_run(device: Any, sample_seconds: float) -> None:
    """None is the baseline, none is there twice, none is a violation, all hold the effective batch."""
    space = space_of(gpu_machine(), make_facts(sample_seconds=sample_seconds), device=device)
    suggested = space.suggested()
    assert suggested
    assert len(set(suggested)) == len(suggested)
    assert space.baseline not in suggested
    assert {space.violation(config) for config in suggested} == {None}
    assert {config.effective_batch for config in suggested} == {32}


@pytest.mark.parametrize(("small", "device", "bound"), [(0.9, "cpu", True), (0.1, "cpu", False), (0.9, "cuda", False)])
def test_where_calling_operators_is_the_work_the_space_says_so(small: float, device: Any, bound: bool) -> None:
    """On a CPU; beside a GPU the host's operators are short, and nobody waits for them."""
    assert space_of(gpu_machine(), make_facts(small_operators_fraction=small), device=device).overhead_bound == bound


def test_tiny_operators_suggest_compiling_for_one_thread() -> None:
    """Compiling takes calls away; half precision would add some, and a second thread has nothing to do in them."""
    first, second, *_ = space_of(cpu_machine(), make_facts(small_operators_fraction=0.9)).suggested()
    assert (first.compile_mode, second.compile_mode) == (None, "default")
    assert {(config.num_threads, config.precision) for config in (first, second)} == {(1, "fp32")}
    others = space_of(cpu_machine(), make_facts(small_operators_fraction=0.1)).suggested()
    assert {config.compile_mode for config in others} == {None}


def test_a_free_batch_is_the_better_remedy_for_tiny_operators() -> None:
    """A larger one gives each operator more to do, and costs no compiling."""
    facts = make_facts(small_operators_fraction=0.9)
    free = space_of(cpu_machine(), facts, effective_batch=None)
    assert not free.overhead_bound
    assert free.suggested()[0].num_threads != 1


def test_milder_variants_follow() -> None:
    """What may fail is given up in turn: half precision, the larger batch."""
    first, *milder = space_of(gpu_machine(), make_facts(accumulation_steps=4)).suggested()
    assert first.batch_size == 64
    assert any(config.precision == "fp32" for config in milder)
    assert any(config.batch_size == 32 and config.precision == first.precision for config in milder)


def test_a_changed_candidate_keeps_the_other_knobs() -> None:
    """Of what is searched; accumulation follows the batch size."""
    space = space_of(cpu_machine(), make_facts(accumulation_steps=2))
    point = space.config({"allocator": "tuned", "batch_size": 64})
    changed = space.changed(point, {"batch_size": 16})
    assert (changed.allocator, changed.batch_size, changed.accumulation_steps) == ("tuned", 16, 4)


def test_tuned_baseline_is_not_suggested_again() -> None:
    """A person who has done it all gets nothing that they train with already."""
    space = space_of(cpu_machine(), only=["allocator"], facts=make_facts(allocator="tuned"))
    assert space.suggested() == ()
