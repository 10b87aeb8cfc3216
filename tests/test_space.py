"""Which values are worth trying: on the machines of the guides, in a small container, on the CPU; pins and caps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune.choices import divisors, spread
from autotune.config import KNOBS, Scalar, TrainConfig
from autotune.errors import ConfigError
from autotune.facts import WorkloadFacts
from autotune.hardware import Hardware
from autotune.space import Space, build_space
from tests.hardware.readings import (
    GIB,
    GUIDES,
    I5_9400F,
    MIB,
    SAPPHIRE_RAPIDS,
    HostSpec,
    gtx_1660_ti,
    machine,
    partitioned_a100,
    rtx_4070,
)

UNSET: Any = object()


def make_facts(**changes: Any) -> WorkloadFacts:
    """A workload of images with attention, of fixed shapes; knobs of the baseline may be given by name."""
    knobs = {knob: changes.pop(knob) for knob in tuple(changes) if knob in KNOBS}
    fields: dict[str, Any] = {
        "target": "train:build", "name": "digits", "fingerprint": "a1b2c3", "samples": 50_000,
        "baseline": TrainConfig(**{"batch_size": 32, **knobs}), "parameters": 1_000_000,
        "batch_bytes": 4 * MIB, "sample_seconds": 0.001, "has_images": True, "has_attention": True,
        "fixed_shapes": True, "optimizer_impls": ("default", "foreach", "fused"), "fork_safe": True,
    }  # fmt: skip
    return WorkloadFacts(**{**fields, **changes})


def space_of(
    hardware: Hardware,
    facts: WorkloadFacts | None = None,
    *,
    effective_batch: int | None = UNSET,
    **options: Any,
) -> Space:
    """The space on the best device; the effective batch is the baseline's unless it is given."""
    facts = facts or make_facts()
    effective = facts.baseline.effective_batch if effective_batch is UNSET else effective_batch
    options.setdefault("device", hardware.default_device)
    return build_space(hardware, facts, effective_batch=effective, **options)


@pytest.fixture
def cpu_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hardware:
    """Six cores without bf16, and no GPU."""
    return machine(monkeypatch, tmp_path, I5_9400F)


@pytest.fixture
def gpu_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hardware:
    """Six cores and an RTX 4070."""
    return machine(monkeypatch, tmp_path, I5_9400F, rtx_4070())


@pytest.fixture
def docker_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hardware:
    """The same in Docker, which gives 64 MB of /dev/shm."""
    spec = dataclasses.replace(I5_9400F, shm_bytes=64 * MIB)
    return machine(monkeypatch, tmp_path, spec, rtx_4070())


def all_loaders(space: Space) -> list[TrainConfig]:
    """Every combination of batch and loader that the search may propose and run."""
    knobs = ("batch_size", "num_workers", "prefetch_factor")
    combinations: list[dict[str, Scalar]] = [{}]
    for knob in knobs:
        if knob in space.choices:
            combinations = [
                {**values, knob: value} for values in combinations for value in space.choices[knob].values
            ]
    configs = [space.config(values) for values in combinations]
    return [config for config in configs if space.violation(config) is None]


