"""What the search makes of the memory model: the largest batch in few bursts, and hardly an out-of-memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autotune.knobs.config import TrainConfig
from autotune.measuring.pairs import Pair
from autotune.measuring.records import Burst, Outcome, Point
from autotune.search.proposal import LARGEST
from tests.search.surface import make_search, make_space

MIB = 2**20
FITS = 700
"""Samples of a batch that the target leaves room for."""


def bytes_of(config: TrainConfig) -> float:
    """200 MiB, and one for each sample."""
    return (200 + config.batch_size) * MIB


def rate(config: TrainConfig) -> float:
    """The larger the batch the faster, as on a GPU that is not full."""
    return 1000.0 * config.batch_size / (config.batch_size + 500)


def test_the_largest_batch_is_found_in_one_leap() -> None:
    """Two sizes are enough: the next burst is at what they predict, within the margin; hardly any runs out."""
    search, surface = make_search(
        rate, space=make_space(effective_batch=None), budget_seconds=120, memory_limit_bytes=(200 + FITS) * MIB,
        bytes_of=bytes_of, oom_above=FITS, device="cuda",
    )  # fmt: skip
    search.run()
    leaps = [trial.burst for trial in search.log.trials if trial.stage == LARGEST]
    assert leaps
    assert leaps[0].ok
    assert 0.95 * FITS <= max(burst.point.config.batch_size for burst in leaps) <= FITS
    assert len(surface.ran) > len(leaps)
    assert sum(trial.burst.outcome is Outcome.OOM for trial in search.log.trials) <= 1


def test_memory_that_does_not_grow_sets_no_limit() -> None:
    """Then the largest batch that is searched is tried, 64 times the baseline's."""
    space = make_space(effective_batch=None, facts={"baseline": TrainConfig(batch_size=8)})
    search, _ = make_search(
        rate, space=space, budget_seconds=120, memory_limit_bytes=900 * MIB, bytes_of=lambda _: 200 * MIB
    )
    search.run()
    leaps = [trial.burst.point.config.batch_size for trial in search.log.trials if trial.stage == LARGEST]
    assert leaps[:1] == [512]


def test_where_memory_limits_the_batch_it_is_bought() -> None:
    """Blocks that are computed again leave room for one twice as large, for which no other line speaks."""

    def less(config: TrainConfig) -> float:
        return (200 + config.batch_size / (4 if config.checkpointing == "blocks" else 1)) * MIB

    space = make_space(effective_batch=None, facts={"recomputable_blocks": 4})
    search, _ = make_search(
        rate, space=space, budget_seconds=120, memory_limit_bytes=(200 + FITS) * MIB, bytes_of=less,
        fits=lambda config: less(config) <= (200 + FITS) * MIB, device="cuda", seed=1,
    )  # fmt: skip
    search.run()
    bought = [
        t.burst for t in search.log.trials if t.stage == LARGEST and t.burst.point.config.checkpointing == "blocks"
    ]
    assert bought
    assert bought[0].ok
    assert bought[0].point.config.batch_size > 1.5 * FITS


def test_a_held_effective_batch_takes_no_leap() -> None:
    """The largest batch that may run is known then."""
    search, _ = make_search(rate, budget_seconds=120, memory_limit_bytes=900 * MIB, bytes_of=bytes_of)
    search.run()
    assert LARGEST not in {trial.stage for trial in search.log.trials}


def test_near_the_target_a_batch_trains_alone_before_it_joins() -> None:
    """On a CPU, where memory that runs out ends all players; what runs out, once, or may win, has done so by itself."""
    search, surface = make_search(
        rate, space=make_space(effective_batch=None), budget_seconds=180, memory_limit_bytes=(200 + 550) * MIB,
        bytes_of=bytes_of, oom_above=550,
    )  # fmt: skip
    largest: list[tuple[int, int]] = []  # of a turn, and of all that ran before
    challenge = surface.challenge

    def watched(incumbent: Point | None, candidates: Sequence[Point], *of: Any) -> list[tuple[Burst, Pair | None]]:
        turn, before = ([one.config.batch_size for one in points] for points in (candidates, surface.ran))
        largest.append((max(turn), max(before, default=0)))
        return challenge(incumbent, candidates, *of)

    surface.challenge = watched  # type: ignore[method-assign]
    search.run()
    near = [(most, before) for most, before in largest if most > 0.8 * 550]
    assert near
    assert all(most <= min(before, 550) for most, before in near)
    assert sum(trial.burst.outcome is Outcome.OOM for trial in search.log.trials) <= 1
