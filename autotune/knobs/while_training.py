"""Candidates for a running training: each changes one knob but not what is learned; the most promising comes first."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import Any, Literal

from pydantic import Field

from autotune.errors import ConfigError, UsageError
from autotune.hardware import DeviceKind, Gpu, Hardware
from autotune.knobs.compiling import COMPILE_SECONDS
from autotune.knobs.config import OptimizerImpl, Scalar, TrainConfig
from autotune.knobs.facts import ModelFacts, WorkloadFacts
from autotune.knobs.knob import ByLeave
from autotune.knobs.registry import KNOBS, arguments_as_knobs, of_loader
from autotune.knobs.space import Space, build_space
from autotune.stored import Seconds, Share, Stored, Whole

NOTABLE_WAIT = 0.1
"""A training that waits for data for more than this share of its time tries loaders first. Not tuned."""
LEAST_WAIT = 0.02
"""Below this share, a faster loader gains less than the 2 % that a setting needs to be kept."""
HIDDEN_SHARE = 0.5
"""Each worker is assumed to read for at least this share of a step: if training never waits, the true share cannot be
observed. Not tuned."""
MOST_VALUES = 4
"""The most values that are tried for one knob. Not tuned: each costs the training some seconds."""
UNPLAYED = {
    ("optimizer_impl", "default"), ("precision", "fp16"),
    *(("compile_mode", mode) for mode in COMPILE_SECONDS if mode != "default"),
}  # fmt: skip
"""`switch_optimizer` does nothing for the first. The second needs a GradScaler, which the script does not have. Other
modes compile longer, or keep CUDA graphs, which a script that holds outputs of the model does not expect."""


class LiveFacts(Stored):
    """A training's description of itself after its first steps, as `recorder.live` sends it."""

    device: str
    cpus: int = Field(ge=1)
    threads: int = Field(ge=1, description="threads of an operation on the CPU")
    loader: dict[str, Any] | None = Field(description="as arguments of DataLoader; null: no loader is tuned")
    moves_augmentation: bool = Field(default=False, description="reading a sample draws random numbers")
    forms: tuple[str, ...] = Field(default=(), description="implementations that the optimizer accepts")
    form: OptimizerImpl | Literal["several"] = "default"
    step_seconds: Seconds
    wait_share: Share = Field(description="share of a step in which it waits for data")
    batch_bytes: Whole = 0
    convolves: tuple[int, ...] = Field(default=(), description="as in `WorkloadFacts`")
    fixed_shapes: bool = Field(default=False, description="all batches have one shape")
    packages: tuple[str, ...] = Field(default=(), description="as in `WorkloadFacts`")
    allowed: tuple[str, ...] = Field(default=(), description="knobs that may change what is learned")
    left: dict[str, str] = Field(default_factory=dict, description="why a knob keeps the user's own value, by knob")

    @property
    def baseline(self) -> TrainConfig:
        """The script's own values of the knobs that candidates change."""
        own = {**self.loader["arguments"]} if self.loader is not None else {}
        loader = arguments_as_knobs({**own, "batch_size": own.get("batch_size") or 1}, "dataloader_argument")
        form = "default" if self.form == "several" else self.form
        return TrainConfig(**loader, optimizer_impl=form)

    @property
    def read_seconds(self) -> float:
        """Roughly how long one worker needs for a batch: if training waits for workers, they are always busy."""
        workers = self.baseline.num_workers
        busy = 1.0 if self.wait_share >= NOTABLE_WAIT else HIDDEN_SHARE
        return self.step_seconds * (workers * busy if workers else self.wait_share)

    @property
    def workload(self) -> WorkloadFacts:
        """The same facts in the form that the knobs' rules read."""
        # No kernels for attention: one that does not fit gives way to torch's own, whose memory may end the training.
        own, baseline = self.loader or {}, self.baseline
        return WorkloadFacts(
            target="", name="", fingerprint="", parameters=0, convolves=self.convolves,
            fork_safe=False, baseline=baseline, optimizer_impls=self.forms,
            model=ModelFacts(name="", tensors=0, weights=0, shapes="", optimizer=None),
            samples=own.get("samples"), batch_bytes=self.batch_bytes,
            sample_seconds=self.read_seconds / baseline.batch_size, has_attention=False,
            step_seconds=self.step_seconds * (1 - self.wait_share) or None, fixed_shapes=self.fixed_shapes,
            packages=self.packages,
        )  # fmt: skip


@dataclass(frozen=True)
class Candidates:
    """The candidates of a training."""

    baseline: TrainConfig  # the script's own values of the knobs that candidates change
    configs: tuple[TrainConfig, ...] = ()  # in the order in which they are tried
    left: Mapping[str, str] = field(default_factory=dict)  # why a knob keeps the script's own value


