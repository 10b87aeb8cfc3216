"""What limits the training now, judged by measured ceilings."""

from __future__ import annotations

from autotune.measurement import Measurement
from autotune.result import Diagnosis

NEAR_CEILING = 0.9
"""Within this share of a ceiling, the ceiling is what limits."""
NOTABLE_WAIT = 0.1


def diagnose(best: Measurement | None, compute_ceiling: float | None) -> Diagnosis:
    """The bottleneck of the chosen config.

    Args:
        best: Its end-to-end measurement.
        compute_ceiling: Samples per second with data already on the device; None when it was not measured.
    """
    if best is None:
        return Diagnosis(bottleneck=None, data_wait_fraction=None)
    reached = best.samples_per_second
    ceilings = {"compute": compute_ceiling}
    waits = best.data_wait_fraction
    if compute_ceiling is None:
        bottleneck = "loader" if waits > 0.5 else None
    elif reached >= NEAR_CEILING * compute_ceiling:
        bottleneck = "compute"
    else:
        bottleneck = "loader" if waits >= NOTABLE_WAIT else "overhead"
    return Diagnosis(bottleneck=bottleneck, ceilings=ceilings, data_wait_fraction=waits)
