"""The random numbers that a script begins with: the same each time, so that one that seeds nothing is known again."""

from __future__ import annotations

import sys

from .importing import after_import
from .order import seed_all

SEED = 0


def seed_start() -> None:
    """Seeds torch and Python, and NumPy as soon as it is there: how data is split may hang on any of them."""
    seed_all(SEED)
    after_import("numpy", lambda: sys.modules["numpy"].random.seed(SEED))
