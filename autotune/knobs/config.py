"""TrainConfig: one point of the search space, in torch's own terms."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from autotune.errors import ConfigError

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
MemoryFormat = Literal["contiguous", "channels_last"]
CompileMode = Literal[
    "default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune", "cudagraphs", "blocks", "loss"
]  # fmt: skip
Checkpointing = Literal["none", "blocks"]
OptimizerImpl = Literal["default", "foreach", "fused"]
SdpaBackend = Literal[
    "default", "math", "flash_attention", "flash_attention_3", "flash_attention_4", "efficient_attention",
    "cudnn_attention",
]  # fmt: skip
Allocator = Literal["default", "tuned"]
DataPlacement = Literal["loader", "collated", "device"]
Strategy = Literal["ddp", "fsdp"]
StartMethod = Literal["fork", "forkserver", "spawn"]
NcclAlgorithm = Literal["Ring", "Tree"]
WeightType = Literal["fp32", "bf16"]

Scalar = bool | int | float | str | None
Parameters = dict[str, Scalar]
"""Keyword arguments for the user's own `build()`, as `--explore` gives them."""


def _not_a_bool(value: Any) -> Any:
    """Refuses ``batch_size=true``, which pydantic would take for 1."""
    if isinstance(value, bool):
        raise PydanticCustomError("int_type", "a whole number")
    return value


Count = Annotated[int, BeforeValidator(_not_a_bool), Field(le=2**31 - 1)]
MOST_PROCESSES = 4096
"""More than the CPUs of any machine. Higher numbers would start too many processes or threads."""


if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass as _ConfigMeta
else:

    class _ConfigMeta(type(BaseModel)):
        """Makes a wrong config in code raise a `ConfigError`. Reading one from a file does not come here."""

        def __call__(cls, /, **values: Any) -> Any:
            try:
                return super().__call__(**values)
            except ValidationError as error:
                raise ConfigError(_explain(error)) from None


