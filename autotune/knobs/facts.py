"""The facts from one look at a workload: they decide which knobs apply before any burst runs."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from autotune.knobs.config import TrainConfig
from autotune.stored import Stored, Whole


class ModelFacts(Stored):
    """What distinguishes a model and its optimizer from others."""

    name: str = Field(description="its class")
    tensors: Whole = Field(description="number of weight tensors")
    weights: Whole = Field(description="number of weights in all of them")
    shapes: str = Field(description="hash of the tensors' shapes")
    optimizer: str | None = Field(description="its class")

    @property
    def words(self) -> str:
        """The model in words."""
        return f"{self.name} with {self.weights:,} weights in {self.tensors} tensors"


class WorkloadFacts(BaseModel):
    """Facts from building the workload once, collating one batch, and taking one step on it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    target: str
    name: str
    fingerprint: str = Field(description="hash of what is trained: model, samples, optimizer, effective batch")
    model: ModelFacts
    samples: int | None = Field(description="length of the dataset; None for an iterable one without a length")
    evaluation_samples: int | None = Field(default=None, description="length of the dataset to evaluate on")
    baseline: TrainConfig
    parameters: int = Field(description="number of the model's parameters")
    batch_bytes: int = Field(description="tensor bytes of one collated batch of the baseline")
    sample_seconds: float = Field(description="seconds to fetch one sample")
    sample_wait_fraction: float = Field(
        default=1.0, ge=0, le=1, description="share of that time without computing; it passes in a stopped process too"
    )
    sample_file_bytes: int = Field(default=0, ge=0, description="bytes that fetching one sample read from files")
    flops_per_sample: float | None = Field(
        default=None, gt=0, description="of a training step's matrix products, convolutions and attention"
    )
    pass_bytes: int = Field(default=0, ge=0, description="bytes that a micro-batch moves at least, without its samples")
    update_bytes: int = Field(default=0, ge=0, description="bytes that an optimizer step moves at least")
    padding_fraction: float | None = Field(
        default=None, ge=0, le=1, description="share of tokens that is padding in the batches seen; None: unknown"
    )
    sorted_padding_fraction: float | None = Field(
        default=None, ge=0, le=1, description="the same, if those samples were batched by length; None: unknown"
    )
    classes: int = Field(default=0, ge=0, description="classes of the largest cross-entropy; 0: none was seen")
    score_bytes: int = Field(default=0, ge=0, description="a sample's scores over these classes, as it computes them")
    convolves: tuple[int, ...] = Field(description="dimensions of what the model convolves; 2: images")
    packages: tuple[str, ...] = Field(
        default=("triton", "c++"), description="what is installed beside torch, of what some knobs need"
    )
    has_attention: bool = Field(description="scaled dot-product attention runs")
    repeated_blocks: int = Field(default=0, ge=0, description="identical blocks, which are most of the model; 0: none")
    recomputable_blocks: int = Field(default=0, ge=0, description="those of them that may run twice: no buffer changes")
    small_operators_fraction: float = Field(
        default=0.0, description="share of the loss's host time that goes into operators of a few microseconds"
    )
    outside_fraction: float = Field(
        default=0.0, ge=0, le=1, description="share of the loss's forward time outside the model's own call"
    )
    coupling: float = Field(
        default=0.0,
        ge=0,
        description="by how much the loss of a batch lies beyond those of its halves, relative to it; 0: an average",
    )
    step_seconds: float | None = Field(
        default=None, gt=0, description="seconds of a micro-step on a GPU, with its batch ready"
    )
    device_busy_fraction: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="share of a micro-step in which a GPU computes; the rest it waits for launches",
    )
    unused_parameters: int = Field(default=0, ge=0, description="weight tensors that get no gradient in a step")
    communication_fraction: float | None = Field(
        default=None, ge=0, le=1, description="share of a step of several ranks that exchanging gradients takes"
    )
    fixed_shapes: bool = Field(description="two batches had equal shapes")
    deterministic: bool = Field(default=False, description="the user's code asks torch for deterministic results")
    placeable_bytes: int | None = Field(
        default=None,
        ge=0,
        description="size of the whole data set as one collated batch; None: it cannot be collated once",
    )
    unplaceable_reason: str | None = Field(default=None, description="why it cannot")
    feedback_reason: str | None = Field(
        default=None, description="why indices cannot be drawn further ahead, whatever the number of workers"
    )
    copied_reason: str | None = Field(
        default=None, description="why copies of the data set in workers would not read what one process reads"
    )
    largest_samples: tuple[int, ...] = Field(default=(), description="indices, largest first, where sizes vary")
    optimizer_impls: tuple[str, ...] = Field(description="implementations that this optimizer accepts")
    notes: tuple[str, ...] = Field(default=(), description="notes for the user, a sentence each")
    fork_safe: bool = Field(description="false: bursts start in fresh interpreters")
    fork_unsafe_reason: str | None = None