# --- the machines of the guides ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "precisions"),
    [
        ("rtx-3060", ("fp32", "tf32", "bf16", "fp16")),
        ("rtx-4070", ("fp32", "tf32", "bf16", "fp16")),
        ("rtx-a6000", ("fp32", "tf32", "bf16", "fp16")),
        ("rtx-2070", ("fp32", "fp16")),
    ],
)
def test_precisions_that_a_card_has_are_tried(
    name: str, precisions: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensor cores decide; the reason can be printed."""
    spec, make_card = GUIDES[name]
    choices = space_of(machine(monkeypatch, tmp_path, spec, make_card())).choices["precision"]
    assert choices.values == precisions
    assert "tensor cores" in choices.reason


@pytest.mark.parametrize("card", [GUIDES["gtx-1070"][1], gtx_1660_ti], ids=["gtx-1070", "gtx-1660-ti"])
def test_no_half_precision_without_tensor_cores(
    card: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the choices nor the suggestions hold fp16, and the reason says why."""
    space = space_of(machine(monkeypatch, tmp_path, I5_9400F, card()))
    assert "no tensor cores" in space.skipped["precision"]
    assert {config.precision for config in space.suggested()} == {"fp32"}
    assert "flash_attention" not in space.choices["sdpa_backend"].values


@pytest.mark.parametrize("name", GUIDES)
def test_workers_stay_within_the_cpu_budget(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From none to all usable CPUs, a handful of values, and the suggestions too."""
    spec, make_card = GUIDES[name]
    hardware = machine(monkeypatch, tmp_path, spec, make_card())
    space = space_of(hardware, make_facts(num_workers=64))
    workers = space.choices["num_workers"].values
    assert workers[0] == 0
    assert max(workers) == hardware.cpu.budget
    assert len(workers) <= 8
    assert all(config.num_workers <= hardware.cpu.budget for config in space.suggested())


@pytest.mark.parametrize("name", GUIDES)
def test_waiting_batches_fit_into_shared_memory_and_memory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever may run takes half of /dev/shm and an eighth of memory at most, and something may run."""
    spec, make_card = GUIDES[name]
    hardware = machine(monkeypatch, tmp_path, spec, make_card())
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
def test_best_guess_turns_everything_on(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the guides advise is in the first suggestion, as far as the card has it."""
    spec, make_card = GUIDES[name]
    hardware = machine(monkeypatch, tmp_path, spec, make_card())
    best = space_of(hardware).suggested()[0]
    assert best.pin_memory
    assert best.non_blocking
    assert best.persistent_workers
    assert best.cudnn_benchmark
    assert best.optimizer_impl == "fused"
    assert best.compile_mode == "default"
    assert best.num_workers >= 6
    assert best.precision in {"bf16", "fp16"} or hardware.gpus[0].precisions == ("fp32",)
    assert (best.memory_format == "channels_last") == (best.precision != "fp32")


def test_language_model_guide_is_within_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """G5's own answer, 32 × 4 with 8 workers and fp16, is a point of the space; so is its fallback of 12 workers."""
    spec, make_card = GUIDES["rtx-a6000"]
    facts = make_facts(batch_size=16, accumulation_steps=8, has_images=False, batch_bytes=MIB)
    space = space_of(machine(monkeypatch, tmp_path, spec, make_card()), facts)
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


def test_transformer_guide_keeps_its_effective_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """G2's variants 12 × 4, 8 × 6 and 16 × 3 are all there, and nothing else than 48 in all."""
    spec, make_card = GUIDES["rtx-4070"]
    facts = make_facts(batch_size=12, accumulation_steps=4)
    space = space_of(machine(monkeypatch, tmp_path, spec, make_card()), facts)
    assert {8, 12, 16} <= set(space.choices["batch_size"].values)
    sizes = {
        space.config({"batch_size": size}).effective_batch for size in space.choices["batch_size"].values
    }
    assert sizes == {48}


def test_slice_gets_candidates_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A MIG slice has tensor cores, and the memory of the slice bounds the batch."""
    hardware = machine(monkeypatch, tmp_path, I5_9400F, partitioned_a100())
    facts = make_facts(batch_bytes=10 * GIB)
    space = space_of(hardware, facts, effective_batch=None)
    assert "bf16" in space.choices["precision"].values
    assert space.choices["batch_size"].values == (8, 16, 32)  # 64 would take 20 GiB for the input alone


# --- Docker's 64 MB of shared memory -------------------------------------------------------------------------


def test_docker_limits_workers_and_prefetching(docker_machine: Hardware) -> None:
    """Batches of 4 MiB: half of 64 MB holds eight, so three workers with two each are the most."""
    space = space_of(docker_machine, effective_batch=None, pinned={"batch_size": 32})
    allowed = {(config.num_workers, config.prefetch_factor) for config in all_loaders(space)}
    assert allowed == {(0, None), (1, 2), (1, 4), (2, 2)}
    assert max(space.choices["num_workers"].values) == 2
    assert space.choices["prefetch_factor"].values == (2, 4)
    assert "/dev/shm" in space.choices["prefetch_factor"].reason


def test_docker_is_named_when_a_config_must_not_run(docker_machine: Hardware) -> None:
    """The sentence has the figures in it."""
    reason = space_of(docker_machine).violation(TrainConfig(batch_size=32, num_workers=6, prefetch_factor=4))
    assert (
        reason
        == "6 workers × 4 batches of 32 samples take 104 MiB, more than the 32.0 MiB that /dev/shm has for them"
    )


def test_batches_too_large_for_any_worker(docker_machine: Hardware) -> None:
    """Then no workers are tried, nor what depends on them, and the remedy is named."""
    space = space_of(docker_machine, make_facts(batch_bytes=2 * GIB))
    assert "--shm-size" in space.skipped["num_workers"]
    assert {"prefetch_factor", "persistent_workers"} <= space.skipped.keys()
    assert all(config.num_workers == 0 for config in space.suggested())


def test_baseline_that_does_not_fit_starts_smaller(docker_machine: Hardware) -> None:
    """The knobs that are not searched must not make every candidate impossible."""
    facts = make_facts(num_workers=6, prefetch_factor=4)
    space = space_of(docker_machine, facts, only=["precision"])
    assert space.violation(space.start) is None
    assert space.start.num_workers * (space.start.prefetch_factor or 0) < 6 * 4
    assert space.baseline == facts.baseline


def test_pins_that_cannot_fit_are_refused(docker_machine: Hardware) -> None:
    """Better one sentence at once than a bus error in every burst."""
    with pytest.raises(ConfigError, match=r"num_workers=6, prefetch_factor=8 pinned, .*--shm-size"):
        space_of(
            docker_machine, make_facts(batch_bytes=64 * MIB), pinned={"num_workers": 6, "prefetch_factor": 8}
        )


def test_system_without_shared_memory_is_bounded_by_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On macOS and Windows workers send batches another way."""
    hardware = machine(monkeypatch, tmp_path, I5_9400F, rtx_4070())
    memory = hardware.memory.model_copy(update={"shm_bytes": None, "available_bytes": 128 * MIB})
    space = space_of(hardware.model_copy(update={"memory": memory}), pinned={"batch_size": 32})
    assert {config.num_workers for config in all_loaders(space)} == {0, 1}
    assert "of memory" in (space.violation(TrainConfig(batch_size=32, num_workers=4)) or "")


# --- batch and accumulation ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("effective", "batch", "expected"),
    [
        (48, 12, (1, 2, 3, 4, 6, 8, 12, 16, 24, 48)),
        (128, 32, (2, 4, 8, 16, 32, 64, 128)),
        (30, 30, (2, 3, 5, 6, 10, 15, 30)),
    ],
)
def test_divisors_of_the_effective_batch(
    gpu_machine: Hardware, effective: int, batch: int, expected: tuple[int, ...]
) -> None:
    """All of them, but for those so small that launching costs more than computing."""
    space = space_of(gpu_machine, make_facts(batch_size=batch), effective_batch=effective)
    assert space.choices["batch_size"].values == expected
    assert "accumulation_steps" in space.skipped


def test_many_divisors_are_thinned_out(gpu_machine: Hardware) -> None:
    """At most ten, well spread, and the baseline's own among them."""
    space = space_of(gpu_machine, make_facts(batch_size=36), effective_batch=5040)
    values = space.choices["batch_size"].values
    assert len(values) == 10
    assert 36 in values
    assert values[-1] == 5040


def test_baseline_that_does_not_divide_starts_at_the_nearest(gpu_machine: Hardware) -> None:
    """A new effective batch of 32 cannot hold micro-batches of 12."""
    space = space_of(gpu_machine, make_facts(batch_size=12), effective_batch=32)
    assert (space.start.batch_size, space.start.accumulation_steps) == (8, 4)
    assert space.baseline.batch_size == 12


def test_prime_effective_batch_has_no_choice(gpu_machine: Hardware) -> None:
    """97 × 1 it is, and the reason says so."""
    space = space_of(gpu_machine, make_facts(batch_size=97))
    assert "no other divisor" in space.skipped["batch_size"]


def test_batch_larger_than_the_data_set_is_not_tried(gpu_machine: Hardware) -> None:
    """It would never be filled."""
    space = space_of(gpu_machine, make_facts(samples=40, batch_size=16, accumulation_steps=8))
    assert max(space.choices["batch_size"].values) == 32


def test_free_effective_batch_doubles_and_halves(gpu_machine: Hardware) -> None:
    """From a quarter of the baseline up to where the data set ends; nothing is accumulated."""
    facts = make_facts(batch_size=12, accumulation_steps=4, samples=100)
    space = space_of(gpu_machine, facts, effective_batch=None)
    assert space.choices["batch_size"].values == (3, 6, 12, 24, 48, 96)
    assert space.start.accumulation_steps == 1
    assert "free" in space.skipped["accumulation_steps"]


def test_free_effective_batch_without_searching_it(gpu_machine: Hardware) -> None:
    """What is not searched stays as the baseline has it."""
    facts = make_facts(batch_size=12, accumulation_steps=4)
    space = space_of(gpu_machine, facts, effective_batch=None, only=["precision"])
    assert (space.start.batch_size, space.start.accumulation_steps) == (12, 4)


def test_config_refuses_a_batch_that_does_not_divide(gpu_machine: Hardware) -> None:
    """A sampler cannot leave the effective batch by accident."""
    with pytest.raises(ConfigError, match="does not divide the effective batch of 32"):
        space_of(gpu_machine).config({"batch_size": 12})


# --- pins, --only, --max-workers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pinned",
    [
        {"precision": "fp32"},
        {"num_workers": 2, "prefetch_factor": 8},
        {"batch_size": 16},
        {"accumulation_steps": 4},
        {"pin_memory": False, "compile_mode": None},
        {"prefetch_factor": 4},
        {"persistent_workers": True},
    ],
)
def test_pins_hold_in_every_candidate(gpu_machine: Hardware, pinned: Mapping[str, Scalar]) -> None:
    """In whatever the search asks for, in the suggestions, and in the start, where it has an effect."""
    space = space_of(gpu_machine, pinned=pinned)
    assert not set(pinned) & space.choices.keys()
    assert not set(pinned) & space.skipped.keys()
    wanted: dict[str, Scalar] = {knob: choices.values[-1] for knob, choices in space.choices.items()}
    for config in (space.config(wanted), *space.suggested()):
        assert config == config.replace(**pinned)
        assert config.effective_batch == 32


def test_pinned_batch_fixes_the_accumulation(gpu_machine: Hardware) -> None:
    """And the other way round."""
    by_batch = space_of(gpu_machine, pinned={"batch_size": 8})
    assert (by_batch.start.batch_size, by_batch.start.accumulation_steps) == (8, 4)
    by_steps = space_of(gpu_machine, pinned={"accumulation_steps": 4})
    assert (by_steps.start.batch_size, by_steps.start.accumulation_steps) == (8, 4)
    assert "batch_size" not in by_steps.choices


@pytest.mark.parametrize(
    ("pinned", "message"),
    [
        ({"batch_size": 12}, "12 does not divide the effective batch of 32.*--effective-batch free"),
        ({"accumulation_steps": 5}, "accumulation_steps=5 is pinned.*--effective-batch free"),
        ({"batch_size": 8, "accumulation_steps": 2}, "pin only one, or pass --effective-batch 16"),
        ({"bach_size": 8}, "'bach_size' is no knob; the knobs are batch_size"),
        ({"precision": "int8"}, "precision='int8' cannot be used"),
        ({"prefetch_factor": 0}, "prefetch_factor=0 cannot be used"),
    ],
)
def test_pins_that_contradict_are_refused(
    gpu_machine: Hardware, pinned: Mapping[str, Scalar], message: str
) -> None:
    """With the remedy in the message."""
    with pytest.raises(ConfigError, match=message):
        space_of(gpu_machine, pinned=pinned)


def test_free_effective_batch_takes_any_pin(gpu_machine: Hardware) -> None:
    """Both may be pinned then."""
    start = space_of(
        gpu_machine, effective_batch=None, pinned={"batch_size": 7, "accumulation_steps": 3}
    ).start
    assert (start.batch_size, start.accumulation_steps) == (7, 3)


def test_only_restricts_what_is_searched(gpu_machine: Hardware) -> None:
    """The other knobs hold the baseline's values, and say why."""
    space = space_of(gpu_machine, make_facts(num_workers=2), only=["precision", "optimizer_impl"])
    assert set(space.choices) == {"precision", "optimizer_impl"}
    assert "--only" in space.skipped["num_workers"]
    assert space.config({"precision": "bf16"}) == space.baseline.replace(precision="bf16")


def test_accumulation_alone_means_the_batch(gpu_machine: Hardware) -> None:
    """At a held effective batch the two are one choice."""
    assert set(space_of(gpu_machine, only=["accumulation_steps"]).choices) == {"batch_size"}


def test_only_with_a_knob_that_does_not_apply(cpu_machine: Hardware) -> None:
    """It is skipped for its own reason."""
    space = space_of(cpu_machine, only=["pin_memory"])
    assert space.choices == {}
    assert "cpu" in space.skipped["pin_memory"]


def test_unknown_knob_to_search_is_refused(gpu_machine: Hardware) -> None:
    """A slip of the finger must not search everything else, or nothing."""
    with pytest.raises(ConfigError, match="'precison' is no knob"):
        space_of(gpu_machine, only=["precison"])


@pytest.mark.parametrize("most", [0, 1, 3])
def test_worker_cap_is_honoured_everywhere(gpu_machine: Hardware, most: int) -> None:
    """In the start, though the baseline has more, in the choices, the suggestions and the check."""
    space = space_of(gpu_machine, make_facts(num_workers=8, sample_seconds=0.01), max_workers=most)
    assert space.baseline.num_workers == 8
    assert space.start.num_workers <= most
    assert all(config.num_workers <= most for config in (*all_loaders(space), *space.suggested()))
    assert space.violation(TrainConfig(num_workers=most + 1)) == (
        f"{most + 1} workers are more than the {most} that are allowed"
    )


def test_worker_cap_above_the_budget_changes_nothing(gpu_machine: Hardware) -> None:
    """Six CPUs carry six workers, whatever is allowed."""
    assert max(space_of(gpu_machine, max_workers=64).choices["num_workers"].values) == 6


def test_pinned_workers_above_the_cap_are_refused(gpu_machine: Hardware) -> None:
    """Two caps that contradict each other are a mistake."""
    with pytest.raises(ConfigError, match=r"num_workers=4 is pinned, but at most 2 .*--max-workers"):
        space_of(gpu_machine, pinned={"num_workers": 4}, max_workers=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_workers": -1}, "max_workers=-1"),
        ({"effective_batch": 0}, "the effective batch 0"),
        ({"explored": {"max_len": ()}}, "--explore max_len=a,b"),
        ({"device": "mps"}, "'mps' was asked for, but this machine has none"),
    ],
)
def test_options_out_of_range_are_refused(
    gpu_machine: Hardware, options: dict[str, Any], message: str
) -> None:
    """Each names what came, and what to do."""
    with pytest.raises(ConfigError, match=message):
        space_of(gpu_machine, **options)


