"""The energy of a script's blocks, by the events that its parent gets."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.hardware import CpuEnergy
from autotune.scripts.isolation import BlockEnergy


class Counter(CpuEnergy):
    """A counter with these readings, one for each event."""

    def __init__(self, readings: list[float | None]) -> None:
        super().__init__()
        self._readings = iter(readings)

    def joules(self) -> float | None:
        """The next reading."""
        return next(self._readings)


@pytest.mark.parametrize(
    ("events", "readings", "joules"),
    [
        (["train", "block"], [100, 130], 30),
        (["warm up", "evaluate", "train", "ready", "train", "block"], [0, 1, 5, 7, 100, 130], 30),
        (["train", "evaluate", "train", "block"], [100, 110, 150, 160], 20),
        (["train", "evaluate", "block"], [100, 110, 130], 30),  # what looked like an evaluation was training
        (["train", "evaluate", "out", "train", "block"], [1, 2, 3, 100, 130], 30),
        (["train", "block"], [None, 130], None),
        (["train", "block"], [100, None], None),
        (["block"], [130], None),
    ],
)
def test_a_block_has_the_energy_between_its_ends(
    events: list[str], readings: list[float | None], joules: float | None
) -> None:
    """Without that of the evaluations in it, and none where a reading is missing."""
    energy, event = BlockEnergy(Counter(readings)), dict[str, Any]()
    for name in events:
        event = {"event": name, "seen": {}} if name in {"ready", "block", "out"} else {"event": "phase", "phase": name}
        energy.note(event)
    assert event["seen"].get("energy_joules") == joules
