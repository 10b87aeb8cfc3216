"""Everything in this folder needs a CUDA device, and skips itself without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.hardware import probe_host


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of this folder, and skips them where there is no NVIDIA GPU; torch is not asked, but NVML."""
    here = Path(__file__).parent
    found = any(gpu.kind == "cuda" for gpu in probe_host().gpus)
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not found:
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