def test_explored_arguments_are_handed_on(gpu_machine: Hardware) -> None:
    """They are the person's own, so nothing is added and nothing left out."""
    assert space_of(gpu_machine, explored={"max_len": (256, 384)}).parameters == {"max_len": (256, 384)}


# --- which knobs apply ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("images", [True, False])
@pytest.mark.parametrize("effective", [32, None])
@pytest.mark.parametrize("pinned", [{}, {"precision": "fp32", "num_workers": 0}])
def test_every_knob_is_accounted_for(
    gpu_machine: Hardware, device: Any, images: bool, effective: int | None, pinned: dict[str, Scalar]
) -> None:
    """Each is searched with two values at least, or skipped with a sentence, or pinned; never two of these."""
    facts = make_facts(has_images=images, has_attention=images, fixed_shapes=images)
    space = space_of(gpu_machine, facts, effective_batch=effective, device=device, pinned=pinned)
    assert sorted([*space.choices, *space.skipped, *pinned]) == sorted(KNOBS)
    assert all(space.skipped.values())
    for knob, choices in space.choices.items():
        assert len(set(choices.values)) >= 2
        assert choices.reason
        for value in choices.values:
            space.config({knob: value})


@pytest.mark.parametrize(
    ("knob", "facts"),
    [
        ("memory_format", make_facts(has_images=False)),
        ("sdpa_backend", make_facts(has_attention=False)),
        ("cudnn_benchmark", make_facts(fixed_shapes=False)),
        ("optimizer_impl", make_facts(optimizer_impls=("default",))),
        ("num_workers", make_facts(samples=None)),
    ],
)
def test_knob_that_the_workload_gives_no_use(gpu_machine: Hardware, knob: str, facts: WorkloadFacts) -> None:
    """It is searched with the facts that call for it, and skipped without."""
    assert knob in space_of(gpu_machine).choices
    assert knob in space_of(gpu_machine, facts).skipped


