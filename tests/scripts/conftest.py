"""What scripts are looked at with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.scripts import Script
from autotune.scripts.seen import SeenScript
from tests.forked import Forked

SeenIn = Callable[[Script], SeenScript]
"""Given a script of the test's folder: what a look sees in it, in a fork."""


@pytest.fixture
def seen_in(forked: Forked, tmp_path: Path) -> SeenIn:
    """Looks at scripts that are started by plain Python."""
    return lambda script: forked.look(script.command[1:], tmp_path)
