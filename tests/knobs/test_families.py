"""The families: which of their knobs apply, with which values, and why."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from autotune.errors import ConfigError
from autotune.hardware.model import Gpu, Hardware
from autotune.knobs.batch import divisors, spread
from autotune.knobs.config import KNOB_NAMES, Scalar, TrainConfig
from autotune.knobs.facts import WorkloadFacts
from autotune.knobs.loader import REPEATED
from autotune.knobs.registry import idle_knobs
from autotune.recorder.samplers import FEEDBACK
from tests.hardware.readings import I5_9400F, SAPPHIRE_RAPIDS, HostSpec, hardware_of, rtx_2070
from tests.spaces import cpu_machine, gpu_machine, make_facts, space_of, space_where_lengths_vary


@functools.cache
def with_processors(count: int) -> Hardware:
    """The machine, its GPU with so many multiprocessors."""
    machine = gpu_machine()
    return machine.model_copy(update={"gpus": (machine.gpus[0].model_copy(update={"sm_count": count}),)})


@pytest.mark.parametrize(
    ("effective", "batch", "expected"),
    [
        (48, 12, (1, 2, 3, 4, 6, 8, 12, 16, 24, 48)),
        (128, 32, (2, 4, 8, 16, 32, 64, 128)),
        (30, 15, (1, 2, 3, 5, 6, 10, 15, 30)),
    ],
)
def test_divisors_of_the_effective_batch(effective: int, batch: int, expected: tuple[int, ...]) -> None:
    """All of them, but for those so small that launching costs more than computing."""
    space = space_of(gpu_machine(), make_facts(batch_size=batch), effective_batch=effective)
    assert space.choices["batch_size"].values == expected
    assert "accumulation_steps" in space.skipped


@pytest.mark.parametrize("options", [{}, {"only": ("batch_size",)}, {"effective_batch": None}])
def test_where_the_loss_is_no_average_micro_batches_keep_their_size(options: dict[str, Any]) -> None:
    """Unless you ask for others."""
    space = space_of(cpu_machine(), make_facts(batch_size=32, accumulation_steps=2, coupling=0.28), **options)
    assert ("batch_size" in space.choices) == bool(options)
    assert options or "(it differs by 28% from those of its halves)" in space.skipped["batch_size"]


def test_many_divisors_are_thinned_out() -> None:
    """At most ten, well spread, and the baseline's own among them."""
    space = space_of(gpu_machine(), make_facts(batch_size=36), effective_batch=5040)
    values = space.choices["batch_size"].values
    assert len(values) == 10
    assert 36 in values
    assert values[-1] == 5040


def test_baseline_that_does_not_divide_starts_at_the_nearest() -> None:
    """A new effective batch of 32 cannot hold micro-batches of 12."""
    space = space_of(gpu_machine(), make_facts(batch_size=12), effective_batch=32)
    assert (space.start.batch_size, space.start.accumulation_steps) == (8, 4)
    assert space.baseline.batch_size == 12


def test_prime_effective_batch_has_no_choice() -> None:
    """97 × 1 it is, and the reason says so."""
    space = space_of(cpu_machine(), make_facts(batch_size=97))
    assert "no other divisor" in space.skipped["batch_size"]


def test_batch_larger_than_the_data_set_is_not_tried() -> None:
    """It would never be filled."""
    space = space_of(gpu_machine(), make_facts(samples=40, batch_size=16, accumulation_steps=8))
    assert max(space.choices["batch_size"].values) == 32


def test_free_effective_batch_doubles_and_halves() -> None:
    """From a quarter of the baseline up to where the data set ends; nothing is accumulated."""
    facts = make_facts(batch_size=12, accumulation_steps=4, samples=100)
    space = space_of(gpu_machine(), facts, effective_batch=None)
    assert space.choices["batch_size"].values == (3, 6, 12, 24, 48, 96)
    assert space.start.accumulation_steps == 1
    assert "free" in space.skipped["accumulation_steps"]


def test_free_effective_batch_without_searching_it() -> None:
    """What is not searched stays as the baseline has it."""
    facts = make_facts(batch_size=12, accumulation_steps=4)
    space = space_of(gpu_machine(), facts, effective_batch=None, only=["precision"])
    assert (space.start.batch_size, space.start.accumulation_steps) == (12, 4)


