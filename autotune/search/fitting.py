"""A baseline that runs out of memory: the smallest change after which it trains, so that it can be tuned from there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from autotune.knobs import HALF, Scalar, Space, divisors
from autotune.measuring import Burst, Outcome, Point
from autotune.search.bursts import Bursts
from autotune.search.proposal import FIT, Proposal
from autotune.units import format_bytes

Rung = tuple[Point, str]
"""A point to try, and why."""


EVERY_SHARE = 0.25
"""Of the budget, for what each further change would give, where that is asked for. Chosen."""


def fit(
    baseline: Point, space: Space, bursts: Bursts, failed: Burst, agrees: Callable[[Point], bool], *, every: bool
) -> tuple[Point | None, str]:
    """The first of ever larger changes to a baseline after which it trains, and what each change gave, in words.

    Args:
        baseline: What the user trains with today.
        space: What may be changed.
        bursts: Runs them; what ran before an interruption is known.
        failed: How the baseline ended.
        agrees: Whether a point trains what the baseline would.
        every: Whether the changes after the first that is enough are measured as well, while there is time.

    Returns:
        None where no change was enough.
    """
    found: Point | None = None
    told: list[str] = []
    for point, reason in rungs(baseline, space, failed.outcome):
        spent = bursts.budget.elapsed > EVERY_SHARE * bursts.budget.seconds
        if bursts.searching_seconds <= 0 or (found is not None and (spent or not every)):
            break
        known = next((trial.burst for trial in bursts.trials if trial.burst.point == point), None)
        burst = known or bursts.search(Proposal(point, FIT, reason))
        told.append(f"{point.changes_text(baseline)}: {_came_of(burst)}")
        if found is None and burst.ok and agrees(point):
            found = point
    if found is None:
        return None, f"what you train with today runs out of memory, and no change was enough ({'; '.join(told)})"
    return found, (
        f"what you train with today runs out of memory; with {found.changes_text(baseline)} it trains, is tuned from "
        f"there on, and is what the answer is compared with ({'; '.join(told)})"
    )


def rungs(baseline: Point, space: Space, outcome: Outcome) -> Iterator[Rung]:
    """Changes to a baseline, each on top of those before it.

    Where it was the host's memory, or its shared memory, what waits in the loader comes first. Then smaller
    micro-batches: the optimizer's step stays as it is, and so what is learned (but statistics of BatchNorm). Then what
    computes otherwise: fewer bits, a model split among its ranks, blocks that are computed again in backward, a fused
    optimizer, an allocator that wastes less.

    Args:
        baseline: What ran out of memory.
        space: No change breaks its pins or its constraints, which the baseline itself need not meet.
        outcome: Which memory it was.
    """
    changes: dict[str, Scalar] = {}
    for step, reason in _steps(baseline, space, outcome):
        changes |= step
        point = baseline.changed(changes)
        pinned = all(space.pinned.get(knob, value) == value for knob, value in step.items())
        # What the baseline itself breaks was the user's choice; a change must only break nothing new.
        allowed = space.violation(point.config) in {None, space.violation(baseline.config)}
        if pinned and space.held.isdisjoint(step) and allowed:
            yield point, reason
        else:
            changes = {knob: value for knob, value in changes.items() if knob not in step}


def _steps(baseline: Point, space: Space, outcome: Outcome) -> Iterator[tuple[dict[str, Scalar], str]]:
    config = baseline.config
    if outcome in {Outcome.HOST_OOM, Outcome.SHM_EXHAUSTED}:
        if (config.prefetch_factor or 0) > 1:
            yield {"prefetch_factor": 1}, "fewer batches wait in the loader"
        workers = config.num_workers
        while workers > 1:
            workers //= 2
            yield {"num_workers": workers}, "fewer workers hold fewer batches"
    if config.num_workers and (outcome is not Outcome.OOM or space.device == "cpu"):  # whose memory is all there is
        yield {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False}, "no worker holds a batch"
    effective, size = config.batch_size * config.accumulation_steps, config.batch_size  # of a rank
    for smaller in sorted((value for value in divisors(effective) if value < size), reverse=True):
        if 2 * smaller <= size:
            size = smaller
            step: dict[str, Scalar] = {"batch_size": size, "accumulation_steps": effective // size}
            yield step, "smaller micro-batches, and as many more of them in a step, hold fewer activations"
    offered = {**space.choices, **space.reserve}
    for knob, wanted, reason in (
        ("precision", HALF, "activations of half the bytes"),
        ("strategy", ("fsdp",), "weights, gradients and states that are split among the ranks"),
        ("checkpointing", ("blocks",), "activations of each block that are computed again rather than kept"),
        ("optimizer_impl", ("fused",), "an optimizer that needs no memory beside its states"),
        ("allocator", ("tuned",), "an allocator that leaves less memory unused"),
    ):
        choices = offered.get(knob)
        value = choices.first(wanted) if choices is not None else None
        if value is not None and value != getattr(config, knob):
            yield {knob: value}, reason


def _came_of(burst: Burst) -> str:
    measured = burst.measurement
    if measured is None or measured.device_memory_bytes is None:
        return burst.outcome.value
    return format_bytes(measured.device_memory_bytes)
