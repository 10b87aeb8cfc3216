"""A script that splits its data at random, and seeds nothing, is known again when it is started again."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.measuring.records import Outcome
from autotune.scripts import ScriptIsolation
from autotune.torch_settings.naming import without_length
from tests.example_scripts import START_SECONDS, alone
from tests.scripts.patching import looked_at
from tests.scripts.test_recognition import written

SPLIT = """
import random
import numpy as np
from torch.utils.data import Subset

rows = data(4096)
if sys.argv[1] == "entropy":
    mask = np.random.default_rng().random(len(rows)) < 0.1
else:
    by_python = np.array([random.random() for _ in range(len(rows))])
    mask = (np.random.rand(len(rows)) < 0.1) | (by_python < 0.1) | (torch.rand(len(rows)).numpy() < 0.1)
model = net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(Subset(rows, np.flatnonzero(mask).tolist()), batch_size=16, shuffle=True)
for _ in range(2000):
    for x, y in loader:
        step(model, optimizer, x, y)
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts write into the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_data_is_split_alike_each_time(tmp_path: Path) -> None:
    """By random numbers of numpy, Python and torch."""
    script = written(tmp_path, SPLIT, "seeded")
    first, second = (looked_at(script.command).loaders[0].samples for _ in range(2))
    assert first == second


@pytest.mark.slow
@pytest.mark.parametrize("forks", [True, False])
def test_a_loader_of_another_length_is_known_again_once_it_has_trained(tmp_path: Path, *, forks: bool) -> None:
    """Some random numbers cannot be seeded from outside."""
    with ScriptIsolation(written(tmp_path, SPLIT, "entropy"), forks=forks) as isolation:
        isolation.start(START_SECONDS)
        burst = alone(isolation)
    assert burst.outcome is Outcome.OK, burst.reason


def test_only_the_length_may_differ() -> None:
    """Not the batch size, nor the order."""
    key = "a.Data 64 8 RandomSampler False"
    assert without_length(key) == without_length("a.Data 65 8 RandomSampler False")
    for other in ("a.Data 64 9 RandomSampler False", "a.Data 64 8 SequentialSampler False", "b.Data 64 8 Buckets"):
        assert without_length(key) != without_length(other)