def allowed_knobs(names: str) -> tuple[str, ...]:
    """The knobs that `names` lists, with commas, and that a running training may try by leave.

    Raises:
        UsageError: A name is none of these.
    """
    choices = [
        knob.name for knob in KNOBS.values() if isinstance(knob.while_training, ByLeave) and knob.scope != "loader"
    ]
    requested = tuple(name.strip() for name in names.split(",") if name.strip())
    if unknown := [name for name in requested if name not in choices]:
        raise UsageError(
            f"--allow: expected names among {', '.join(choices)}, got {', '.join(unknown)}; pass these, or leave it out"
        )
    return requested


def live_candidates(facts: LiveFacts, hardware: Hardware) -> Candidates:
    """The candidates for a running training, by the knobs' own rules.

    Knobs that change what is learned are tried only if the user allows them. If training waits for data, knobs of the
    loader come first; otherwise they come last. The first guess of every knob is tried before the second guess of any.
    Compiling comes after all: it may take a minute, and what compiled code depends on must not change any more.
    """
    hardware, device = _where(facts, hardware)
    baseline, waits, played = facts.baseline, facts.wait_share >= NOTABLE_WAIT, played_on(device, facts.allowed)
    no_loader = dict.fromkeys(of_loader(), "no loader of torch feeds the training") if facts.loader is None else {}
    batch = baseline.batch_size
    try:
        space = build_space(
            hardware, facts.workload, device=device, effective_batch=batch, pinned={"batch_size": batch},
            held={**no_loader, **facts.left},
        )  # fmt: skip
    except ConfigError as error:
        return Candidates(baseline, (), dict.fromkeys(played, str(error)) | facts.left)
    knobs = [knob for knob in dict.fromkeys((*space.choices, *played)) if knob in played]
    knobs.sort(key=lambda knob: (knob in of_loader()) != waits)
    guesses = {knob: list(islice(_guesses(knob, facts, space), MOST_VALUES)) for knob in knobs}
    turns = (config for turn in zip_longest(*guesses.values()) for config in turn if config is not None)
    configs = sorted(dict.fromkeys(turns), key=lambda config: config.is_compiled)
    nothing = "no other value is likely to be faster here"
    reasons = {knob: space.skipped.get(knob, nothing) for knob, values in guesses.items() if not values}
    return Candidates(baseline, tuple(configs), reasons | facts.left)


def played_on(device: DeviceKind, allowed: Collection[str] = ()) -> tuple[str, ...]:
    """The knobs that a running training tries on a kind of device: neutral ones, and those that the user allows."""
    kind = "cpu" if device == "cpu" else "gpu"
    tried = [knob for knob in KNOBS.values() if knob.while_training == "neutral" or knob.name in allowed]
    return tuple(knob.name for knob in tried if kind in knob.priority and not knob.on_copies)


def _where(facts: LiveFacts, hardware: Hardware) -> tuple[Hardware, DeviceKind]:
    """The machine as the training sees it: torch calls ROCm's devices ``cuda``, and the driver may not report them."""
    cpu = hardware.cpu.model_copy(update={"budget": min(facts.cpus, hardware.cpu.budget)})
    kinds: dict[str, DeviceKind] = {"cuda": "rocm" if "rocm" in hardware.devices else "cuda", "mps": "mps"}
    device = kinds.get(facts.device, "cpu")
    gpus = hardware.gpus if device in hardware.devices else (Gpu(kind=device, index=0, name="unnamed"),)
    return hardware.model_copy(update={"cpu": cpu, "gpus": gpus}), device


def _guesses(knob: str, facts: LiveFacts, space: Space) -> Iterator[TrainConfig]:
    """Configs that change one knob, and the knob that it depends on; the most promising comes first."""
    baseline, choices = facts.baseline, space.choices.get(knob)
    values = [value for value in choices.values if value is not None] if choices is not None else []
    own = facts.threads if knob == "num_threads" else getattr(baseline, knob)
    if len(values) == 2 and space.preferred.get(knob, values) == own:
        return  # the other of two values is not worth the time
    first = space.preferred.get(knob, own)
    if knob == "num_workers" and facts.device == "cpu" and values:  # the fewest that read as fast as training goes
        enough = facts.read_seconds / max(1e-9, facts.step_seconds * (1 - facts.wait_share))
        first = next((count for count in values if float(count) >= enough), values[-1])
    place = values.index(first) if first in values else len(values)
    start, needed = baseline, KNOBS[knob].goes_with
    if needed is not None and not getattr(baseline, needed):
        start = next(_guesses(needed, facts, space), baseline)
    for value in sorted(values, key=lambda choice: (abs(values.index(choice) - place), -values.index(choice))):
        if value == own or (knob, value) in UNPLAYED:
            continue
        config = start.replace(**{knob: value})
        if config != start and _may_gain(knob, value, facts) and space.violation(config) is None:
            yield config


def _may_gain(knob: str, value: Scalar, facts: LiveFacts) -> bool:
    """Whether a value may gain anything: if training never waits for data, only fewer workers or faster copies may."""
    if facts.wait_share >= LEAST_WAIT or knob not in of_loader() or knob == "pin_memory":
        return True
    return knob == "num_workers" and facts.device == "cpu" and int(value or 0) < facts.baseline.num_workers
