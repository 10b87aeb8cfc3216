"""Where a step's and a sample's time goes: records of what was profiled, in seconds a sample."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Record(BaseModel):
    """Base of the records: frozen; NaN and infinity are no figures."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Operator(Record):
    """One operator of torch, over the forward pass, the backward pass and the optimizer step."""

    name: str
    seconds: float = Field(ge=0, description="a sample, without the operators that it calls; on a GPU, of its kernels")
    calls: float = Field(ge=0, description="a step")


class SamplePart(Record):
    """A function that reading a sample calls."""

    name: str
    where: str | None = Field(description="file and line; None for what is built in")
    seconds: float = Field(ge=0, description="a sample")


class SampleCost(Record):
    """What reading one sample takes in one process."""

    seconds: float = Field(ge=0)
    parts: tuple[SamplePart, ...] = Field(default=(), description="the most expensive first")


class Synchronisation(Record):
    """A place in the user's loss or model that waits for the device."""

    operator: str
    where: str
    calls: float = Field(ge=0, description="a micro-step")


class Profile(Record):
    """What was seen of one config."""

    operators: tuple[Operator, ...] = Field(default=(), description="the ten most expensive first")
    operator_calls: float = Field(default=0, ge=0, description="all operators, a step")
    busy_fraction: float | None = Field(default=None, description="share of a step in which a GPU's kernels ran")
    synchronisations: tuple[Synchronisation, ...] = ()
    sample: SampleCost | None = None
    empty_cache_seconds: float | None = Field(
        default=None, description="of one torch.cuda.empty_cache() and its refill"
    )
