"""A temporary folder of its own for each module of tests, so that all that is left in it is known to be ours."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The temporary folder of everything that these tests start."""
    folder = tmp_path_factory.mktemp("tmp")
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    yield folder
    tempfile.tempdir = before


@pytest.fixture(scope="module")
def notes(temporary: Path) -> Iterator[Path]:
    """Where workloads write the ids of processes that they leave."""
    file = temporary / "pids"
    os.environ["FAULTS_PIDS"] = str(file)
    yield file
    del os.environ["FAULTS_PIDS"]
