"""A training that is tuned while it goes on learns what it learns untuned: from the same samples, to the last bit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.live.loops import FAULTS, FRAMEWORKS, LOADERS, LOOPS

pytestmark = pytest.mark.slow
Cases = dict[str, dict[str, Any]]


def cases(kind: str) -> Cases:
    """What each case of a kind has learned."""
    ran = subprocess.run([sys.executable, "-m", "tests.live.loops", kind], capture_output=True, text=True, check=True)
    return {case["case"]: case for case in map(json.loads, re.findall(r'^{"case".*}$', ran.stdout, re.MULTILINE))}


@pytest.fixture(scope="module")
def of_loaders() -> Cases:
    """Loaders of many kinds, each exchanged for others."""
    return cases("loaders")


@pytest.fixture(scope="module")
def of_loops() -> Cases:
    """Loops of many kinds."""
    return cases("loops")


@pytest.fixture(scope="module")
def of_frameworks() -> Cases:
    """Loops of frameworks."""
    return cases("frameworks")


@pytest.fixture(scope="module")
def of_faults() -> Cases:
    """Workers of candidates that fail."""
    return cases("faults")


@pytest.fixture(scope="module")
def of_resumed() -> Cases:
    """Trainings that are interrupted halfway."""
    return cases("resumes")


@pytest.mark.parametrize("name", LOADERS)
def test_loaders_that_are_exchanged_hand_out_the_same(of_loaders: Cases, name: str) -> None:
    """The same samples in the same order, the same losses, and the same random numbers after each epoch."""
    case = of_loaders[name]
    assert len(case["decided"]) >= 3
    assert case["tuned"] == case["plain"]


@pytest.mark.parametrize("loop", LOOPS)
def test_loops_learn_the_same(of_loops: Cases, loop: str) -> None:
    """Whatever else a loop does between its steps."""
    case = of_loops[loop]
    assert len(case["decided"]) >= 2 or case["left"]["num_workers"]
    assert case["tuned"] == case["plain"]


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_frameworks_learn_the_same(of_frameworks: Cases, name: str) -> None:
    """They look into loaders and their iterators, and draw a batch ahead."""
    case = of_frameworks[name]
    assert len(case["decided"]) >= 2
    assert case["tuned"] == case["plain"]


@pytest.mark.parametrize(("name", "error"), [("optimizers", 1e-4), ("layouts", 1e-4), ("convolutions", 0.05)])
def test_other_settings_change_rounding_alone(of_loops: Cases, name: str, error: float) -> None:
    """Checkpoints hold the script's own flags, and what schedulers hold stays the same object.

    On some processors not even the rounding changes.
    """
    case = of_loops[name]
    plain, tuned = case["plain"], case["tuned"]
    assert len(case["decided"]) >= 2
    assert "failed" not in [verdict for verdict, _ in case["decided"]]
    assert tuned.pop("losses") == pytest.approx(plain.pop("losses"), abs=error)
    assert tuned == plain


@pytest.mark.parametrize("name", ["needs fp32", "views"])
def test_a_model_that_fails_in_another_setting_trains_on_in_its_own(of_loops: Cases, name: str) -> None:
    """The call is repeated with the same random numbers, and running averages count each batch once."""
    case = of_loops[name]
    assert [verdict for verdict, _ in case["decided"]].count("failed") == 2
    assert case["tuned"] == case["plain"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_candidate_that_fails_costs_no_sample(of_faults: Cases, fault: str) -> None:
    """The loader before reads the same indices; an error of the script's own data set comes where it came untuned."""
    case = of_faults[fault]
    assert "failed" in [verdict for verdict, _ in case["decided"]] or case["plain"]["errors"]
    assert case["tuned"] == case["plain"]


def test_a_training_resumes_with_and_without(of_resumed: Cases) -> None:
    """Each half as it is or tuned: the same samples, flags and strides; losses differ by rounding alone."""
    plain = of_resumed.pop("plain, then plain")
    losses, _ = plain.pop("losses"), plain.pop("decided")
    assert len(of_resumed) == 3
    for case in of_resumed.values():
        assert min(case.pop("decided")) >= 3
        assert case.pop("losses") == pytest.approx(losses, abs=1e-3)
        assert case | {"case": plain["case"]} == plain
