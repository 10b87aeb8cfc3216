"""The knobs that the functions here read: from a `TrainConfig`, or in a script from the part of one that was sent."""

from __future__ import annotations

from typing import Protocol


class Knobs(Protocol):
    """The knobs that change a model."""

    @property
    def accumulation_steps(self) -> int:
        """Micro-steps of an optimizer step."""

    @property
    def compile_mode(self) -> str | None:
        """The mode of torch.compile; None: eager."""

    @property
    def fp8_linear(self) -> bool:
        """Whether linear layers multiply in FP8."""

    @property
    def memory_format(self) -> str:
        """How images lie in memory."""

    @property
    def precision(self) -> str:
        """Precision of matrix products."""

    @property
    def checkpointing(self) -> str:
        """Which activations are computed again in the backward pass, rather than kept."""
