"""Knobs: their values on this machine, what they change, and how they are applied to torch.

A `TrainConfig` has a value for each knob. `build_space` builds the search `Space` from the machine, `WorkloadFacts` and
the user's options. It says why each value is tried, and why a knob is not searched. May import
`hardware` and what lies below. Start with `knob`.
"""

from autotune.knobs.batch import divisors
from autotune.knobs.config import (
    KNOB_NAMES,
    Parameters,
    Precision,
    Scalar,
    TrainConfig,
    check_values,
    format_scalar,
    parse_knob,
    parse_scalar,
    unknown_knob,
)
from autotune.knobs.constraints import at_most, limit_of, share_of_rank
from autotune.knobs.context import Choices
from autotune.knobs.facts import ModelFacts, WorkloadFacts
from autotune.knobs.ranks import exchanges_coarsely
from autotune.knobs.registry import (
    DATALOADER_ARGUMENTS,
    KNOBS,
    affecting,
    arguments_as_knobs,
    buying_memory,
    can_share_process,
    ddp_arguments,
    following,
    framework_arguments,
    going_with,
    idle_knobs,
    in_guides_order,
    loader_arguments,
    variables,
    with_what_is_in_force,
)
from autotune.knobs.space import Space, build_space
from autotune.knobs.while_training import Candidates, LiveFacts, allowed_knobs, live_candidates
from autotune.torch_settings.compiled import OWN_MODES, keep_gradients
from autotune.torch_settings.precision import HALF, torch_dtype

__all__ = [
    "DATALOADER_ARGUMENTS", "HALF", "KNOBS", "KNOB_NAMES", "OWN_MODES", "Candidates", "Choices", "LiveFacts",
    "ModelFacts", "Parameters", "Precision", "Scalar", "Space", "TrainConfig", "WorkloadFacts", "affecting",
    "allowed_knobs", "arguments_as_knobs", "at_most", "build_space", "buying_memory", "can_share_process",
    "check_values", "ddp_arguments", "divisors", "exchanges_coarsely", "following", "format_scalar",
    "framework_arguments", "going_with", "idle_knobs", "in_guides_order", "keep_gradients", "limit_of",
    "live_candidates", "loader_arguments", "parse_knob", "parse_scalar", "share_of_rank", "torch_dtype", "unknown_knob",
    "variables", "with_what_is_in_force",
]  # fmt: skip
