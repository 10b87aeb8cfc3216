"""The registry: one declaration a knob, and all that is asked of it has an answer."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.hardware import DeviceKind, Gpu
from autotune.knobs import registry
from autotune.knobs.config import KNOB_NAMES, TrainConfig, check_values
from autotune.knobs.context import Choices, LoaderRoom, SearchContext
from autotune.knobs.knob import EVERYWHERE, FRAMEWORKS, Knob
from autotune.knobs.registry import FAMILIES, KNOBS
from autotune.measuring.memory_model import MemoryModel
from autotune.measuring.numerics import NumericsGuard
from autotune.measuring.records import Burst, Outcome, Point
from autotune.recorder.changes import Changes
from autotune.recorder.effects import Effects, of_loader
from autotune.recorder.stream import Stream
from autotune.search.ceilings import most_gain
from autotune.search.costs import Costs
from autotune.search.distributions import make_distributions
from autotune.search.refusals import refusal
from autotune.search.trials import Trial
from autotune.torch_settings import in_force, process_settings
from autotune.torch_settings.naming import arguments_of
from docs._scripts import knob_table
from tests.factories import make_measurement
from tests.spaces import cpu_machine, gpu_machine, make_facts, space_of

DATA: Any = TensorDataset(torch.zeros(32, 1))
GIB, MIB = 2**30, 2**20
each_knob = pytest.mark.parametrize("knob", KNOBS.values(), ids=KNOBS)
OTHER: dict[str, Any] = {
    "batch_size": 16, "accumulation_steps": 2, "precision": "bf16", "memory_format": "channels_last",
    "compile_mode": "max-autotune", "optimizer_impl": "fused", "cudnn_benchmark": True, "sdpa_backend": "math",
    "num_workers": 2, "prefetch_factor": 4, "pin_memory": True, "persistent_workers": True, "non_blocking": True,
    "num_threads": 1, "allocator": "tuned", "dataloader_in_order": False, "checkpointing": "blocks",
    "multiprocessing_context": "spawn",
    "fp8_linear": True, "data_placement": "collated", "device_prefetch": True, "ranks": 4, "ddp_bucket_cap_mb": 5,
    "gradient_as_bucket_view": True, "batched_grad_copy": True, "static_graph": True, "find_unused_parameters": True,
    "strategy": "fsdp", "reshard_after_forward": False, "fsdp_param_dtype": "bf16", "fsdp_prefetch": 2,
    "fsdp_own_group": True, "fsdp_keep_storage": True, "lazy_bucket_allocation": True, "fp16_accumulation": True,
    "nvgemm": True, "exchange_dtype": "bf16", "nccl_max_ctas": 4, "nccl_algo": "Tree", "nccl_buffsize": 2**23,
}  # fmt: skip
"""Of each knob a value that is not the default."""


def make_context(device: DeviceKind) -> SearchContext:
    """A workload that gives each knob a use, on a machine with this kind of device."""
    hardware = cpu_machine() if device == "cpu" else gpu_machine()
    facts = make_facts(
        num_workers=2,
        ranks=3,
        recomputable_blocks=2,
        packages=("triton", "c++", "torchao", "cutlass_api"),
        placeable_bytes=MIB,
        sample_seconds=1e-5,
    )
    if device in {"rocm", "mps"}:
        gpu = Gpu(kind=device, index=0, name="a GPU", precisions=("fp32", "fp16"), precision_reason="it has fp16")
        hardware = hardware.model_copy(update={"gpus": (gpu,)})
    if device == "cuda":
        hardware = hardware.model_copy(update={"gpus": (hardware.gpus[0].model_copy(update={"sm_count": 68}),)})
    record = hardware.device(device)
    assert record is not None
    return SearchContext(
        hardware=hardware, facts=facts, device=device, record=record, start=facts.baseline,
        room=LoaderRoom.of(hardware.memory, facts), worker_limit=hardware.cpu.budget, effective_batch=64,
        budget_seconds=1800.0, fixed=frozenset(), allow_numerics=True,
        requested=frozenset(
            {
                "dataloader_in_order", "multiprocessing_context", "checkpointing", "strategy",
                "lazy_bucket_allocation",
            }
        ),
    )  # fmt: skip


def changed(knob: Knob) -> tuple[TrainConfig, TrainConfig]:
    """Two configs in which a knob has an effect, and that differ in it alone."""
    beside: dict[str, Any] = {"precision": "bf16"} if knob.name in {"fp8_linear", "fsdp_param_dtype"} else {}
    beside |= {"strategy": "fsdp"} if knob.goes_with == "strategy" else {}
    enabled = check_values({"compile_mode": "default", **beside})
    return enabled, enabled.replace(**{knob.name: OTHER[knob.name]})


def test_every_field_has_one_declaration_and_every_declaration_a_field() -> None:
    """A knob is a field of the config, and one declaration in one family."""
    assert sorted(knob.name for family in FAMILIES for knob in family.KNOBS) == sorted(KNOB_NAMES)
    assert list(KNOBS) == [knob.name for knob in KNOBS.values()]


@each_knob
@pytest.mark.parametrize("device", sorted(EVERYWHERE))
def test_every_rule_answers_for_every_kind_of_device(knob: Knob, device: DeviceKind) -> None:
    """With two values or more that the knob takes, or the sentence why not; where it has no effect, with that."""
    if knob.candidates is None:
        assert knob.goes_with in KNOBS
        return
    answer = knob.candidates(make_context(device))
    if isinstance(answer, str):
        assert len(answer.split()) > 3
        return
    assert device in knob.devices
    assert len(set(answer.values)) >= 2
    assert answer.reason
    for value in answer.values:
        assert getattr(check_values({knob.name: value}), knob.name) == value or value is None


@each_knob
def test_every_rule_offers_something_somewhere(knob: Knob) -> None:
    """A declaration that is never searched is none; its first guesses are among what it offers."""
    if knob.candidates is None:
        return
    offered: set[Any] = set()
    wanted: set[Any] = set()
    for device in ("cpu", "cuda"):
        context = make_context(device)
        answer = knob.candidates(context)
        offered |= set(answer.values) if isinstance(answer, Choices) else set()
        wanted |= set(knob.preferred(context, {"precision": "bf16", "num_workers": 2}))
    assert offered
    assert not wanted or wanted & offered


@each_knob
def test_every_knob_has_a_place_where_it_is_searched(knob: Knob) -> None:
    """By expected effect on the devices where it is offered, and in the guides' order for the ablation."""
    if knob.candidates is None:
        assert knob.guide is None
        return
    assert knob.guide is not None
    for device in ("cpu", "cuda"):
        if isinstance(knob.candidates(make_context(device)), Choices):
            assert knob.name in registry.by_priority(device)
            assert ("cpu" if device == "cpu" else "gpu") in knob.priority


