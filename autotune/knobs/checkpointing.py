"""The knob that recomputes activations in backward instead of keeping them: checkpointing."""

from __future__ import annotations

from autotune.knobs.context import Choices, SearchContext
from autotune.knobs.knob import Knob
from autotune.torch_settings.wrapping import checkpoint_blocks, checkpointed


def _candidates(context: SearchContext) -> Choices | str:
    """Searched where a larger batch can use the memory that it saves; otherwise tried only if memory runs out."""
    possible = _when_short(context)
    if isinstance(possible, str) or context.seeks_memory_by("checkpointing"):
        return possible
    return "it saves memory but costs time, and the batch is fixed: it is tried only if the baseline runs out of memory"


def _when_short(context: SearchContext) -> Choices | str:
    """Blocks that can be recomputed."""
    if not context.facts.recomputable_blocks:
        return "the model has no repeated blocks that can be recomputed (blocks with BatchNorm cannot)"
    return Choices(("none", "blocks"), "recomputing blocks in backward leaves room for larger batches")


KNOBS = (
    Knob(
        name="checkpointing", scope="compiled",
        when="blocks repeat, with `--effective-batch free` or where the baseline does not fit",
        why="recomputing blocks in backward takes less memory, so that larger batches fit",
        candidates=_candidates, when_short=_when_short, priority={"gpu": 125, "cpu": 105}, guide=85,
        affects={"memory", "compiled code"}, on_model=checkpoint_blocks,
        reads=checkpointed,
        lacks={"patch": "the model's blocks are wrapped after it is made"},
        without_word="the model's blocks are wrapped when training starts",
    ),
)  # fmt: skip
