"""Fits a baseline that runs out of memory: finds the smallest change after which it trains, as a start for tuning."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from autotune.knobs import HALF, KNOBS, Scalar, Space, divisors, going_with
from autotune.knobs.batch import coupled
from autotune.knobs.loader import LEAST_QUEUE
from autotune.measuring import Burst, Outcome, Point
from autotune.search.bursts import Bursts
from autotune.search.proposal import FIT, Proposal
from autotune.units import format_bytes

Rung = tuple[Point, str]
"""A point to try, and why."""


def fit(
    baseline: Point, space: Space, bursts: Bursts, failed: Burst, agrees: Callable[[Point], bool]
) -> tuple[Point | None, str]:
    """Tries ever larger changes to a baseline until it trains.

    `failed` is how the baseline ended; `agrees` returns whether a point trains what the baseline would. Bursts from
    before an interruption are not repeated.

    Returns:
        The first point that trains, or None if none does; and a summary of each change's outcome.
    """
    outcomes: list[str] = []
    for point, reason in rungs(baseline, space, failed.outcome):
        if bursts.searching_seconds <= 0:
            ending = "the time ended before a change was enough"
            break
        earlier = next((trial.burst for trial in bursts.trials if trial.burst.point == point), None)
        burst = earlier or bursts.search(Proposal(point, FIT, reason))
        outcomes.append(f"{point.changes_text(baseline)}: {_outcome_text(burst)}")
        if burst.ok and agrees(point):
            facts, keeps_batch = bursts.facts, point.config.batch_size == baseline.config.batch_size
            but = "" if keeps_batch or facts is None or not facts.coupling else f"; but {coupled(facts)}"
            return point, (
                f"what you train with today runs out of memory; with {point.changes_text(baseline)} it trains: tuning "
                f"starts from there, and the answer is compared with it ({'; '.join(outcomes)}){but}"
            )
    else:
        ending = "no change was enough" if outcomes else "no change that needs less memory is allowed"
    tried = f" ({'; '.join(outcomes)})" if outcomes else ""
    return None, f"what you train with today runs out of memory, and {ending}{tried}"


def rungs(baseline: Point, space: Space, outcome: Outcome) -> Iterator[Rung]:
    """Changes to a baseline, each on top of those before it.

    If the host's memory or its shared memory ran out, a shorter queue in the loader comes first. Next come smaller
    micro-batches: they keep the optimizer's step, and so what is learned, except for statistics of BatchNorm and a loss
    that is not an average over samples. Last come changes to the computation: fewer bits, a model split among its
    ranks, blocks that are computed again in backward, a fused optimizer, an allocator that wastes less.

    No change breaks the space's pins or constraints, though the baseline itself may. The outcome says which memory ran
    out.
    """
    changes: dict[str, Scalar] = {}
    for own, reason in _steps(baseline, space, outcome):
        step = {**own, **space.instead(baseline.config.replace(**{**changes, **own}))}
        attempt = {**changes, **step}
        point = baseline.changed(attempt)
        pinned = all(space.pinned.get(knob, value) == value for knob, value in step.items())
        # The user chose what the baseline itself breaks; a change must break nothing more.
        allowed = space.violation(point.config) in {None, space.violation(baseline.config)}
        if pinned and space.held.isdisjoint(step) and allowed:
            changes = attempt
            yield point, reason


def _steps(baseline: Point, space: Space, outcome: Outcome) -> Iterator[tuple[dict[str, Scalar], str]]:
    config = baseline.config
    if outcome in {Outcome.HOST_OOM, Outcome.SHM_EXHAUSTED}:
        if config.queue_batches > config.num_workers:
            yield LEAST_QUEUE, "fewer batches wait in the loader"
        workers = config.num_workers
        while workers > 1:
            workers //= 2
            yield {"num_workers": workers}, "fewer workers hold fewer batches"
    if config.num_workers and (outcome is not Outcome.OOM or space.device == "cpu"):  # a CPU has no other memory
        idle = {knob: KNOBS[knob].default for knob in going_with("num_workers")}
        yield {"num_workers": 0, **idle}, "no worker holds a batch"
    effective, size = config.batch_size * config.accumulation_steps, config.batch_size  # per rank
    for smaller in sorted((value for value in divisors(effective) if value < size), reverse=True):
        if 2 * smaller <= size:
            size = smaller
            step: dict[str, Scalar] = {"batch_size": size, "accumulation_steps": effective // size}
            yield step, "smaller micro-batches, and more of them in a step, hold fewer activations"
    offered = {**space.choices, **space.reserve}
    for knob, values, reason in (
        ("precision", HALF, "activations of half the bytes"),
        ("strategy", ("fsdp",), "weights, gradients and states that are split among the ranks"),
        ("checkpointing", ("blocks",), "activations of each block that are computed again rather than kept"),
        ("optimizer_impl", ("fused",), "an optimizer that needs no memory beside its states"),
        ("allocator", ("tuned",), "an allocator that leaves less memory unused"),
    ):
        choices = offered.get(knob)
        value = choices.first(values) if choices is not None else None
        if value is not None and value != getattr(config, knob):
            yield {knob: value}, reason


def _outcome_text(burst: Burst) -> str:
    measured = burst.measurement
    if measured is None or measured.device_memory_bytes is None:
        return burst.outcome.value
    return format_bytes(measured.device_memory_bytes)
