"""What the ranks of a job agree on: when a block begins, how long the slowest took, whether to go on."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import distributed

from autotune.timing.failing import PlayerError
from autotune.training.ranks import this_rank
from autotune.training.sharding import is_split


class RanksDifferError(PlayerError):
    """The ranks' weights are no longer the same."""

    outcome = "invalid"


class Ranks:
    """All ranks of this process's job. A rank that is alone agrees with itself, at no cost."""

    def __init__(self) -> None:
        self.rank = this_rank()
        self.count = self.rank.count

    def meet(self) -> None:
        """Waits until all are here."""
        self.slowest(0.0)

    def slowest(self, *values: float) -> tuple[float, ...]:
        """The largest of each value over all ranks."""
        if self.rank.alone:
            return values
        largest = torch.tensor(values, dtype=torch.float64)
        distributed.all_reduce(largest, distributed.ReduceOp.MAX)  # on the CPU: through gloo, beside NCCL too
        return tuple(largest.tolist())

    def any(self, wish: bool) -> bool:
        """Whether any rank wishes it: where a clock decides, all must decide alike, or some would wait for ever."""
        return self.slowest(float(wish))[0] > 0

    def require_equal(self, weights: Iterable[torch.Tensor]) -> None:
        """Makes sure that all ranks still train the same model; weights split among them are one model in any case.

        Raises:
            RanksDifferError: They do not.
        """
        if self.rank.alone:
            return
        weights = [weight for weight in weights if not is_split(weight)]
        sums = [weight.detach().double().nan_to_num().abs().sum() for weight in weights]
        if not sums:
            return
        total = float(torch.stack(sums).sum())
        largest, smallest = self.slowest(total, -total)
        if largest != -smallest:
            raise RanksDifferError(
                f"the {self.count} ranks no longer train the same weights, so their gradients were not exchanged; "
                "the loss must call the model itself, model(...), and nothing may change weights on one rank alone"
            )