def test_no_two_knobs_share_a_place() -> None:
    """Which comes first would be left to chance."""
    for kind in ("cpu", "gpu"):
        places = [knob.priority[kind] for knob in KNOBS.values() if kind in knob.priority]  # type: ignore[index]
        assert len(set(places)) == len(places)
    guides = [knob.guide for knob in KNOBS.values() if knob.guide is not None]
    assert len(set(guides)) == len(guides)
    assert registry.in_guides_order()[:2] == ("precision", "cudnn_benchmark")
    assert registry.by_priority("cpu")[:2] == ("allocator", "precision")
    assert registry.by_priority("cuda")[:2] == ("precision", "batch_size")


@each_knob
def test_every_knob_reaches_torch_one_way(knob: Knob) -> None:
    """By DataLoader, DDP or the environment, a function of its family, or as part of the loop that `Tuned` is."""
    arguments = [knob.dataloader_argument, knob.ddp_argument, knob.variable]
    ways = [*arguments, knob.on_process, knob.on_model, knob.on_optimizer]
    by_loop = knob.name in {
        "accumulation_steps", "non_blocking", "data_placement", "device_prefetch", "ranks", "strategy",
        "reshard_after_forward", "fsdp_param_dtype", "fsdp_prefetch", "exchange_dtype", "fsdp_own_group",
        "fsdp_keep_storage",
    }  # fmt: skip
    assert sum(way is not None for way in ways) == (0 if by_loop else 1)