def test_cpu_has_its_own_knobs(cpu_machine: Hardware) -> None:
    """Threads and the allocator, but nothing that belongs to GPUs."""
    space = space_of(cpu_machine)
    assert {"num_threads", "allocator", "memory_format"} <= space.choices.keys()
    assert {"pin_memory", "non_blocking", "cudnn_benchmark", "sdpa_backend"} <= space.skipped.keys()
    assert space.choices["compile_mode"].values == (None, "default")
    assert "precision" in space.skipped


def test_cpu_with_bf16_instructions_tries_bf16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fp16 is not offered on any CPU."""
    space = space_of(machine(monkeypatch, tmp_path, SAPPHIRE_RAPIDS))
    assert space.choices["precision"].values == ("fp32", "bf16")
    assert space.suggested()[0].allocator == "tuned"


@pytest.mark.parametrize(
    ("spec", "threads"),
    [
        (I5_9400F, (None, 1, 3, 4)),  # torch takes 6 by itself
        (HostSpec(cores=4, threads_per_core=2), (None, 2, 4, 6, 8)),
        (HostSpec(cores=2), (None, 1)),
    ],
)
def test_threads_within_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: HostSpec, threads: tuple[int | None, ...]
) -> None:
    """A few values, and none that is the same as torch's own."""
    assert space_of(machine(monkeypatch, tmp_path, spec)).choices["num_threads"].values == threads


