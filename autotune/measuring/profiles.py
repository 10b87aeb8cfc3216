"""Records of a profile: where the time of a step and of a sample goes, in seconds a sample."""

from __future__ import annotations

from pydantic import Field

from autotune.measuring.statistics import KnownInterval
from autotune.stored import Figure, Seconds, Stored


class Operator(Stored):
    """One operator of torch, over the forward pass, the backward pass and the optimizer step."""

    name: str
    seconds: Seconds = Field(description="a sample, without the operators that it calls; on a GPU, of its kernels")
    calls: Figure = Field(description="a step")


class SamplePart(Stored):
    """A function that reading a sample calls."""

    name: str
    where: str | None = Field(description="file and line; None for what is built in")
    seconds: Seconds = Field(description="a sample")


class SampleCost(Stored):
    """What reading one sample takes in one process."""

    seconds: Seconds
    parts: tuple[SamplePart, ...] = Field(default=(), description="the most expensive first")


class Synchronisation(Stored):
    """A place in the user's loss or model that waits for the device."""

    operator: str
    where: str
    calls: Figure = Field(description="a micro-step")


class Headroom(Stored):
    """The most that a faster loader could gain: training on a few batches in memory, beside normal training."""

    ratio: Figure = Field(gt=0, description="its rate over that of training with the loader")
    ci95: KnownInterval | None = Field(description="of that ratio; null where the two did not run side by side")
    cached_samples_per_second: Figure

    @property
    def loader_fraction(self) -> float:
        """Share of the training time that loading costs."""
        return max(0.0, 1 - 1 / self.ratio)


class Profile(Stored):
    """The profile of one config."""

    operators: tuple[Operator, ...] = Field(default=(), description="the ten most expensive first")
    operator_calls: Figure = Field(default=0, description="all operators, a step")
    busy_fraction: Figure | None = Field(default=None, description="share of a step in which a GPU's kernels ran")
    synchronisations: tuple[Synchronisation, ...] = ()
    batch_gain: Figure | None = Field(
        default=None, description="samples a second of a step, over those of a step with half of its samples"
    )
    sample: SampleCost | None = None
    empty_cache_seconds: Seconds | None = Field(
        default=None, description="of one torch.cuda.empty_cache() and its refill"
    )
