"""All knobs, and the questions that the rest of the package asks about them: nobody else keeps a list."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from autotune.hardware import DeviceKind
from autotune.knobs import (
    attention,
    batch,
    checkpointing,
    compiling,
    layout,
    loader,
    optimizer,
    precision,
    process,
    ranks,
)
from autotune.knobs.config import TrainConfig
from autotune.knobs.knob import Effect, Framework, Knob

if TYPE_CHECKING:
    import torch

FAMILIES = (precision, batch, layout, attention, checkpointing, compiling, optimizer, loader, process, ranks)
"""In this order torch is told, and first guesses are made, each knowing those before."""
KNOBS: Mapping[str, Knob] = {knob.name: knob for family in FAMILIES for knob in family.KNOBS}
DATALOADER_ARGUMENTS: Mapping[str, str] = {
    name: knob.dataloader_argument for name, knob in KNOBS.items() if knob.dataloader_argument is not None
}
"""The keyword argument of ``DataLoader`` that takes a knob's value, by knob."""


@functools.cache
def affecting(effect: Effect) -> tuple[str, ...]:
    """The knobs on which something depends."""
    return tuple(name for name, knob in KNOBS.items() if effect in knob.affects)


def can_share_process(config: TrainConfig, other: TrainConfig) -> bool:
    """Whether one training process that is alive can switch from one config to the other."""
    return all(KNOBS[name].scope != "process" for name in config.changes_from(other))


def of_loader() -> tuple[str, ...]:
    """The knobs that make loading faster, and nothing else."""
    return tuple(name for name, knob in KNOBS.items() if knob.part == "loader")


def going_with(name: str) -> tuple[str, ...]:
    """The knobs that mean nothing without another."""
    return tuple(other for other, knob in KNOBS.items() if knob.goes_with == name)


@functools.cache
def buying_memory() -> tuple[str, ...]:
    """The knobs that buy memory with time."""
    return tuple(name for name, knob in KNOBS.items() if knob.when_short is not None)


def following(name: str) -> tuple[str, ...]:
    """The knobs without a choice of their own that follow from another."""
    return tuple(other for other in going_with(name) if KNOBS[other].candidates is None)


def by_priority(device: DeviceKind) -> tuple[str, ...]:
    """The knobs by expected effect, those without any at the end; but for those that follow from another."""
    kind: Literal["cpu", "gpu"] = "cpu" if device == "cpu" else "gpu"
    searched = [name for name, knob in KNOBS.items() if knob.candidates is not None]
    return tuple(sorted(searched, key=lambda name: KNOBS[name].priority.get(kind, math.inf)))


def in_guides_order() -> tuple[str, ...]:
    """The order in which tuning guides change knobs: arithmetic, loading, batch, compiling, the rest."""
    return tuple(sorted((name for name, knob in KNOBS.items() if knob.guide), key=lambda name: KNOBS[name].guide or 0))


def idle_knobs(config: TrainConfig, device: DeviceKind) -> tuple[str, ...]:
    """The knobs of a config that have no effect on a kind of device, though their values were chosen."""
    return tuple(name for name, knob in KNOBS.items() if knob.is_idle(getattr(config, name), device))


def with_what_is_in_force(config: TrainConfig, device: torch.device) -> TrainConfig:
    """A config with what the user's module has told torch already, in knobs that it leaves at their default."""
    told = {
        name: knob.reads(None, None, device)
        for name, knob in KNOBS.items()
        if knob.starts_as_read and knob.reads is not None and getattr(config, name) == knob.default
    }
    return config.replace(**{name: value for name, value in told.items() if value is not None})


def loader_arguments(config: TrainConfig) -> dict[str, Any]:
    """The keyword arguments of ``DataLoader`` that a config decides."""
    return {argument: getattr(config, knob) for knob, argument in DATALOADER_ARGUMENTS.items()}


def ddp_arguments(config: TrainConfig) -> dict[str, Any]:
    """The keyword arguments of ``DistributedDataParallel`` that a config decides."""
    told = {knob.ddp_argument: getattr(config, name) for name, knob in KNOBS.items() if knob.ddp_argument is not None}
    if config.static_graph:  # which finds them once, and DDP warns of a wish for more
        told["find_unused_parameters"] = False
    return told


def variables(config: TrainConfig) -> dict[str, str]:
    """The variables of the environment that a config sets, to be there before the ranks meet."""
    told = {knob.variable: getattr(config, name) for name, knob in KNOBS.items() if knob.variable is not None}
    values = {variable: str(value) for variable, value in told.items() if value is not None}
    if (algorithm := values.get("NCCL_ALGO")) is not None:  # of the others, not all have each algorithm
        values["NCCL_ALGO"] = f"allreduce:{algorithm.lower()}"
    return values


def framework_arguments(framework: Framework, config: TrainConfig) -> dict[str, Any]:
    """The keyword arguments of a framework that take a knob's value as it is."""
    words = {name: knob.words.get(framework) for name, knob in KNOBS.items()}
    return {word: getattr(config, name) for name, word in words.items() if isinstance(word, str)}
