"""What tests of trainings that tune themselves share."""

from __future__ import annotations

import pytest

from autotune.recorder.live import compiling, models, pools, training
from autotune.timing import clock
from autotune.torch_settings.compiled import compiled_graphs


class Time:
    """A clock that stands until a test moves it."""

    now = 0.0  # seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    """The time by which a training in this process goes."""
    time = Time()
    for module in (training, pools, compiling, clock):
        monkeypatch.setattr(module, "perf_counter", lambda: time.now)
    return time


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests have compiled in this process is not the script's."""
    before = compiled_graphs()
    for module in (models, training):
        monkeypatch.setattr(module, "compiled_graphs", lambda: compiled_graphs() - before)
