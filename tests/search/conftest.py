"""Searches on made-up surfaces run on a virtual clock."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _few_resamples(few_resamples: None) -> None:
    """For all of them."""