def test_single_cpu_has_no_threads_to_choose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one way to use it; a worker beside training may still help where samples wait for the disk."""
    space = space_of(machine(monkeypatch, tmp_path, HostSpec(cores=1)))
    assert "num_threads" in space.skipped
    assert space.choices["num_workers"].values == (0, 1)


@pytest.mark.parametrize(
    ("system", "offered"), [("Windows-11", False), ("macOS-15", False), ("Linux 6.8", True)]
)
def test_allocator_of_the_cpu_needs_glibc(cpu_machine: Hardware, system: str, offered: bool) -> None:
    """Other systems have no such switch."""
    software = cpu_machine.software.model_copy(update={"os": system})
    space = space_of(cpu_machine.model_copy(update={"software": software}))
    assert ("allocator" in space.choices) is offered


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_compiling_needs_a_budget(gpu_machine: Hardware, device: Any) -> None:
    """In less than three minutes its time is not won back."""
    assert "compile_mode" in space_of(gpu_machine, device=device, budget_seconds=180.0).choices
    skipped = space_of(gpu_machine, device=device, budget_seconds=60.0).skipped
    assert "too short to win that back" in skipped["compile_mode"]


@pytest.mark.parametrize(
    ("fixed", "budget", "modes"),
    [
        (True, 600.0, (None, "default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")),
        (False, 600.0, (None, "default", "max-autotune-no-cudagraphs")),
        (True, 300.0, (None, "default", "reduce-overhead")),
    ],
)
def test_modes_of_compiling_on_a_gpu(
    gpu_machine: Hardware, fixed: bool, budget: float, modes: tuple[str | None, ...]
) -> None:
    """CUDA graphs want fixed shapes, and the thorough modes want time."""
    space = space_of(gpu_machine, make_facts(fixed_shapes=fixed), budget_seconds=budget)
    assert space.choices["compile_mode"].values == modes


def test_own_value_is_always_among_the_choices(gpu_machine: Hardware) -> None:
    """Else a knob could not be put back, and the person's own idea would not be tried."""
    facts = make_facts(sdpa_backend="math", num_workers=3, prefetch_factor=3, compile_mode="max-autotune")
    space = space_of(gpu_machine, facts, budget_seconds=200.0)
    for knob in ("sdpa_backend", "num_workers", "prefetch_factor", "compile_mode"):
        assert getattr(facts.baseline, knob) in space.choices[knob].values


