"""What a training that runs may try without learning anything else: one knob a candidate, the most promising first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from autotune.errors import ConfigError
from autotune.hardware import DeviceKind, Gpu, Hardware
from autotune.knobs.config import OptimizerImpl, Scalar, TrainConfig
from autotune.knobs.facts import ModelFacts, WorkloadFacts
from autotune.knobs.registry import KNOBS, of_loader
from autotune.knobs.space import Space, build_space
from autotune.stored import Seconds, Share, Stored, Whole

NOTABLE_WAIT = 0.1
"""Of the time: a training that waits more than this for data tries loaders first. Not tuned."""
LEAST_WAIT = 0.02
"""Below, a faster loader gains less than a setting must to be kept."""
MOST_VALUES = 4
"""Of a knob: the most promising and its neighbours. Chosen: each costs a training some seconds."""


class LiveLoader(Stored):
    """The loader that feeds a training, in the words of DataLoader."""

    samples: Whole | None = None
    iterable: bool = False
    batch_size: Whole | None = None
    num_workers: Whole
    prefetch_factor: Whole | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    in_order: bool = True
    seconds_to_read: Seconds = Field(default=0.0, description="one sample")


class LiveFacts(Stored):
    """What a training tells of itself after its first steps, as the recorder words it."""

    device: str
    cpus: int = Field(ge=1)
    threads: int = Field(ge=1, description="of an operation on the CPU")
    loader: LiveLoader | None = Field(default=None, description="null: none is tuned")
    optimizer: str | None = None
    forms: tuple[str, ...] = Field(default=(), description="that the optimizer accepts")
    form: OptimizerImpl | Literal["several"] = "default"
    step_seconds: Seconds
    wait_share: Share = Field(description="of a step, that it waits for data")
    batch_bytes: Whole = 0
    cudnn_benchmark: bool = False
    attention: bool = Field(default=False, description="torch's attention is called")
    fixed_shapes: bool = Field(default=False, description="all batches have one shape")
    ranks: int = Field(default=1, ge=1)
    left: dict[str, str] = Field(default_factory=dict, description="knob: why it keeps the user's own value")

    @property
    def baseline(self) -> TrainConfig:
        """The script's own setting, as far as candidates differ from it."""
        own = self.loader or LiveLoader(num_workers=0)
        return TrainConfig(
            batch_size=own.batch_size or 1,
            num_workers=own.num_workers,
            prefetch_factor=own.prefetch_factor if own.num_workers else None,
            pin_memory=own.pin_memory,
            persistent_workers=own.persistent_workers,
            dataloader_in_order=own.in_order,
            optimizer_impl="default" if self.form == "several" else self.form,
            cudnn_benchmark=self.cudnn_benchmark,
        )

    @property
    def workload(self) -> WorkloadFacts:
        """The same in the words that the knobs' rules read."""
        own = self.loader or LiveLoader(num_workers=0)
        return WorkloadFacts(
            target="", name="", fingerprint="", parameters=0, has_images=False, fork_safe=False,
            model=ModelFacts(name="", tensors=0, weights=0, shapes="", optimizer=self.optimizer),
            samples=None if own.iterable else own.samples, baseline=self.baseline, batch_bytes=self.batch_bytes,
            sample_seconds=own.seconds_to_read, step_seconds=(self.step_seconds * (1 - self.wait_share)) or None,
            has_attention=self.attention, fixed_shapes=self.fixed_shapes, optimizer_impls=self.forms,
        )  # fmt: skip


@dataclass(frozen=True)
class Candidates:
    """What a training may try.

    Attributes:
        baseline: The script's own setting, as far as candidates differ from it.
        configs: In the order in which they are tried.
        left: Knobs that keep the script's own value, each with the reason.
    """

    baseline: TrainConfig
    configs: tuple[TrainConfig, ...]
    left: Mapping[str, str]


