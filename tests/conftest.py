"""What makes tests cheap: one forkserver for all real bursts, and intervals that are good enough to test with."""

from __future__ import annotations

import gc
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.runner import ProcessRunner
from autotune.measuring import statistics
from autotune.sandbox.system import LINUX, why_no_fork
from tests.forked import Forked

HERE = Path(__file__).parent
START_SECONDS = 60.0

RESAMPLES = 100
"""A tenth of what a real search draws: beside its bursts that costs no time, on a virtual clock it is the whole cost.

The ends of an interval then scatter by a tenth of its width; the gains that tests look for are several widths."""

NEED_LINUX = {
    "faults": "processes are killed, stopped and watched through /proc",
    "fleet": "Slurm and Ray's jobs end by a parent's death signal",
    "gpu": "CUDA is tried on Linux",
    "live": "scripts are tuned while they train, with forked workers",
    "sandbox": "namespaces, Landlock and seccomp",
    "scripts": "scripts are forked, behind local sockets",
}
"""Folders of tests whose subject only Linux has, and what it is: elsewhere they are skipped as a whole."""

LONGEST = ("test_readme.py",)
"""Modules whose slow tests take two to three minutes."""

SLOW_TIMEOUT_SECONDS = 900
"""Of a slow test: three times what the longest takes on two usual cores, so that slower machines end it too."""

UNTIL = "TESTS_UNTIL"
"""Environment variable: seconds since 1970 after which no test begins. CI sets it: its own time is limited."""

ORDER = "TESTS_ORDER"
"""Environment variable: any word; modules run in an order drawn from it. CI gives the commit, so that what one run has
no time for, another runs."""

RunnerOf = Callable[..., ProcessRunner]
"""Given a target, and what `ProcessRunner` takes besides: runs its bursts on the CPU."""


def pytest_configure() -> None:
    """Several tests run at the same time: OpenMP's threads must not spin while they wait for each other.

    On two cores they would make each other ten to thirty times as slow.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Hundreds of fresh processes import the package: compiling it each time took a third of their time.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest begin first: at the end, the other workers would wait for them."""
    items.sort(key=lambda item: (item.path.name not in LONGEST, _place(item.nodeid.partition("::")[0])))
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_SECONDS))


def _place(module: str) -> float:
    """Where a module's tests stand in the order that was asked for."""
    order = os.environ.get(ORDER)
    return random.Random(f"{order} {module}").random() if order else 0.0


def pytest_runtest_setup() -> None:
    """Skips what has not begun when the time is over."""
    if time.time() > float(os.environ.get(UNTIL) or "inf"):
        pytest.skip(f"no time is left for it: {UNTIL}")


def pytest_collection_finish() -> None:
    """Full collections of garbage, which bursts ask for, need not look at all that was imported."""
    gc.collect()
    gc.freeze()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leaves out what needs Linux before it is imported: its modules name what other systems lack."""
    there = {HERE / folder for folder in NEED_LINUX}
    return True if not LINUX and there & {collection_path, *collection_path.parents} else None


def pytest_report_header() -> list[str]:
    """Says what is left out, and why."""
    return [] if LINUX else [f"skipped: tests/{folder} needs Linux: {why}" for folder, why in NEED_LINUX.items()]


@pytest.fixture(scope="session")
def forkserver() -> Iterator[Isolation]:
    """Started once; no test may leave it dead."""
    if (reason := why_no_fork()) is not None:
        pytest.skip(f"{reason}, and a fresh interpreter for each burst of the tests would take an hour")
    with Isolation("tests.workloads.tiny:build") as isolation:
        isolation.start(START_SECONDS)
        yield isolation


@pytest.fixture
def runner_of(forkserver: Isolation) -> RunnerOf:
    """Bursts of any target under `tests`, each in a process of its own that the session's one forkserver forks.

    The forkserver has torch and the tiny workload imported; the burst imports the rest.
    """

    def make(target: str, **options: Any) -> ProcessRunner:
        forkserver.target = target
        return ProcessRunner(forkserver, "cpu", **options)

    return make


@pytest.fixture(scope="session")
def forked() -> Iterator[Forked]:
    """Runs scripts, each in a fork of one process that has torch imported."""
    with Forked() as ready:
        yield ready


@pytest.fixture
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals from few resamples, for tests that judge hundreds of them, and none to the last digit."""
    monkeypatch.setattr(statistics, "BOOTSTRAP_RESAMPLES", RESAMPLES)