def test_iterable_data_set_gets_workers_only_on_request(gpu_machine: Hardware) -> None:
    """Without sharding each worker would repeat every sample: faster, and wrong."""
    facts = make_facts(samples=None)
    assert "repeats its samples" in space_of(gpu_machine, facts).skipped["num_workers"]
    assert all(config.num_workers == 0 for config in space_of(gpu_machine, facts).suggested())
    assert "num_workers" in space_of(gpu_machine, facts, only=["num_workers"]).choices
    assert "num_workers" in space_of(gpu_machine, make_facts(samples=None, num_workers=2)).choices


def test_flash_attention_needs_half_precision(gpu_machine: Hardware) -> None:
    """In fp32 there is no such kernel: that burst would only fail."""
    space = space_of(gpu_machine)
    flash = TrainConfig(sdpa_backend="flash_attention", precision="tf32")
    assert "bf16 or fp16 only" in (space.violation(flash) or "")
    assert space.violation(flash.replace(precision="bf16")) is None


# --- order and suggestions -----------------------------------------------------------------------------------


def test_costly_samples_put_the_workers_first(gpu_machine: Hardware) -> None:
    """Where a batch takes long to fetch, the loader is what training waits for."""
    assert next(iter(space_of(gpu_machine, make_facts(sample_seconds=1e-6)).choices)) == "precision"
    assert next(iter(space_of(gpu_machine, make_facts(sample_seconds=0.01)).choices)) == "num_workers"


