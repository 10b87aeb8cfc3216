"""The knob for the memory layout of images: memory_format."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.knobs.config import Scalar
from autotune.knobs.context import Choices, SearchContext
from autotune.knobs.knob import EVERYWHERE, Knob
from autotune.torch_settings.layout import lay_out, layout_of


def _candidates(context: SearchContext) -> Choices | str:
    """Memory layouts of images."""
    if not context.facts.has_images:
        return "no 4-D tensors occur, so there is nothing to lay out as channels_last"
    return Choices(("contiguous", "channels_last"), "convolutions on images are often faster in channels_last")


def _preferred(context: SearchContext, picked: Mapping[str, Scalar]) -> tuple[Scalar, ...]:
    """Without tensor cores, convolutions on a GPU are often slower in channels_last."""
    tensor_cores = picked.get("precision", context.start.precision) != "fp32"
    return ("channels_last",) if context.device == "cpu" or tensor_cores else ()


KNOBS = (
    Knob(
        name="memory_format", scope="live",
        when="4-D tensors occur", why="convolutions on images are often faster in channels_last",
        candidates=_candidates, meets=("precision",), prefers=_preferred, priority={"gpu": 50, "cpu": 40}, guide=100,
        affects={"memory", "arithmetic", "compiled code"}, on_model=lay_out,
        reads=layout_of,
        trials={"channels_last": EVERYWHERE},
        lacks={"patch": "weights are laid out after the model is made, and batches when they are drawn"},
        without_word="weights and batches are laid out when training starts",
    ),
)  # fmt: skip
