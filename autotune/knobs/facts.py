"""What one look at a workload found out: it decides which knobs apply before any burst is run."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from autotune.knobs.config import TrainConfig
from autotune.stored import Stored, Whole


class ModelFacts(Stored):
    """A model and its optimizer, as far as another one can be told from them."""

    name: str = Field(description="its class")
    tensors: Whole = Field(description="of weights")
    weights: Whole = Field(description="in all of them")
    shapes: str = Field(description="hash of the tensors' shapes")
    optimizer: str | None = Field(description="its class")

    @property
    def words(self) -> str:
        """The model, for a person."""
        return f"{self.name} with {self.weights:,} weights in {self.tensors} tensors"


class WorkloadFacts(BaseModel):
    """Found by building the workload once, collating one batch, and taking one step on it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    target: str
    name: str
    fingerprint: str = Field(description="hash of what is trained: model, samples, optimizer, effective batch")
    model: ModelFacts
    samples: int | None = Field(description="length of the dataset; None for an iterable one without")
    evaluation_samples: int | None = Field(default=None, description="length of the dataset to evaluate on")
    baseline: TrainConfig
    parameters: int = Field(description="of the model, in all")
    batch_bytes: int = Field(description="tensor bytes of one collated batch of the baseline")
    sample_seconds: float = Field(description="fetching one sample took this long")
    sample_wait_fraction: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="of that, in which no processor computed: what a stopped process goes on with",
    )
    sample_file_bytes: int = Field(default=0, ge=0, description="that fetching one sample read from files")
    flops_per_sample: float | None = Field(
        default=None, gt=0, description="of a training step's matrix products, convolutions and attention"
    )
    pass_bytes: int = Field(default=0, ge=0, description="that a micro-batch moves at least, but for its samples")
    update_bytes: int = Field(default=0, ge=0, description="that a step of the optimizer moves at least")
    padding_fraction: float | None = Field(
        default=None, ge=0, le=1, description="of a batch's tokens; None: the batch does not show it"
    )
    has_images: bool = Field(description="4-D tensors occur, so channels_last may matter")
    has_torchao: bool = Field(default=False, description="torchao is installed beside torch")
    has_attention: bool = Field(description="scaled dot-product attention runs")
    repeated_blocks: int = Field(default=0, ge=0, description="of the model, alike and most of it; 0: none")
    recomputable_blocks: int = Field(default=0, ge=0, description="of these, that may run twice: without BatchNorm")
    small_operators_fraction: float = Field(
        default=0.0, description="share of the loss's host time that goes into operators of a few microseconds"
    )
    outside_fraction: float = Field(
        default=0.0, ge=0, le=1, description="share of the loss's time, forward, that goes past the model's own call"
    )
    step_seconds: float | None = Field(default=None, gt=0, description="of a micro-step on a GPU, its batch at hand")
    device_busy_fraction: float | None = Field(
        default=None, ge=0, le=1, description="of a micro-step, that a GPU computes; the rest it waits for launches"
    )
    unused_parameters: int = Field(default=0, ge=0, description="tensors of weights that a step gives no gradient")
    communication_fraction: float | None = Field(
        default=None, ge=0, le=1, description="of a step of several ranks, that exchanging gradients takes"
    )
    fixed_shapes: bool = Field(description="two batches had equal shapes")
    placeable_bytes: int | None = Field(
        default=None, ge=0, description="of the whole data set as one collated batch; None: it cannot be kept so"
    )
    unplaceable_reason: str | None = Field(default=None, description="why it cannot")
    largest_samples: tuple[int, ...] = Field(default=(), description="indices, largest first, where sizes vary")
    optimizer_impls: tuple[str, ...] = Field(description="that this optimizer accepts")
    notes: tuple[str, ...] = Field(default=(), description="what a person should know of it, a sentence each")
    fork_safe: bool = Field(description="False: bursts start in fresh interpreters")
    fork_unsafe_reason: str | None = None
