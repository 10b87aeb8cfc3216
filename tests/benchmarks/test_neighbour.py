"""The neighbour: the same times for all its processes, and nothing left of it."""

from __future__ import annotations

import itertools

import psutil
import pytest

from benchmarks import neighbour


def test_a_seed_gives_the_times() -> None:
    """All its processes work and rest together; another seed is another neighbour."""
    first, same, other = (list(itertools.islice(neighbour.schedule(seed), 20)) for seed in (0, 0, 1))
    assert first == same != other
    assert all(neighbour.SHORTEST_SECONDS <= one <= neighbour.LONGEST_SECONDS for pair in first for one in pair)


@pytest.mark.slow
def test_a_neighbour_is_gone_when_it_is_closed() -> None:
    """A process for each processor, until then."""
    before = set(psutil.Process().children())
    with neighbour.neighbour(seed=0):
        assert len(set(psutil.Process().children()) - before) >= (psutil.cpu_count() or 1)
    names = [one.cmdline() for one in set(psutil.Process().children()) - before]
    assert not any("spawn_main" in " ".join(name) for name in names)
