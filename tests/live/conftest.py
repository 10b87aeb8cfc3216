"""What tests of trainings that tune themselves share."""

from __future__ import annotations

import pytest

from autotune.recorder.live import models, training
from autotune.torch_settings.compiled import compiled_graphs


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests have compiled in this process is not the script's."""
    before = compiled_graphs()
    for module in (models, training):
        monkeypatch.setattr(module, "compiled_graphs", lambda: compiled_graphs() - before)
