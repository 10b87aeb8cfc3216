"""A neighbour: another program that takes all processors for random seconds, and leaves them for others.

Processes of their own, as those of a stranger would be; one seed gives them all the same times.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import time
from collections.abc import Iterator

SHORTEST_SECONDS, LONGEST_SECONDS = 0.2, 5.0
"""Of its work, and of its rests: shorter than a block, and longer than a round of short ones."""


@contextlib.contextmanager
def neighbour(seed: int) -> Iterator[None]:
    """While open, somebody burns all processors for random seconds, again and again."""
    context = multiprocessing.get_context("spawn")
    begins = time.time() + 2.0
    burners = [context.Process(target=_burn, args=(seed, begins), daemon=True) for _ in range(os.cpu_count() or 1)]
    try:
        for burner in burners:
            burner.start()
        yield
    finally:
        for burner in burners:
            if burner.pid is not None:
                burner.kill()
                burner.join()


def schedule(seed: int) -> Iterator[tuple[float, float]]:
    """Seconds of work, and of the rest that follows, without end."""
    rng = random.Random(seed)
    while True:
        yield rng.uniform(SHORTEST_SECONDS, LONGEST_SECONDS), rng.uniform(SHORTEST_SECONDS, LONGEST_SECONDS)


def _burn(seed: int, begins: float) -> None:
    for work, rest in schedule(seed):
        time.sleep(max(0.0, begins - time.time()))
        while time.time() < begins + work:
            pass
        begins += work + rest
