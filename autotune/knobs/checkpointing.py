"""The knob of what backward computes again instead of keeping it: checkpointing."""

from __future__ import annotations

from autotune.knobs.context import Choices, SearchContext
from autotune.knobs.knob import Knob
from autotune.recorder.wrapping import checkpoint_blocks, checkpointed


def _candidates(context: SearchContext) -> Choices | str:
    """Where memory may bind: a free batch can grow into what is saved. Else it is kept for when memory runs out."""
    possible = _when_short(context)
    if isinstance(possible, str) or context.seeks_memory_by("checkpointing"):
        return possible
    return "it buys memory with time, and the batch is held: it is tried should the baseline run out of memory"


def _when_short(context: SearchContext) -> Choices | str:
    """Blocks that may be computed twice."""
    if not context.facts.recomputable_blocks:
        return "no blocks repeat in the model that could be computed again (those with BatchNorm could not)"
    return Choices(("none", "blocks"), "blocks that are computed again in backward leave room for larger batches")


KNOBS = (
    Knob(
        name="checkpointing", scope="compiled",
        when="blocks repeat, with `--effective-batch free` or where the baseline does not fit",
        why="blocks that are computed again in backward take less memory, so that larger batches fit",
        candidates=_candidates, when_short=_when_short, priority={"gpu": 125, "cpu": 105}, guide=85,
        affects={"memory", "compiled code"}, on_model=checkpoint_blocks,
        reads=lambda model, *_: None if model is None else checkpointed(model),
        without_word="the model's blocks are wrapped when training starts",
    ),
)  # fmt: skip