ASPECTS: dict[str, Callable[[Knob], Any]] = {
    "reading": lambda knob: knob.dataloader_argument or knob.ddp_argument or knob.reads,
    "effect": lambda knob: ASPECTS["reading"](knob) or knob.shows,
    "trial": lambda knob: knob.trials or "arithmetic" not in knob.affects,
    "patch": lambda knob: (
        knob.dataloader_argument
        or knob.optimizer_arguments
        or knob.written
        or any(isinstance(word, str) for word in knob.words.values())
    ),
}
"""How a script's value is read, how an effect is seen, what the doctor tries, where a script is patched."""
WITHOUT: dict[str, set[str]] = {
    "reading": {
        "fp8_linear", "accumulation_steps", "data_placement", "non_blocking", "device_prefetch", "ranks",
        "strategy", "reshard_after_forward", "fsdp_param_dtype", "fsdp_prefetch", "fsdp_own_group",
        "fsdp_keep_storage", "exchange_dtype", "nccl_max_ctas", "nccl_algo", "nccl_buffsize",
    },
    "effect": {
        "fp8_linear", "accumulation_steps", "data_placement", "device_prefetch", "ranks", "strategy",
        "reshard_after_forward", "fsdp_param_dtype", "fsdp_prefetch", "fsdp_own_group", "fsdp_keep_storage",
        "exchange_dtype", "nccl_max_ctas", "nccl_algo", "nccl_buffsize",
    },
    "trial": {
        "fp8_linear", "batch_size", "nvgemm", "fsdp_param_dtype", "exchange_dtype",
    },
    "patch": {
        "fp16_accumulation", "fp8_linear", "memory_format", "sdpa_backend", "checkpointing", "nvgemm",
        "data_placement", "non_blocking", "device_prefetch", "num_threads", "allocator", "ranks", "strategy",
        "reshard_after_forward", "fsdp_param_dtype", "fsdp_prefetch", "fsdp_own_group", "fsdp_keep_storage",
        "exchange_dtype", "ddp_bucket_cap_mb", "gradient_as_bucket_view", "batched_grad_copy",
        "lazy_bucket_allocation", "static_graph", "nccl_max_ctas", "nccl_algo", "nccl_buffsize",
        "find_unused_parameters",
    },
}  # fmt: skip
"""Loops and libraries set some values themselves, and do not say so. The doctor has no torchao, and no time for
max-autotune. Patches write arguments only; all else takes the line that applies all settings."""


@pytest.mark.parametrize("aspect", ASPECTS)
def test_every_knob_has_each_aspect_but_for_those_that_cannot(aspect: str) -> None:
    """A new knob without one is noticed here."""
    assert {name for name, knob in KNOBS.items() if not ASPECTS[aspect](knob)} == WITHOUT[aspect]


@each_knob
def test_a_script_finds_by_name_what_a_declaration_names(knob: Knob) -> None:
    """Its process has the recorder alone, which is sent names."""
    functions = (knob.on_process, knob.on_model, knob.on_optimizer, knob.outside)
    assert all(getattr(process_settings, one.__name__) is one for one in functions if one is not None)
    assert knob.reads is None or getattr(in_force, knob.reads.__name__) is knob.reads
    assert knob.shows is None or getattr(Effects, knob.shows.__name__) is knob.shows


