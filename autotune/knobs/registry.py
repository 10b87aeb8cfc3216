"""All knobs, and queries about them. No other part of the package keeps a list of knobs."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from autotune.hardware import DeviceKind
from autotune.knobs import batch, compiling, loader, model, optimizer, precision, process, ranks
from autotune.knobs.config import TrainConfig
from autotune.knobs.knob import Effect, Framework, Knob

if TYPE_CHECKING:
    import torch

FAMILIES = (precision, batch, model, compiling, optimizer, loader, process, ranks)
"""The order in which values are set in torch, and first guesses are made: each guess sees those before it."""
KNOBS: Mapping[str, Knob] = {knob.name: knob for family in FAMILIES for knob in family.KNOBS}
DATALOADER_ARGUMENTS: Mapping[str, str] = {
    name: knob.dataloader_argument for name, knob in KNOBS.items() if knob.dataloader_argument is not None
}
"""The keyword argument of ``DataLoader`` that takes a knob's value, by knob."""
READS: Mapping[str, str] = {name: knob.reads.__name__ for name, knob in KNOBS.items() if knob.reads is not None}
"""The function of `torch_settings.in_force` that reads a knob's value in a script, by knob."""


@functools.cache
def affecting(effect: Effect) -> tuple[str, ...]:
    """The knobs with this effect."""
    return tuple(name for name, knob in KNOBS.items() if effect in knob.affects)


def can_share_process(config: TrainConfig, other: TrainConfig) -> bool:
    """Whether a live training process can switch from one config to the other."""
    return all(KNOBS[name].scope != "process" for name in config.changes_from(other))


def of_loader() -> tuple[str, ...]:
    """The knobs that make loading faster, and nothing else."""
    return tuple(name for name, knob in KNOBS.items() if knob.part == "loader")


def going_with(name: str) -> tuple[str, ...]:
    """The knobs that have no effect without this one."""
    return tuple(other for other, knob in KNOBS.items() if knob.goes_with == name)


@functools.cache
def buying_memory() -> tuple[str, ...]:
    """The knobs that save memory at the cost of time."""
    return tuple(name for name, knob in KNOBS.items() if knob.when_short is not None)


def following(name: str) -> tuple[str, ...]:
    """The knobs that follow from this one and have no choice of their own."""
    return tuple(other for other in going_with(name) if KNOBS[other].candidates is None)


def by_priority(device: DeviceKind) -> tuple[str, ...]:
    """The knobs that have choices, by expected effect; those without a priority come last."""
    kind: Literal["cpu", "gpu"] = "cpu" if device == "cpu" else "gpu"
    searched = [name for name, knob in KNOBS.items() if knob.candidates is not None]
    return tuple(sorted(searched, key=lambda name: KNOBS[name].priority.get(kind, math.inf)))


def in_guides_order() -> tuple[str, ...]:
    """The order in which tuning guides change knobs: arithmetic, loading, batch, compiling, the rest."""
    return tuple(sorted((name for name, knob in KNOBS.items() if knob.guide), key=lambda name: KNOBS[name].guide or 0))


def idle_knobs(config: TrainConfig, device: DeviceKind) -> tuple[str, ...]:
    """The knobs of a config whose value has no effect on a kind of device, though it is not the default."""
    return tuple(name for name, knob in KNOBS.items() if knob.is_idle(getattr(config, name), device))


def with_what_is_in_force(config: TrainConfig, device: torch.device) -> TrainConfig:
    """A config whose default values are replaced by those that the user's module has already set in torch."""
    in_force = {
        name: knob.reads(None, None, device)
        for name, knob in KNOBS.items()
        if knob.starts_as_read and knob.reads is not None and getattr(config, name) == knob.default
    }
    return config.replace(**{name: value for name, value in in_force.items() if value is not None})


def arguments_as_knobs(given: Mapping[str, Any], by: Literal["dataloader_argument", "ddp_argument"]) -> dict[str, Any]:
    """The values of knobs in the arguments that one of torch's objects was made with; None stands for the default."""
    taking = {name: argument for name, knob in KNOBS.items() if (argument := getattr(knob, by)) is not None}
    values = {name: given.get(argument) for name, argument in taking.items()}
    return {name: KNOBS[name].default if value is None else value for name, value in values.items()}


def loader_arguments(config: TrainConfig) -> dict[str, Any]:
    """The keyword arguments of ``DataLoader`` that a config decides."""
    return {argument: getattr(config, knob) for knob, argument in DATALOADER_ARGUMENTS.items()}


def ddp_arguments(config: TrainConfig) -> dict[str, Any]:
    """The keyword arguments of ``DistributedDataParallel`` that a config decides; older releases of torch lack some."""
    values = {
        knob.ddp_argument: value
        for name, knob in KNOBS.items()
        if knob.ddp_argument is not None and ((value := getattr(config, name)) != knob.default or knob.since is None)
    }
    if config.static_graph:  # DDP finds unused parameters once, and warns if asked to search again
        values["find_unused_parameters"] = False
    return values


def variables(config: TrainConfig) -> dict[str, str]:
    """The environment variables that a config sets; NCCL reads them when the ranks meet."""
    values = {knob.variable: getattr(config, name) for name, knob in KNOBS.items() if knob.variable is not None}
    texts = {variable: str(value) for variable, value in values.items() if value is not None}
    if (algorithm := texts.get("NCCL_ALGO")) is not None:  # not every other collective has each algorithm
        texts["NCCL_ALGO"] = f"allreduce:{algorithm.lower()}"
    return texts


def framework_arguments(framework: Framework, config: TrainConfig) -> dict[str, Any]:
    """The keyword arguments of a framework that take a knob's value unchanged."""
    words = {name: knob.words.get(framework) for name, knob in KNOBS.items()}
    return {word: getattr(config, name) for name, word in words.items() if isinstance(word, str)}
