"""TrainConfig: one point of the space that is searched, in the words of torch itself."""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from autotune.errors import ConfigError

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
MemoryFormat = Literal["contiguous", "channels_last"]
CompileMode = Literal["default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune"]
OptimizerImpl = Literal["default", "foreach", "fused"]
SdpaBackend = Literal["default", "math", "flash_attention", "efficient_attention", "cudnn_attention"]
Allocator = Literal["default", "tuned"]

Scalar = bool | int | float | str | None
Parameters = dict[str, Scalar]
"""Keyword arguments for the user's own `build()`, as `--explore` gives them."""


class TrainConfig(BaseModel):
    """How to train: a value for every knob. The defaults are PyTorch's own.

    A config is canonical: what has no effect is set to its default, so that two configs that train alike
    are equal (without workers there is no prefetching and nothing persists; without pinned memory a
    copy to the device cannot be asynchronous).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    batch_size: int = Field(default=32, ge=1, description="samples of one micro-step, on one device")
    accumulation_steps: int = Field(default=1, ge=1, description="micro-steps of one optimizer step")
    precision: Precision = Field(default="fp32", description="fp16 comes with a GradScaler")
    memory_format: MemoryFormat = "contiguous"
    compile_mode: CompileMode | None = Field(default=None, description="None: eager")
    optimizer_impl: OptimizerImpl = Field(default="default", description="default: what torch chooses")
    cudnn_benchmark: bool = False
    sdpa_backend: SdpaBackend = Field(default="default", description="default: what torch chooses")
    num_workers: int = Field(default=0, ge=0, description="DataLoader processes; 0: in the training process")
    prefetch_factor: int | None = Field(default=None, ge=1, description="batches a worker; None: torch's 2")
    pin_memory: bool = False
    persistent_workers: bool = False
    non_blocking: bool = False
    num_threads: int | None = Field(default=None, ge=1, description="CPU intra-op; None: torch's own")
    allocator: Allocator = "default"

    @model_validator(mode="before")
    @classmethod
    def _canonical(cls, values: Any) -> Any:
        """Resets what has no effect in combination with the rest."""
        if not isinstance(values, dict):
            return values
        values = dict(values)
        if values.get("num_workers", 0) == 0:
            values.pop("prefetch_factor", None)
            values.pop("persistent_workers", None)
        elif values.get("prefetch_factor") is None:
            values["prefetch_factor"] = 2
        if not values.get("pin_memory", False):
            values.pop("non_blocking", None)
        return values

    @property
    def effective_batch(self) -> int:
        """Samples of one optimizer step."""
        return self.batch_size * self.accumulation_steps

    def replace(self, **changes: Any) -> TrainConfig:
        """This config with some knobs changed, validated.

        Raises:
            ConfigError: When a knob is unknown or a value out of range.
        """
        return make_config({**self.model_dump(), **changes})

    def changes_from(self, other: TrainConfig) -> dict[str, tuple[Scalar, Scalar]]:
        """The knobs in which this config differs from another: ``{knob: (other's value, this value)}``."""
        mine, theirs = self.model_dump(), other.model_dump()
        return {knob: (theirs[knob], mine[knob]) for knob in mine if mine[knob] != theirs[knob]}


KNOBS: tuple[str, ...] = tuple(TrainConfig.model_fields)
MEMORY_KNOBS: tuple[str, ...] = ("precision", "memory_format", "compile_mode", "optimizer_impl", "sdpa_backend")
"""Knobs, besides the batch size, that change how much device memory a step takes."""


def make_config(values: dict[str, Any]) -> TrainConfig:
    """A TrainConfig from plain values.

    Raises:
        ConfigError: When a knob is unknown or a value out of range; it names the knob and what it takes.
    """
    try:
        return TrainConfig(**values)
    except ValidationError as error:
        raise ConfigError(_explain(error)) from None


def parse_knob(knob: str, text: str) -> Scalar:
    """The value that a person typed for a knob (``--pin precision=bf16``), in the knob's own type.

    Raises:
        ConfigError: When the knob is unknown or does not take this value.
    """
    if knob not in KNOBS:
        raise ConfigError(f"{knob!r} is no knob; the knobs are {', '.join(KNOBS)}")
    value = parse_scalar(text)
    # Validated on its own, so that a rule between knobs cannot swallow the value that was typed.
    enabling: dict[str, Any] = {"num_workers": 1, "pin_memory": True}
    config = make_config({**enabling, knob: value})
    return getattr(config, knob) if value is not None else None


def parse_scalar(text: str) -> Scalar:
    """A typed value from the command line: ``true``, ``null``, ``8``, ``0.5`` or a word."""
    words: dict[str, Scalar] = {"true": True, "false": False, "none": None, "null": None}
    stripped = text.strip()
    if stripped.lower() in words:
        return words[stripped.lower()]
    for number in (int, float):
        try:
            return number(stripped)
        except ValueError:
            continue
    return stripped


def _explain(error: ValidationError) -> str:
    """The first mistake of a validation, in one sentence."""
    first = error.errors()[0]
    knob = str(first["loc"][0]) if first["loc"] else "config"
    if first["type"] == "extra_forbidden":
        return f"{knob!r} is no knob; the knobs are {', '.join(KNOBS)}"
    annotation = TrainConfig.model_fields[knob].annotation if knob in TrainConfig.model_fields else None
    allowed = [str(value) for part in (annotation, *get_args(annotation)) for value in get_args(part) if isinstance(value, str)]
    expected = f"one of {', '.join(allowed)}" if allowed else first["msg"].lower()
    return f"{knob}={first.get('input')!r} cannot be used: expected {expected}"