def test_config_refuses_a_batch_that_does_not_divide() -> None:
    """A sampler cannot leave the effective batch by accident."""
    with pytest.raises(ConfigError, match="does not divide the effective batch of 32"):
        space_of(gpu_machine()).config({"batch_size": 12})


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("images", [True, False])
@pytest.mark.parametrize("effective", [32, None])
@pytest.mark.parametrize("pinned", [{}, {"precision": "fp32", "num_workers": 0}])
def test_every_knob_is_accounted_for(
    device: Any, images: bool, effective: int | None, pinned: dict[str, Scalar]
) -> None:
    """Each is searched with at least two values, or skipped with a sentence, or pinned; just one of these."""
    facts = make_facts(convolves=(2,) if images else (), has_attention=images, fixed_shapes=images)
    space = space_of(gpu_machine(), facts, effective_batch=effective, device=device, pinned=pinned)
    assert sorted([*space.choices, *space.skipped, *pinned]) == sorted(KNOB_NAMES)
    assert all(space.skipped.values())
    for knob, choices in space.choices.items():
        assert len(set(choices.values)) >= 2
        assert choices.reason
        for value in choices.values:
            space.config({knob: value})


@pytest.mark.parametrize(
    ("knob", "facts"),
    [
        ("memory_format", make_facts(convolves=(1, 3))),
        ("sdpa_backend", make_facts(has_attention=False)),
        ("cudnn_benchmark", make_facts(convolves=())),
        ("cudnn_benchmark", make_facts(fixed_shapes=False)),
        ("cudnn_benchmark", make_facts(deterministic=True)),
        ("optimizer_impl", make_facts(optimizer_impls=("default",))),
        ("num_workers", make_facts(copied_reason=REPEATED)),
    ],
)
def test_knob_that_the_workload_gives_no_use(knob: str, facts: WorkloadFacts) -> None:
    """It is searched with the facts that call for it, and skipped without."""
    assert knob in space_of(gpu_machine()).choices
    assert knob in space_of(gpu_machine(), facts).skipped


def test_cpu_has_its_own_knobs() -> None:
    """Threads and the allocator, but nothing that belongs to GPUs."""
    space = space_of(cpu_machine())
    assert {"num_threads", "allocator", "memory_format"} <= space.choices.keys()
    assert {"pin_memory", "non_blocking", "cudnn_benchmark", "sdpa_backend"} <= space.skipped.keys()
    assert space.choices["compile_mode"].values == (None, "default")
    assert "precision" in space.skipped


@pytest.mark.parametrize(
    ("kind", "searched", "skipped"),
    [
        ("rocm", {"pin_memory", "non_blocking", "compile_mode", "sdpa_backend"}, {"cudnn_benchmark", "allocator"}),
        (
            "mps",
            {"num_workers", "memory_format", "precision"},
            {"pin_memory", "non_blocking", "compile_mode", "sdpa_backend", "allocator"},
        ),
    ],
)
def test_other_gpus_get_what_applies_to_them(kind: Any, searched: set[str], skipped: set[str]) -> None:
    """AMD's copies batches to memory of its own, Apple's does not; neither has cuDNN."""
    gpu = Gpu(kind=kind, index=0, name="a GPU", precisions=("fp32", "fp16"), precision_reason="it computes in fp16")
    space = space_of(cpu_machine().model_copy(update={"gpus": (gpu,)}))
    assert searched <= space.choices.keys()
    assert skipped <= space.skipped.keys()
    assert space.suggested()[0].precision == "fp16"


def test_cpu_with_bf16_instructions_tries_bf16() -> None:
    """fp16 is not offered on any CPU."""
    space = space_of(hardware_of(SAPPHIRE_RAPIDS))
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
def test_threads_within_the_budget(spec: HostSpec, threads: tuple[int | None, ...]) -> None:
    """A few values, and none that is the same as torch's own."""
    assert space_of(hardware_of(spec)).choices["num_threads"].values == threads


@pytest.mark.parametrize(("cores", "threads"), [(16, (None, 1, 2, 4)), (2, (None, 1))])
def test_few_threads_beside_a_gpu(cores: int, threads: tuple[int | None, ...]) -> None:
    """They compute little there, and wait in the way of all else; nothing is guessed without a measurement."""
    space = space_of(hardware_of(HostSpec(cores=cores), rtx_2070()))
    assert space.choices["num_threads"].values == threads
    assert "num_threads" not in space.preferred


@pytest.mark.parametrize(
    ("busy", "precisions", "first"), [(0.1, ("fp32",), 48), (0.95, ("fp32",), 24), (0.95, ("fp32", "bf16"), 48)]
)
def test_micro_batches_are_merged_first_where_the_gpu_waits_for_launches(
    busy: float, precisions: tuple[str, ...], first: int
) -> None:
    """Whatever the precision; a GPU that is busy gets twice the batch only in half precision."""
    machine = gpu_machine()
    card = machine.gpus[0].model_copy(update={"precisions": precisions})
    machine = machine.model_copy(update={"gpus": (card,)})
    facts = make_facts(batch_size=24, accumulation_steps=2, device_busy_fraction=busy)
    assert space_of(machine, facts).suggested()[0].batch_size == first


