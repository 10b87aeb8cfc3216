"""The knobs of a config that the functions here look at: a `TrainConfig`, or in a script what was sent of one."""

from __future__ import annotations

from typing import Protocol


class Knobs(Protocol):
    """The knobs that functions of a model look at."""

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
        """In which matrices are multiplied."""

    @property
    def checkpointing(self) -> str:
        """What is computed again in backward, rather than kept."""
