"""What limits the training: the lowest ceiling that it comes near, else what it waits for, else overhead."""

from __future__ import annotations

import pytest

from autotune.diagnosis import copy_ceiling, diagnose
from autotune.hardware.model import Peaks
from autotune.measurement import Block, Measurement
from tests.factories import make_gpu, make_hardware
from tests.search.surface import make_facts


def measured(rate: float, wait: float = 0.0) -> Measurement:
    """A second of training at a rate, of which a share was spent waiting."""
    return Measurement(
        blocks=(Block(samples=round(rate), seconds=1.0, data_wait_seconds=wait),), steady=True, start_seconds=0.0,
        build_seconds=0.0, warmup_seconds=0.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("wait", "compute", "loader", "copy", "bottleneck"),
    [
        (0.02, 1050.0, 4000.0, None, "compute"),
        (0.3, 1800.0, 1050.0, None, "loader"),
        (0.02, 3000.0, 4000.0, 1050.0, "copy"),
        (0.02, 3000.0, 4000.0, 9000.0, "overhead"),
        (0.3, 3000.0, 4000.0, None, "loader"),
        (0.6, None, None, None, "loader"),
        (0.1, None, None, None, None),
    ],
)
def test_the_bottleneck(
    wait: float, compute: float | None, loader: float | None, copy: float | None, bottleneck: str | None
) -> None:
    """At 1,000 samples/s, by what each part alone could reach."""
    ceilings = {"compute": compute, "loader": loader, "copy": copy}
    found = diagnose(measured(1000, wait), ceilings)
    assert found.bottleneck == bottleneck
    assert found.ceilings == ceilings
    assert found.data_wait_fraction == pytest.approx(wait)


def test_nothing_measured_says_nothing() -> None:
    """Rather than a guess."""
    assert diagnose(None, {}).bottleneck is None


def test_the_copy_is_bounded_by_the_measured_bandwidth() -> None:
    """Batches of 64 samples and a megabyte, at a gigabyte a second."""
    peaks = Peaks(host_to_device_bytes_per_second=1e9)
    hardware = make_hardware(make_gpu(), peaks=peaks)
    facts = make_facts(batch_bytes=10**6)
    assert copy_ceiling(hardware, "cuda", facts) == pytest.approx(64_000)
    assert copy_ceiling(hardware, "cpu", facts) is None