def test_merged_micro_batches_must_fit() -> None:
    """Weights, their optimizer's state and the batch take memory at least."""
    facts = make_facts(batch_size=24, accumulation_steps=2, device_busy_fraction=0.1, parameters=10**9)
    assert space_of(gpu_machine(), facts).suggested()[0].batch_size == 24


def test_single_cpu_has_no_threads_to_choose() -> None:
    """There is one way to use it; a worker beside training may still help where samples wait for the disk."""
    space = space_of(hardware_of(HostSpec(cores=1)))
    assert "num_threads" in space.skipped
    assert space.choices["num_workers"].values == (0, 1)


@pytest.mark.parametrize(("system", "offered"), [("Windows-11", False), ("macOS-15", False), ("Linux 6.8", True)])
def test_allocator_of_the_cpu_needs_glibc(system: str, offered: bool) -> None:
    """Other systems have no such switch."""
    software = cpu_machine().software.model_copy(update={"os": system})
    space = space_of(cpu_machine().model_copy(update={"software": software}))
    assert ("allocator" in space.choices) is offered


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_compiling_needs_a_budget(device: Any) -> None:
    """In less than three minutes it does not break even."""
    assert "compile_mode" in space_of(gpu_machine(), device=device, budget_seconds=180.0).choices
    skipped = space_of(gpu_machine(), device=device, budget_seconds=59.0).skipped
    assert "cannot break even within" in skipped["compile_mode"]


def test_cuda_graphs_alone_need_less() -> None:
    """Nothing is compiled for them but the trace: recorded in seconds, on NVIDIA's GPUs and for fixed shapes."""
    assert space_of(gpu_machine(), budget_seconds=60.0).choices["compile_mode"].values == (None, "cudagraphs")
    assert "compile_mode" in space_of(gpu_machine(), make_facts(fixed_shapes=False), budget_seconds=60.0).skipped
    assert "compile_mode" in space_of(cpu_machine(), budget_seconds=60.0).skipped
    assert idle_knobs(TrainConfig(compile_mode="cudagraphs"), "rocm") == ("compile_mode",)


@pytest.mark.parametrize(("seconds", "small", "tried"), [(90, 0.9, True), (89, 0.9, False), (90, 0.1, False)])
def test_tiny_operators_are_compiled_in_a_shorter_budget(seconds: float, small: float, tried: bool) -> None:
    """Compiling promises most where calling operators is most of the work."""
    space = space_of(cpu_machine(), make_facts(small_operators_fraction=small), budget_seconds=seconds)
    assert ("compile_mode" in space.choices) == tried


@pytest.mark.parametrize(
    ("fixed", "budget", "processors", "modes"),
    [
        (
            True, 1200.0, 132,
            (None, "default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune", "cudagraphs"),
        ),
        (False, 1200.0, 132, (None, "default", "max-autotune-no-cudagraphs")),
        (True, 600.0, 132, (None, "default", "reduce-overhead", "cudagraphs")),
        (True, 1200.0, 46, (None, "default", "reduce-overhead", "cudagraphs")),
    ],
)  # fmt: skip
def test_modes_of_compiling_on_a_gpu(
    fixed: bool, budget: float, processors: int, modes: tuple[str | None, ...]
) -> None:
    """CUDA graphs want fixed shapes; the thorough modes want time, and a GPU on which torch searches products."""
    space = space_of(with_processors(processors), make_facts(fixed_shapes=fixed), budget_seconds=budget)
    assert space.choices["compile_mode"].values == modes


def test_foreach_is_no_choice_where_torch_makes_it() -> None:
    """On CUDA the optimizer's default is the foreach form: trying it would be the baseline again."""
    assert space_of(gpu_machine()).choices["optimizer_impl"].values == ("default", "fused")
    assert "foreach" in space_of(cpu_machine()).choices["optimizer_impl"].values


def test_smaller_micro_batches_are_not_tried_beside_a_gpu() -> None:
    """The baseline fits, so they only launch more kernels; the reason says what would bring larger ones."""
    space = space_of(gpu_machine(), make_facts(batch_size=64))
    assert "--effective-batch free" in space.skipped["batch_size"]
    assert 32 in space_of(cpu_machine(), make_facts(batch_size=64)).choices["batch_size"].values


