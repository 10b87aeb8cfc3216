"""The energy of a script's blocks, by the events that its parent gets."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import Request
from autotune.hardware import CpuEnergy
from autotune.scripts import ScriptIsolation
from autotune.scripts.isolation import BlockEnergy, Course
from tests.example_scripts import script


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


@pytest.mark.parametrize(("gpus", "joules"), [(("GPU-1",), 20), (("GPU-1", "GPU-2"), 90)])
def test_one_gpu_that_is_watched_has_the_energy_without_evaluations(
    monkeypatch: pytest.MonkeyPatch, gpus: tuple[str, ...], joules: int
) -> None:
    """Of several, the counters of all count."""
    block = {"event": "block", "player": 0, "own_pass": None, "seen": {"energy_joules": 20}}
    monkeypatch.setattr(Isolation, "wait", lambda *_: block)
    with contextlib.closing(ScriptIsolation(script("plain"))) as isolation:
        monkeypatch.setattr(isolation, "_seen", SimpleNamespace(used_gpus=gpus))
        monkeypatch.setattr(isolation, "_gpus", SimpleNamespace(end=lambda: {"energy_joules": 90}, close=lambda: None))
        isolation._courses[0] = Course(Request(job="host"))
        event = isolation.wait(SimpleNamespace(number=0), 0.0)  # type: ignore[arg-type]
    assert event is not None
    assert event["seen"]["energy_joules"] == joules