def test_cheap_samples_suggest_no_workers_on_the_cpu(cpu_machine: Hardware) -> None:
    """They would take cores from training and give nothing back."""
    cheap = space_of(cpu_machine, make_facts(sample_seconds=1e-6, num_workers=4))
    assert cheap.suggested()[0].num_workers == 0
    costly = space_of(cpu_machine, make_facts(sample_seconds=0.01))
    assert 0 < costly.suggested()[0].num_workers <= 3


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("sample_seconds", [1e-6, 0.01])
def test_suggestions_differ_and_may_run(gpu_machine: Hardware, device: Any, sample_seconds: float) -> None:
    """None is the baseline, none is there twice, none is a violation, all hold the effective batch."""
    space = space_of(gpu_machine, make_facts(sample_seconds=sample_seconds), device=device)
    suggested = space.suggested()
    assert len(suggested) >= 2
    assert len(set(suggested)) == len(suggested)
    assert space.baseline not in suggested
    assert {space.violation(config) for config in suggested} == {None}
    assert {config.effective_batch for config in suggested} == {32}


def test_milder_variants_follow(gpu_machine: Hardware) -> None:
    """What may fail is given up in turn: compiling, half precision, the larger batch."""
    first, *milder = space_of(gpu_machine, make_facts(accumulation_steps=4)).suggested()
    assert first.batch_size == 64
    assert any(config.compile_mode is None and config.precision == first.precision for config in milder)
    assert any(config.precision == "fp32" and config.compile_mode == "default" for config in milder)
    assert any(config.batch_size == 32 and config.precision == first.precision for config in milder)
    assert any(config.compile_mode == "reduce-overhead" for config in milder)


def test_tuned_baseline_is_not_suggested_again(cpu_machine: Hardware) -> None:
    """A person who has done it all gets nothing that they train with already."""
    space = space_of(cpu_machine, only=["allocator"], facts=make_facts(allocator="tuned"))
    assert space.suggested() == ()


# --- arithmetic ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "expected"), [(1, (1,)), (12, (1, 2, 3, 4, 6, 12)), (49, (1, 7, 49))])
def test_divisors(number: int, expected: tuple[int, ...]) -> None:
    """All of them, in order, squares once."""
    assert divisors(number) == expected


def test_spread_keeps_the_ends_and_the_wanted_value() -> None:
    """Fewer values than asked for are left alone."""
    assert spread([4, 1, 2, 2], 5) == (1, 2, 4)
    kept = spread(range(1, 101), 5, keep=37)
    assert len(kept) == 5
    assert {1, 37, 100} <= set(kept)