@pytest.mark.parametrize(("busy", "seconds", "tried"), [(0.1, 100.0, True), (0.9, 59.0, False), (None, 59.0, False)])
def test_a_gpu_that_waits_for_launches_gets_graphs_early(busy: float | None, seconds: float, tried: bool) -> None:
    """Where it computes a tenth of the time, CUDA graphs are the second guess, and half precision is none."""
    space = space_of(gpu_machine(), make_facts(device_busy_fraction=busy), budget_seconds=seconds)
    assert ("compile_mode" in space.choices) == tried
    if tried:
        first, second, *_ = space.suggested()
        assert second == first.replace(compile_mode="reduce-overhead")
        assert first.precision == "fp32"


@pytest.mark.parametrize(("step_seconds", "workers"), [(0.4, 1), (0.04, 4), (0.004, 6)])
def test_as_many_workers_as_feed_the_gpu_are_guessed(step_seconds: float, workers: int) -> None:
    """Batches of 32 ms for steps of a known length, with something to spare; all CPUs where even they are too few."""
    space = space_of(gpu_machine(), make_facts(step_seconds=step_seconds))
    assert space.preferred["num_workers"] == workers


def test_what_does_not_work_here_is_left_out() -> None:
    """By value, with the reason where no choice is left."""
    broken = {("precision", "fp16"): "it disagrees", ("memory_format", "channels_last"): "it crashed"}
    space = space_of(gpu_machine(), unsound=broken)
    assert space.choices["precision"].values == ("fp32", "tf32", "bf16")
    assert "it crashed" in space.skipped["memory_format"]


def test_own_value_is_always_among_the_choices() -> None:
    """Else a knob could not be reverted, and the person's own idea would not be tried."""
    facts = make_facts(sdpa_backend="math", num_workers=3, prefetch_factor=3, compile_mode="max-autotune")
    space = space_of(gpu_machine(), facts, budget_seconds=200.0)
    for knob in ("sdpa_backend", "num_workers", "prefetch_factor", "compile_mode"):
        assert getattr(facts.baseline, knob) in space.choices[knob].values


def test_iterable_data_set_gets_workers_only_on_request() -> None:
    """Without sharding each worker would repeat every sample: faster, and wrong."""
    facts = make_facts(copied_reason=REPEATED)
    assert "repeats its samples" in space_of(gpu_machine(), facts).skipped["num_workers"]
    assert all(config.num_workers == 0 for config in space_of(gpu_machine(), facts).suggested())
    assert "num_workers" in space_of(gpu_machine(), facts, only=["num_workers"]).choices
    assert "num_workers" in space_of(gpu_machine(), make_facts(copied_reason=REPEATED, num_workers=2)).choices


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_that_training_changes_keeps_its_lead(workers: int) -> None:
    """Another queue draws its indices at other times."""
    facts = make_facts(feedback_reason=FEEDBACK, num_workers=workers)
    skipped = space_of(gpu_machine(), facts).skipped
    assert all(skipped[name].startswith(FEEDBACK) for name in ("num_workers", "prefetch_factor"))
    assert "num_workers" in space_of(gpu_machine(), facts, only=["num_workers"]).choices


def test_flash_attention_needs_ampere() -> None:
    """Tensor cores for fp16 are not enough: its kernels start with compute capability 8.0."""
    turing = space_of(hardware_of(I5_9400F, rtx_2070()))
    assert turing.choices["sdpa_backend"].values == ("default", "efficient_attention")
    ampere = space_of(gpu_machine())
    assert {"flash_attention", "cudnn_attention"} <= set(ampere.choices["sdpa_backend"].values)


@pytest.mark.parametrize(
    ("capability", "packages", "later"),
    [
        ((9, 0), ("flash_attn_interface", "flash_attn.cute"), {"flash_attention_3", "flash_attention_4"}),
        ((10, 0), ("flash_attn_interface", "flash_attn.cute"), {"flash_attention_4"}),
        ((9, 0), (), set()),
        ((8, 9), ("flash_attn_interface", "flash_attn.cute"), set()),
    ],
    ids=["Hopper", "Blackwell", "not installed", "Ada"],
)
def test_later_flash_attention_needs_its_package_and_its_card(
    capability: tuple[int, int], packages: tuple[str, ...], later: set[str]
) -> None:
    """Others are refused by torch when attention runs."""
    hardware = gpu_machine()
    gpu = hardware.gpus[0].model_copy(update={"compute_capability": capability})
    space = space_of(hardware.model_copy(update={"gpus": (gpu,)}), make_facts(packages=packages))
    assert {value for value in space.choices["sdpa_backend"].values if str(value)[-1].isdigit()} == later


