"""What a dry run prints of a script's loader."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from autotune.scripts.seen import SeenScript
from autotune.terminal import look


@pytest.mark.parametrize(
    ("batch_size", "told"),
    [(32, "batches of 32, 2 workers"), (None, "batches of 12, which the script makes itself, 2 ")],
)
def test_batches_that_a_script_makes_itself_are_told_by_their_usual_size(
    batch_size: int | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a sampler of batches, or samples that are batches, the loader knows no size."""
    loader = SimpleNamespace(dataset="data.Rows", samples=640, arguments={"batch_size": batch_size, "num_workers": 2})
    monkeypatch.setattr(look, "baseline_of", lambda _: SimpleNamespace(batch_size=12))
    assert f"Rows of 640 samples, {told}" in look._loader(cast("SeenScript", SimpleNamespace(loaders=(loader,))))
