"""Every knob, once: its values here, what it changes, how torch is told.

A `TrainConfig` has a value for each knob. `build_space` makes the `Space` that is searched, from the machine, from
`WorkloadFacts`, and from what the person asked for; it says why each value is tried, and why a knob is not.
"""

from autotune.knobs.config import TrainConfig
from autotune.knobs.facts import WorkloadFacts
from autotune.knobs.space import Space, build_space

__all__ = ["Space", "TrainConfig", "WorkloadFacts", "build_space"]