class TrainConfig(BaseModel, metaclass=_ConfigMeta):
    """How to train: a value for every knob. The defaults are PyTorch's own.

    A config is canonical: a value without effect is reset to its default, so that two configs that train alike are
    equal. Without workers, nothing is prefetched and nothing persists. Without pinned memory, a copy to the device
    cannot be asynchronous. A single rank exchanges no gradients.

    Raises:
        ConfigError: A knob is unknown or a value out of range; it names the knob and what it takes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    batch_size: Count = Field(default=32, ge=1, description="samples of one micro-step, on one device")
    accumulation_steps: Count = Field(default=1, ge=1, description="micro-steps of one optimizer step")
    precision: Precision = Field(default="fp32", description="fp16 comes with a GradScaler")
    fp8_linear: bool = Field(default=False, description="linear layers multiply in FP8, by torchao; beside bf16")
    fp16_accumulation: bool = Field(default=False, description="products of fp16 are added up in fp16")
    memory_format: MemoryFormat = "contiguous"
    compile_mode: CompileMode | None = Field(
        default=None,
        description="None: eager; cudagraphs: without Inductor; blocks: each repeated block, in the default mode",
    )
    nvgemm: bool = Field(default=False, description="max-autotune also tries NVIDIA's kernels for matrix products")
    checkpointing: Checkpointing = Field(default="none", description="blocks: each is computed again in backward")
    optimizer_impl: OptimizerImpl = Field(default="default", description="default: what torch chooses")
    cudnn_benchmark: bool = False
    sdpa_backend: SdpaBackend = Field(default="default", description="default: what torch chooses")
    data_placement: DataPlacement = Field(
        default="loader", description="collated: the whole data set, once; device: and kept there"
    )
    num_workers: Count = Field(
        default=0, ge=0, le=MOST_PROCESSES, description="DataLoader processes; 0: in the training process"
    )
    prefetch_factor: Count | None = Field(
        default=None, ge=1, le=1024, description="batches per worker; None: torch's 2"
    )
    pin_memory: bool = False
    persistent_workers: bool = False
    dataloader_in_order: bool = Field(default=True, description="false: a batch that is ready need not wait for others")
    multiprocessing_context: StartMethod | None = Field(
        default=None, description="how workers start; None: as Python starts processes on this system"
    )
    non_blocking: bool = False
    device_prefetch: bool = Field(default=False, description="copies on a separate stream while computing")
    num_threads: Count | None = Field(
        default=None, ge=1, le=MOST_PROCESSES, description="CPU intra-op; None: torch's own"
    )
    allocator: Allocator = "default"
    ranks: Count = Field(default=1, ge=1, description="processes that train together, one per device")
    strategy: Strategy = Field(
        default="ddp", description="fsdp: weights, gradients and the optimizer's states are split among the ranks"
    )
    reshard_after_forward: bool = Field(
        default=True, description="fsdp: gathered weights are dropped after forward, and gathered again in backward"
    )
    fsdp_param_dtype: WeightType = Field(
        default="fp32",
        description="fsdp: what weights are cast to before they are gathered; bf16 goes with that precision",
    )
    fsdp_prefetch: Count = Field(
        default=0, ge=0, description="fsdp: blocks that are gathered ahead, forward and backward; 0: torch's own order"
    )
    fsdp_own_group: bool = Field(
        default=False, description="fsdp: gradients are exchanged over connections of their own"
    )
    fsdp_keep_storage: bool = Field(
        default=False, description="fsdp: weights are gathered into the same memory again, which is not freed"
    )
    exchange_dtype: WeightType = Field(
        default="fp32", description="what gradients are cast to before they are exchanged"
    )
    ddp_bucket_cap_mb: Count | None = Field(
        default=None, ge=1, description="MiB of gradients per bucket; None: torch's 25"
    )
    gradient_as_bucket_view: bool = Field(default=False, description="gradients lie in DDP's buckets")
    batched_grad_copy: bool = Field(default=False, description="gradients are copied into DDP's buckets all at once")
    lazy_bucket_allocation: bool = Field(default=False, description="DDP's buckets exist in the backward pass only")
    static_graph: bool = Field(default=False, description="promises DDP that each step uses the same parameters")
    nccl_max_ctas: Count | None = Field(
        default=None, ge=1, le=64, description="thread blocks of a GPU that NCCL may take; None: its own choice"
    )
    nccl_algo: NcclAlgorithm | None = Field(
        default=None, description="how NCCL sums gradients over all ranks; None: its own choice"
    )
    nccl_buffsize: Count | None = Field(
        default=None, ge=1, description="bytes of NCCL's buffer between two ranks; None: its own 4 MiB"
    )
    find_unused_parameters: bool = Field(default=False, description="DDP searches for parameters a step leaves out")

    @model_validator(mode="after")
    def _canonical(self) -> TrainConfig:
        """Resets values that have no effect beside the others. Values are validated by now: "0" is 0."""
        resets: dict[str, Scalar] = {}
        if self.data_placement != "loader":  # there is nothing left to load
            resets["num_workers"] = 0
        if self.num_workers == 0 or "num_workers" in resets:
            resets |= {"prefetch_factor": None, "persistent_workers": False, "dataloader_in_order": True}
            resets["multiprocessing_context"] = None
        elif self.prefetch_factor is None:
            resets["prefetch_factor"] = 2
        if self.data_placement == "device":  # there is nothing left to copy
            resets["pin_memory"] = False
        if not self.pin_memory or "pin_memory" in resets:
            resets |= {"non_blocking": False, "device_prefetch": False}
        elif self.device_prefetch:  # it waits for no copy
            resets["non_blocking"] = True
        if self.ranks == 1:
            resets |= {"strategy": "ddp", "exchange_dtype": "fp32"}
            resets |= {"nccl_max_ctas": None, "nccl_algo": None, "nccl_buffsize": None}
        if self.ranks == 1 or self.strategy == "ddp":
            resets |= {"reshard_after_forward": True, "fsdp_param_dtype": "fp32", "fsdp_prefetch": 0}
            resets |= {"fsdp_own_group": False, "fsdp_keep_storage": False}
        elif self.precision != "bf16":
            resets["fsdp_param_dtype"] = "fp32"
        if self.ranks == 1 or self.strategy == "fsdp":  # FSDP has none of these
            resets |= {"ddp_bucket_cap_mb": None, "gradient_as_bucket_view": False, "batched_grad_copy": False}
            resets |= {"static_graph": False, "find_unused_parameters": False, "lazy_bucket_allocation": False}
        self.__dict__.update(resets)  # the model is frozen, but not yet in use
        return self

    @property
    def is_compiled(self) -> bool:
        """Whether torch.compile compiles the training, or a part of it."""
        return self.compile_mode is not None

    @property
    def compiles_loss(self) -> bool:
        """Whether the loss is compiled along with the model."""
        return self.compile_mode == "loss"

    @property
    def compiles_blocks(self) -> bool:
        """Whether each repeated block is compiled by itself."""
        return self.compile_mode == "blocks"

    @property
    def eager(self) -> TrainConfig:
        """This config without compiling."""
        return self.replace(compile_mode=None)

    @property
    def queue_batches(self) -> int:
        """Batches that the workers of one rank prepare in advance."""
        return self.num_workers * (self.prefetch_factor or 0)

    @property
    def effective_batch(self) -> int:
        """Samples of one optimizer step, of all ranks together."""
        return self.micro_batch * self.accumulation_steps

    @property
    def micro_batch(self) -> int:
        """Samples of one micro-step, of all ranks together."""
        return self.batch_size * self.ranks

    def replace(self, **changes: Any) -> TrainConfig:
        """This config with some knobs changed, validated.

        Raises:
            ConfigError: When a knob is unknown or a value out of range.
        """
        return TrainConfig(**{**self.model_dump(), **changes})

    def pick(self, knobs: Iterable[str]) -> tuple[Scalar, ...]:
        """The values of some knobs."""
        return tuple(getattr(self, knob) for knob in knobs)

    def changes_from(self, other: TrainConfig) -> dict[str, tuple[Scalar, Scalar]]:
        """The knobs in which this config differs from another: ``{knob: (other's value, this value)}``."""
        theirs = other.model_dump()
        return {knob: (theirs[knob], value) for knob, value in self.model_dump().items() if value != theirs[knob]}


KNOB_NAMES: tuple[str, ...] = tuple(TrainConfig.model_fields)
_ENABLING: dict[str, Scalar] = {"num_workers": 1, "pin_memory": True, "ranks": 2}
_ENABLING_OF: dict[str, dict[str, Scalar]] = {
    "reshard_after_forward": {"strategy": "fsdp"},
    "fsdp_param_dtype": {"strategy": "fsdp", "precision": "bf16"},
    "fsdp_prefetch": {"strategy": "fsdp"},
    "fsdp_own_group": {"strategy": "fsdp"},
    "fsdp_keep_storage": {"strategy": "fsdp"},
}
"""Values that give each knob an effect. Typed values are validated beside them, so that none is silently reset."""


def unknown_knob(name: str) -> str:
    """The message for a name that is not a knob."""
    return f"{name!r} is not a knob; the knobs are {', '.join(KNOB_NAMES)}"


def check_values(values: Mapping[str, Scalar]) -> TrainConfig:
    """A config in which each of these values has an effect.

    Raises:
        ConfigError: When a knob is unknown or a value out of range; it names the knob and what it takes.
    """
    enabling: dict[str, Any] = dict(_ENABLING)
    for knob in values:
        enabling |= _ENABLING_OF.get(knob, {})
    return TrainConfig(**{**enabling, **values})


def parse_knob(knob: str, text: str) -> Scalar:
    """The value that a person typed for a knob (``--pin precision=bf16``), in the knob's own type.

    Raises:
        ConfigError: When the knob is unknown or does not take this value.
    """
    if knob not in KNOB_NAMES:
        raise ConfigError(unknown_knob(knob))
    value = parse_scalar(text)
    config = check_values({knob: value})
    return getattr(config, knob) if value is not None else None


def allowed_words(knob: str) -> list[str]:
    """The words that a knob accepts; empty if it takes numbers or booleans."""
    annotation = TrainConfig.model_fields[knob].annotation
    parts = (annotation, *get_args(annotation))
    words = [str(value) for part in parts for value in get_args(part) if isinstance(value, str)]
    return ["none", *words] if words and type(None) in parts else words


def parse_scalar(text: str) -> Scalar:
    """A typed value from the command line: ``true``, ``null``, ``8``, ``0.5`` or a word."""
    words: dict[str, Scalar] = {"true": True, "false": False, "none": None, "null": None}
    stripped = text.strip()
    if stripped.lower() in words:
        return words[stripped.lower()]
    with contextlib.suppress(ValueError):
        return int(stripped)
    with contextlib.suppress(ValueError):
        if math.isfinite(number := float(stripped)):  # a result file cannot hold others as numbers
            return number
    return stripped


def format_scalar(value: Scalar) -> str:
    """A value in the words that `parse_scalar` reads: ``true``, ``none``, ``8``, ``bf16``."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _explain(error: ValidationError) -> str:
    """The first validation error, in one sentence."""
    first = error.errors()[0]
    knob = str(first["loc"][0]) if first["loc"] else "config"
    if first["type"] == "extra_forbidden":
        return unknown_knob(knob)
    allowed = allowed_words(knob) if knob in KNOB_NAMES else []
    what = first["msg"].lower().removeprefix("input should be ")
    expected = f"one of {', '.join(allowed)}" if allowed else what
    return f"{knob}={first.get('input')!r} cannot be used: expected {expected}"