@pytest.mark.parametrize(
    ("name", "allowed", "reason"),
    [("NVIDIA GeForce RTX 4090", True, None), ("NVIDIA GeForce RTX 4090", False, "--allow-numerics"),
     ("NVIDIA H100 80GB HBM3", True, "only NVIDIA's GeForce cards")],
)  # fmt: skip
def test_sums_in_fp16_are_for_geforce_cards_by_leave(name: str, allowed: bool, reason: str | None) -> None:
    """Beside fp16 alone."""
    hardware = gpu_machine()
    gpu = hardware.gpus[0].model_copy(update={"name": name})
    space = space_of(hardware.model_copy(update={"gpus": (gpu,)}), make_facts(), allow_numerics=allowed)
    assert reason is None or reason in space.skipped["fp16_accumulation"]
    assert ("fp16_accumulation" in space.choices) == (reason is None)
    in_fp16, in_bf16 = (TrainConfig(fp16_accumulation=True, precision=half) for half in ("fp16", "bf16"))
    assert space.violation(in_fp16) is None
    assert "precision=fp16" in (space.violation(in_bf16) or "")


@pytest.mark.parametrize(
    ("processors", "packages", "reason"),
    [(132, ("triton", "cutlass_api"), None), (132, ("triton",), "not installed"),
     (46, ("triton", "cutlass_api"), "not searched here")],
)  # fmt: skip
def test_nvidias_kernels_need_their_package_and_a_search_of_kernels(
    processors: int, packages: tuple[str, ...], reason: str | None
) -> None:
    """On a small GPU torch searches no matrix products at all."""
    hardware = gpu_machine()
    gpu = hardware.gpus[0].model_copy(update={"sm_count": processors})
    space = space_of(hardware.model_copy(update={"gpus": (gpu,)}), make_facts(packages=packages), budget_seconds=2000.0)
    assert reason is None or reason in space.skipped["nvgemm"]
    assert ("nvgemm" in space.choices) == (reason is None)


def test_flash_attention_needs_half_precision() -> None:
    """In fp32 there is no such kernel: that burst would only fail."""
    space = space_of(gpu_machine())
    flash = TrainConfig(sdpa_backend="flash_attention", precision="tf32")
    assert "bf16 or fp16 only" in (space.violation(flash) or "")
    assert space.violation(flash.replace(precision="bf16")) is None


def test_a_candidate_is_asked_about_values_that_the_baseline_keeps() -> None:
    """Its precision alone differs from the baseline's, whose kernel runs in half precision only."""
    space = space_of(gpu_machine(), make_facts(precision="bf16", sdpa_backend="flash_attention"))
    assert "bf16 or fp16 only" in (space.violation(space.baseline.replace(precision="tf32")) or "")


def test_what_is_at_odds_in_the_baseline_already_is_no_conflict() -> None:
    """It trains, so candidates that change something else do too."""
    space = space_of(gpu_machine(), make_facts(sdpa_backend="flash_attention"))
    assert space.violation(space.baseline.replace(num_workers=1)) is None


def test_half_precision_names_its_kernel_of_attention_where_cudnn_would_prepare_one_for_each_length() -> None:
    """On an H100, 2.6 s for each length: fp16 trained at a tenth of its speed for as long as any search looks."""
    space = space_where_lengths_vary()
    half = TrainConfig(batch_size=32, precision="bf16")
    other = half.replace(sdpa_backend="efficient_attention")
    assert "sdpa_backend=efficient_attention takes its place" in (space.violation(half) or "")
    assert (space.config({"precision": "bf16"}), space.violation(other)) == (other, None)
    assert "cudnn_attention" not in space.choices["sdpa_backend"].values
    assert space.suggested()[0].sdpa_backend == "efficient_attention"


@pytest.mark.parametrize(
    "changes",
    [{"fixed_shapes": True}, {"has_attention": False}, {"precision": "bf16"},
     {"pinned": {"sdpa_backend": "default", "precision": "bf16"}}, {"held": {"sdpa_backend": "the script sets it"}}],
    ids=["one length", "no attention", "the user's own", "pinned", "held"],
)  # fmt: skip
def test_half_precision_keeps_cudnns_attention_where_it_costs_nothing_or_was_chosen(changes: dict[str, Any]) -> None:
    """A pin would leave nothing to search."""
    space = space_where_lengths_vary(**changes)
    assert space.violation(TrainConfig(batch_size=16, accumulation_steps=2, precision="bf16")) is None


def test_a_training_in_half_precision_gets_another_kernel_of_attention_first() -> None:
    """What the user trains with may prepare a kernel for each length, without a word of it."""
    assert space_where_lengths_vary(precision="bf16").suggested()[0].sdpa_backend == "efficient_attention"


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