@each_knob
def test_an_argument_is_read_from_what_was_made_with_it(knob: Knob) -> None:
    """From a loader whose workers have it; a loader without it lacks the effect."""
    if knob.dataloader_argument is None or knob.goes_with not in {None, "num_workers"}:
        return
    config = check_values({"num_workers": 1, knob.name: OTHER[knob.name]})
    made = Stream(DataLoader(DATA, batch_size=4), Changes({"loader": registry.loader_arguments(config)}), 0)
    read = registry.arguments_as_knobs(arguments_of(made.loader, DataLoader), "dataloader_argument")
    assert read[knob.name] == OTHER[knob.name]
    own = Stream(DataLoader(DATA, batch_size=4), Changes({}), 0)
    changed = {knob.dataloader_argument: OTHER[knob.name]}
    assert of_loader(changed, own, pinned=None, device="cpu").keys() == changed.keys()


def test_every_argument_of_ddp_is_one_of_this_torch() -> None:
    """Those that a release lacks are not offered with it."""
    arguments = [knob.ddp_argument for knob in KNOBS.values() if knob.ddp_argument and knob.is_in(torch.__version__)]
    assert set(arguments) <= inspect.signature(DistributedDataParallel).parameters.keys()
    assert all(registry.KNOBS[name].is_in("2.7.0") for name, knob in KNOBS.items() if knob.since is None)


@each_knob
def test_dataloader_gets_what_is_declared(knob: Knob) -> None:
    """Under its own argument, with the config's value."""
    config = changed(knob)[1]
    arguments = registry.loader_arguments(config)
    if knob.dataloader_argument is not None:
        assert arguments[knob.dataloader_argument] == getattr(config, knob.name)
    assert len(arguments) == sum(one.dataloader_argument is not None for one in KNOBS.values())


def test_nccl_is_told_what_was_chosen_and_nothing_else() -> None:
    """What is None stays as the user's environment has it."""
    config = TrainConfig(ranks=4, nccl_max_ctas=8, nccl_algo="Ring")
    assert registry.variables(config) == {"NCCL_MAX_CTAS": "8", "NCCL_ALGO": "allreduce:ring"}
    assert registry.variables(TrainConfig(ranks=4)) == {}


def test_nccl_is_told_nothing_where_gradients_go_another_way() -> None:
    """Through gloo on the CPU; and two ranks are a ring and a tree alike."""
    assert "between GPUs only" in str(KNOBS["nccl_max_ctas"].candidates(make_context("cpu")))  # type: ignore[misc]
    two = dataclasses.replace(make_context("cuda"), start=make_context("cuda").start.replace(ranks=2))
    assert "alike" in str(KNOBS["nccl_algo"].candidates(two))  # type: ignore[misc]


@each_knob
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_framework_has_a_word_or_says_that_it_has_none(knob: Knob, framework: Any) -> None:
    """Words that take a value as it is are handed on with it."""
    assert knob_table.framework_text(knob, framework)
    word = knob.words.get(framework)
    if isinstance(word, str):
        config = changed(knob)[1]
        assert registry.framework_arguments(framework, config)[word] == getattr(config, knob.name)