def live_candidates(facts: LiveFacts, hardware: Hardware) -> Candidates:
    """The candidates for a training that runs, by the knobs' own rules.

    Where training waits for data, knobs of the loader come first, and last where it does not. All knobs have their
    first guess tried before one has its second.

    Args:
        facts: What the training tells of itself.
        hardware: The machine.
    """
    hardware, device = _where(facts, hardware)
    baseline, waits = facts.baseline, facts.wait_share >= NOTABLE_WAIT
    no_loader = dict.fromkeys(of_loader(), "no loader of torch feeds the training") if facts.loader is None else {}
    held = {**no_loader, **facts.left}
    try:
        space = build_space(
            hardware, facts.workload, device=device, effective_batch=baseline.batch_size,
            pinned={"batch_size": baseline.batch_size}, held=held,
        )  # fmt: skip
    except ConfigError as error:
        return Candidates(baseline, (), {**facts.left, **dict.fromkeys(played_on(device), str(error))})
    knobs = [*space.choices, *(knob for knob in played_on(device) if knob not in space.choices)]
    knobs = [knob for knob in knobs if knob in played_on(device)]
    knobs.sort(key=lambda knob: (knob in of_loader()) != waits)
    guesses = {knob: list(itertools.islice(_guesses(knob, facts, space), MOST_VALUES)) for knob in knobs}
    turns = itertools.zip_longest(*guesses.values())
    configs = dict.fromkeys(config for turn in turns for config in turn if config is not None)
    why = {knob: _why_left(knob, facts, space) for knob, found in guesses.items() if not found}
    return Candidates(baseline, tuple(configs), {**why, **facts.left})


def played_on(device: DeviceKind) -> tuple[str, ...]:
    """The knobs that a training which runs tries by itself on a kind of device."""
    kind = "cpu" if device == "cpu" else "gpu"
    return tuple(
        name
        for name, knob in KNOBS.items()
        if knob.while_training == "neutral"
        and kind in knob.priority
        and (knob.dataloader_argument or knob.on_process or knob.on_optimizer)
    )


def _where(facts: LiveFacts, hardware: Hardware) -> tuple[Hardware, DeviceKind]:
    """The machine as the training has it: torch calls ROCm's devices ``cuda``, and no driver may tell of them here."""
    cpu = hardware.cpu.model_copy(update={"budget": min(facts.cpus, hardware.cpu.budget)})
    hardware = hardware.model_copy(update={"cpu": cpu})
    kinds: dict[str, DeviceKind] = {"cpu": "cpu", "cuda": "cuda", "mps": "mps"}
    device = "rocm" if facts.device == "cuda" and "rocm" in hardware.devices else kinds.get(facts.device, "cpu")
    if device not in hardware.devices:
        hardware = hardware.model_copy(update={"gpus": (Gpu(kind=device, index=0, name=f"unnamed {device} device"),)})
    return hardware, device


def _guesses(knob: str, facts: LiveFacts, space: Space) -> Iterator[TrainConfig]:
    """Configs that differ from the baseline in a knob and in what goes with it, the most promising first."""
    baseline, own = facts.baseline, getattr(facts.baseline, knob)
    choices = space.choices.get(knob)
    values = list(choices.values) if choices is not None else []
    if len(values) == 2 and knob in space.preferred and space.preferred[knob] == own:
        return  # the other one of two is not worth the time
    first = space.preferred.get(knob, own)
    place = values.index(first) if first in values else 0
    for value in sorted(values, key=lambda one: (abs(values.index(one) - place), -values.index(one))):
        if (knob == "num_threads" and value == facts.threads) or (knob == "optimizer_impl" and value == "default"):
            continue  # what torch does already, whatever the config says; what an optimizer cannot be told
        if not _may_gain(knob, value, facts):
            continue
        needed = KNOBS[knob].goes_with
        beside: dict[str, Scalar] = {}
        if needed is not None and not getattr(baseline, needed):
            if (enabled := next(_guesses(needed, facts, space), None)) is None:
                return
            beside = {needed: getattr(enabled, needed)}
        config = baseline.replace(**beside, **{knob: value})
        if getattr(config, knob) != own and config != baseline.replace(**beside) and space.violation(config) is None:
            yield config


def _may_gain(knob: str, value: Scalar, facts: LiveFacts) -> bool:
    """Whether a value may gain anything: where training waits for no data, only what frees cores, or copies faster."""
    if facts.wait_share >= LEAST_WAIT or knob not in of_loader() or knob == "pin_memory":
        return True
    return knob == "num_workers" and facts.device == "cpu" and int(value or 0) < facts.baseline.num_workers


def _why_left(knob: str, facts: LiveFacts, space: Space) -> str:
    if knob in space.skipped:
        return space.skipped[knob]
    if knob in of_loader() and facts.wait_share < LEAST_WAIT:
        return "training does not wait for data"
    return "no other value is likely to be faster here"
