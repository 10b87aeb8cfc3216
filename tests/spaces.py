"""Workloads and machines for tests of the space: make_facts(), space_of(), and three machines."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from autotune.hardware import Hardware
from autotune.knobs.config import KNOB_NAMES, Scalar, TrainConfig
from autotune.knobs.facts import ModelFacts, WorkloadFacts
from autotune.knobs.space import Space, build_space
from tests.hardware.readings import I5_9400F, MIB, hardware_of, rtx_4070

UNSET: Any = object()


@functools.cache
def cpu_machine() -> Hardware:
    """Six cores without bf16, and no GPU."""
    return hardware_of(I5_9400F)


@functools.cache
def gpu_machine() -> Hardware:
    """Six cores and an RTX 4070."""
    return hardware_of(I5_9400F, rtx_4070())


@functools.cache
def docker_machine() -> Hardware:
    """The same in Docker, which gives 64 MB of /dev/shm."""
    return hardware_of(dataclasses.replace(I5_9400F, shm_bytes=64 * MIB), rtx_4070())


def make_facts(**changes: Any) -> WorkloadFacts:
    """A workload of images with attention, of fixed shapes; knobs of the baseline may be given by name."""
    knobs = {knob: changes.pop(knob) for knob in tuple(changes) if knob in KNOB_NAMES}
    fields: dict[str, Any] = {
        "target": "train:build", "name": "digits", "fingerprint": "a1b2c3", "samples": 50_000,
        "model": ModelFacts(name="Net", weights=1_000_000, tensors=2, shapes="d4e5f6", optimizer="SGD"),
        "baseline": TrainConfig(**{"batch_size": 32, **knobs}), "parameters": 1_000_000,
        "batch_bytes": 4 * MIB, "sample_seconds": 0.001, "convolves": (2,), "has_attention": True,
        "fixed_shapes": True, "optimizer_impls": ("default", "foreach", "fused"), "fork_safe": True,
    }  # fmt: skip
    return WorkloadFacts(**{**fields, **changes})


def space_of(
    hardware: Hardware, facts: WorkloadFacts | None = None, *, effective_batch: int | None = UNSET, **options: Any
) -> Space:
    """The space on the best device; the effective batch is the baseline's unless it is given."""
    facts = facts or make_facts()
    effective = facts.baseline.effective_batch if effective_batch is UNSET else effective_batch
    options.setdefault("device", hardware.default_device)
    return build_space(hardware, facts, effective_batch=effective, **options)


def space_where_lengths_vary(**changes: Any) -> Space:
    """On a card for which torch chooses cuDNN's attention in half precision."""
    gpu = gpu_machine().gpus[0].model_copy(update={"attention": "cudnn_attention"})
    hardware = gpu_machine().model_copy(update={"gpus": (gpu,)})
    options = {name: changes.pop(name) for name in ("pinned", "held") if name in changes}
    return space_of(hardware, make_facts(**{"fixed_shapes": False, **changes}), **options)


def all_loaders(space: Space) -> list[TrainConfig]:
    """Every combination of batch and loader that the search may propose and run."""
    knobs = ("batch_size", "num_workers", "prefetch_factor")
    combinations: list[dict[str, Scalar]] = [{}]
    for knob in knobs:
        if knob in space.choices:
            combinations = [{**values, knob: value} for values in combinations for value in space.choices[knob].values]
    configs = [space.config(values) for values in combinations]
    return [config for config in configs if space.violation(config) is None]
