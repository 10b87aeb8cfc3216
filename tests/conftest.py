"""One forkserver for all tests that need real bursts, and are not about how the forkserver starts or ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from autotune.bursts.isolation import Isolation
from autotune.bursts.runner import ProcessRunner

START_SECONDS = 60.0

RunnerOf = Callable[..., ProcessRunner]
"""Given a target, and what `ProcessRunner` takes besides: runs its bursts on the CPU."""


@pytest.fixture(scope="session")
def forkserver() -> Iterator[Isolation]:
    """Started once; nobody may leave it dead."""
    with Isolation("tests.workloads.tiny:build") as isolation:
        isolation.start(START_SECONDS)
        yield isolation


@pytest.fixture
def runner_of(forkserver: Isolation) -> RunnerOf:
    """Bursts of any target under `tests`, each in a process of its own that the session's one forkserver forks.

    The forkserver has torch and the tiny workload imported; the burst imports the rest.
    """

    def make(target: str, **options: int) -> ProcessRunner:
        forkserver.target = target
        return ProcessRunner(forkserver, "cpu", **options)

    return make
