"""What limits the training now, judged by measured ceilings: computing, the loader, the copy to the device."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.facts import WorkloadFacts
from autotune.hardware.model import Hardware
from autotune.measurement import Measurement
from autotune.result import Diagnosis

NEAR_CEILING = 0.9
"""Within this share of a ceiling, the ceiling is what limits."""
NOTABLE_WAIT = 0.1


def diagnose(best: Measurement | None, ceilings: Mapping[str, float | None]) -> Diagnosis:
    """The bottleneck of the chosen config.

    Args:
        best: Its end-to-end measurement.
        ceilings: Samples per second of each part alone: ``compute``, ``loader``, ``copy``; None where it is not known.
    """
    if best is None:
        return Diagnosis(bottleneck=None, data_wait_fraction=None)
    return Diagnosis(
        bottleneck=_bottleneck(best, ceilings), ceilings=dict(ceilings), data_wait_fraction=best.data_wait_fraction
    )


def _bottleneck(best: Measurement, ceilings: Mapping[str, float | None]) -> str | None:
    """The lowest ceiling that training comes near; ``overhead`` when it stays below all of them without waiting."""
    reached, waits = best.samples_per_second, best.data_wait_fraction
    near = {part: rate for part, rate in ceilings.items() if rate is not None and reached >= NEAR_CEILING * rate}
    if near:
        return min(near, key=lambda part: near[part])
    if ceilings.get("compute") is None:
        return "loader" if waits > 0.5 else None
    return "loader" if waits >= NOTABLE_WAIT else "overhead"


def copy_ceiling(hardware: Hardware, device: str, facts: WorkloadFacts) -> float | None:
    """Samples per second that the copy to the device alone could bring; None without a measured bandwidth."""
    peaks = hardware.peaks if device != "cpu" else None
    bandwidth = peaks.host_to_device_bytes_per_second if peaks is not None else None
    if bandwidth is None or facts.batch_bytes <= 0:
        return None
    return bandwidth * facts.baseline.batch_size / facts.batch_bytes
