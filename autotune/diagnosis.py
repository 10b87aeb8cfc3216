"""What limits the training now, judged by measured ceilings."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.measurement import Measurement
from autotune.result import Diagnosis

NEAR_CEILING = 0.9
"""Within this share of a ceiling, the ceiling is what limits."""
NOTABLE_WAIT = 0.1


def diagnose(best: Measurement | None, ceilings: Mapping[str, float | None]) -> Diagnosis:
    """The bottleneck of the chosen config.

    Args:
        best: Its end-to-end measurement.
        ceilings: Samples per second of each part alone, ``compute`` and ``loader``; None where it was not measured.
    """
    if best is None:
        return Diagnosis(bottleneck=None, data_wait_fraction=None)
    reached = best.samples_per_second
    compute_ceiling = ceilings.get("compute")
    waits = best.data_wait_fraction
    if compute_ceiling is None:
        bottleneck = "loader" if waits > 0.5 else None
    elif reached >= NEAR_CEILING * compute_ceiling:
        bottleneck = "compute"
    else:
        bottleneck = "loader" if waits >= NOTABLE_WAIT else "overhead"
    return Diagnosis(bottleneck=bottleneck, ceilings=dict(ceilings), data_wait_fraction=waits)
