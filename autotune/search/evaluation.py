"""Finds the batch to evaluate with: doubled while that is faster, forward only, beside the answer's training state."""

from __future__ import annotations

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.runner import Runner
from autotune.measuring import Outcome, Point
from autotune.results.result import Evaluation, EvaluationBatch
from autotune.search.costs import Costs
from autotune.search.stopping import Budget, Reserve

EVALUATION = Reserve(share=0.1, most_seconds=60.0, burst_seconds=20.0)
"""Time for an evaluation batch, if requested. Not tuned: enough for half a dozen duets of short blocks."""
LEAST_GAIN = 1.02
"""The least gain for which doubling the batch, and its memory, is worth it. It lies above the difference between two
processes of one config."""
MOST_DOUBLINGS = 8
MOST_MISSES = 2
"""Sizes in a row without a gain that end the search; a single one may be bad luck."""


def evaluation_batch(
    answer: Point, runner: Runner, plan: BurstPlan, budget: Budget, costs: Costs, most: int | None
) -> Evaluation | None:
    """The largest batch that is worth its memory, starting from training's own; None if even that was not measured.

    Each size plays against the best so far, until two in a row gain nothing or memory runs out. Running out of memory
    ends this search, and says nothing about training. A batch holds at most `most` samples, if known.
    """
    plan = plan.model_copy(update={"part": "evaluation"})
    usual = costs.deadline(answer, plan, budget.confirming_seconds)
    runner.close()
    point = answer.changed({"accumulation_steps": 1})
    deadline = EVALUATION.deadline(budget, usual)
    ((first, _),) = runner.challenge(None, [point], plan, deadline, lambda _point, _pair: None)
    if first.rate is None:
        return None
    tried = [_row(point, first.outcome, first.rate, None)]
    best, ratio, size, misses = point, 1.0, point.config.batch_size, 0
    for _ in range(MOST_DOUBLINGS):
        size *= 2
        if (most is not None and size > most) or EVALUATION.is_spent(budget, plan):
            break
        point = answer.changed({"accumulation_steps": 1, "batch_size": size})
        deadline = EVALUATION.deadline(budget, usual)
        ((burst, pair),) = runner.challenge(best, [point], plan, deadline, lambda _point, _pair: None)
        gained = pair.ratio if pair is not None else None
        tried.append(_row(point, burst.outcome, burst.rate, gained))
        if gained is not None and gained >= LEAST_GAIN:
            best, ratio, misses = point, ratio * gained, 0
            continue
        misses += 1
        if gained is None or misses == MOST_MISSES:
            break
    runner.close()
    rate = next(row.samples_per_second for row in tried if row.batch_size == best.config.batch_size)
    return Evaluation(batch_size=best.config.batch_size, samples_per_second=rate, ratio=ratio, tried=tuple(tried))


def _row(point: Point, outcome: Outcome, rate: float | None, ratio: float | None) -> EvaluationBatch:
    return EvaluationBatch(batch_size=point.config.batch_size, outcome=outcome, samples_per_second=rate, ratio=ratio)