@each_knob
def test_every_knob_stands_in_the_table_with_a_reason(knob: Knob) -> None:
    """One row of it, whose cells are all filled."""
    (row,) = [line for line in knob_table.text().splitlines() if line.startswith(f"| `{knob.name}` |")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert len(cells) == len(knob_table.COLUMNS)
    assert all(cells)
    assert cells[-1] == knob.why
    assert len(knob.why.split()) > 5


@pytest.mark.parametrize(
    ("effect", "knobs"),
    [
        (
            "memory",
            {
                "precision", "memory_format", "compile_mode", "optimizer_impl", "sdpa_backend", "allocator",
                "checkpointing", "fp8_linear", "data_placement", "device_prefetch", "ranks", "ddp_bucket_cap_mb",
                "gradient_as_bucket_view", "strategy", "reshard_after_forward", "fsdp_param_dtype", "fsdp_prefetch",
                "exchange_dtype", "nccl_buffsize", "fsdp_own_group", "fsdp_keep_storage", "lazy_bucket_allocation",
            },
        ),
        (
            "host memory",
            {
                "allocator", "num_threads", "num_workers", "prefetch_factor", "data_placement", "ranks", "strategy",
                "multiprocessing_context", "reshard_after_forward", "fsdp_param_dtype",
            },
        ),
        (
            "arithmetic",
            {
                "precision", "memory_format", "compile_mode", "optimizer_impl", "sdpa_backend", "cudnn_benchmark",
                "batch_size", "fp8_linear", "fsdp_param_dtype", "exchange_dtype", "fp16_accumulation", "nvgemm",
            },
        ),
        (
            "compiled code",
            {
                "compile_mode", "batch_size", "precision", "memory_format", "sdpa_backend", "num_threads",
                "checkpointing", "fp8_linear", "ddp_bucket_cap_mb", "strategy", "fsdp_param_dtype",
                "fp16_accumulation", "nvgemm",
            },
        ),
        ("waiting batches", {"batch_size", "accumulation_steps", "num_workers", "prefetch_factor"}),
        ("cores", {"num_workers", "num_threads"}),
    ],
)  # fmt: skip
def test_what_depends_on_which_knobs(effect: Any, knobs: set[str]) -> None:
    """A declaration that forgets an effect is noticed here."""
    assert set(registry.affecting(effect)) == knobs


def test_which_part_of_training_a_knob_belongs_to() -> None:
    """Loading, both, or computing alone."""
    assert {name for name, knob in KNOBS.items() if knob.part == "both"} == {"batch_size", "num_threads"}
    assert set(registry.of_loader()) == {
        "num_workers", "prefetch_factor", "pin_memory", "persistent_workers", "dataloader_in_order",
        "multiprocessing_context", "non_blocking", "data_placement", "device_prefetch",
    }  # fmt: skip


@each_knob
def test_memory_is_modelled_for_what_affects_it(knob: Knob) -> None:
    """Configs that differ in such a knob have lines of their own; on the CPU its workers and threads count too."""
    config, other = changed(knob)
    bursts = [
        Burst(point=Point(config=config.replace(batch_size=size)), outcome=Outcome.OK, seconds=1.0,
              measurement=make_measurement(1000).model_copy(update={"device_memory_bytes": size * GIB}))
        for size in (4, 8)
    ]  # fmt: skip
    for device, effects in (("cuda", {"memory"}), ("cpu", {"memory", "host memory"})):
        known = MemoryModel(bursts, 64 * GIB, device).line(Point(config=other)) is not None  # type: ignore[arg-type]
        assert known == (not effects & knob.affects)


@each_knob
def test_a_config_is_refused_where_another_of_the_same_memory_failed(knob: Knob) -> None:
    """Only a knob that affects memory lets a batch run again that ran out of it; a smaller batch does too."""
    config, other = changed(knob)
    space = space_of(gpu_machine(), make_facts(**config.model_dump()), effective_batch=None)
    failed = Burst(point=Point(config=config), outcome=Outcome.OOM, seconds=1.0)
    refused = refusal(Point(config=other), space, [Trial(failed, "", "")]) is not None
    assert refused == ("memory" not in knob.affects and knob.name != "batch_size")


@each_knob
def test_numerics_are_checked_for_what_affects_arithmetic(knob: Knob) -> None:
    """A config that rounds as the baseline does needs no check."""
    config, other = changed(knob)
    guard = NumericsGuard(lambda *_: pytest.fail("nothing is to be measured"), Point(config=config))
    unchanged = guard.known(Point(config=other))
    assert (unchanged is None) == ("arithmetic" in knob.affects)


@each_knob
def test_compiling_is_paid_again_for_what_affects_the_code(knob: Knob) -> None:
    """A burst whose code was compiled before is expected to be short."""
    config, other = changed(knob)
    measured = make_measurement(1000).model_copy(update={"compile_seconds": 100.0})
    first = Burst(point=Point(config=config), outcome=Outcome.OK, seconds=110.0, measurement=measured)
    costs = Costs([Trial(first, "", "")], BurstPlan())
    assert (costs(Point(config=other)).compile_seconds < 100) == ("compiled code" not in knob.affects)


@each_knob
def test_ceilings_leave_out_the_part_that_does_not_limit(knob: Knob) -> None:
    """Where training never waits, loading cannot gain; where it hardly computes, computing cannot."""
    waits = make_measurement(1000)
    blocks = [
        tuple(b.model_copy(update={"data_wait_seconds": share * b.seconds}) for b in waits.blocks) for share in (0, 0.9)
    ]
    never, always = (waits.model_copy(update={"blocks": timed, "epoch_samples": None}) for timed in blocks)
    assert (most_gain([knob.name], never) < 0.05) == (knob.part == "loader")
    assert (most_gain([knob.name], always) < 0.2) == (knob.part == "compute")


@each_knob
def test_numbers_are_drawn_from_a_scale(knob: Knob) -> None:
    """Of an ordered knob the sampler draws between the values on offer, of others one of them."""
    space = space_of(gpu_machine(), device="cpu" if knob.devices == {"cpu"} else "cuda")
    drawn = make_distributions(space).get(knob.name)
    if drawn is not None and None not in space.choices[knob.name].values:
        assert getattr(drawn, "log", None) == (None if knob.scale is None else knob.scale == "logarithmic")
    numbers = isinstance(OTHER[knob.name], int) and not isinstance(OTHER[knob.name], bool)
    assert (knob.scale is not None) == (numbers and knob.candidates is not None)


@each_knob
def test_what_goes_with_another_knob_is_reset_without_it(knob: Knob) -> None:
    """Two configs that train alike are equal."""
    if knob.goes_with is None or knob.candidates is None:
        return
    enabling: dict[str, Any] = {"ranks": 2} if knob.goes_with == "strategy" else {}  # which splitting needs itself
    enabling |= {"precision": "bf16"} if knob.name == "fsdp_param_dtype" else {}
    with_it = TrainConfig(**enabling, **{knob.goes_with: OTHER[knob.goes_with], knob.name: OTHER[knob.name]})
    assert getattr(with_it, knob.name) == OTHER[knob.name]
    assert with_it.replace(**{knob.goes_with: KNOBS[knob.goes_with].default}) == TrainConfig(**enabling)
    assert knob.name in registry.going_with(knob.goes_with)


@each_knob
@pytest.mark.parametrize("device", sorted(EVERYWHERE))
def test_idle_knobs_are_those_without_an_effect_on_a_device(knob: Knob, device: DeviceKind) -> None:
    """A chosen value is idle where its knob is; the default never is."""
    config = check_values({knob.name: OTHER[knob.name]})
    assert (knob.name in registry.idle_knobs(config, device)) == (device not in knob.devices)
    assert registry.idle_knobs(TrainConfig(), device) == ()


def test_tf32_is_idle_but_on_nvidia() -> None:
    """Of one knob, some values may work on fewer devices."""
    assert registry.idle_knobs(TrainConfig(precision="tf32"), "cpu") == ("precision",)
    assert registry.idle_knobs(TrainConfig(precision="tf32"), "cuda") == ()


def test_the_sizes_that_share_room_turn_in_one_order() -> None:
    """Prefetching is given up before workers, and workers before the batch: the order in which they are declared."""
    waiting = [name for name in registry.affecting("waiting batches") if KNOBS[name].candidates is not None]
    assert waiting == ["batch_size", "num_workers", "prefetch_factor"]
    assert registry.following("batch_size") == ("accumulation_steps",)


def test_knobs_and_their_table_need_no_torch() -> None:
    """The parent process asks the registry, and never imports torch; the documentation is built without it."""
    code = (
        "import sys, autotune.knobs.space, docs._scripts.knob_table as t; assert 'torch' not in sys.modules; "
        "sys.modules['torch'] = None; print(t.text().count('\\n'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == len(KNOBS) + 2
