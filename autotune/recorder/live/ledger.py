"""What a search inside a real training may cost: its losses stay within a small share of the time trained.

The rule is that of conservative bandits (Wu et al., ICML 2016): an arm is played only if its worst case fits into what
has been saved so far.
"""

from __future__ import annotations

SHARE = 0.02
"""The share of the time trained that may be lost at worst."""
FIRST_SECONDS, LATER_SHARE = 2.0, 0.001
"""Where candidates have lost these seconds, others wait until the smaller share of the time allows more: a training of
ten minutes in which nothing is faster then usually loses less than 0.5 %. Not tuned."""
WORST = 2.0
"""A block ends when its steps take this many times what the baseline's take."""


class Ledger:
    """Seconds that the search has cost, and that the winners have saved.

    Attributes:
        spent: What candidates and switches took beyond the script's own setting. Faster candidates are counted too, so
            that noise cancels out.
        saved: What the winners have saved since they won.
    """

    def __init__(self) -> None:
        self.spent = 0.0
        self.saved = 0.0

    @property
    def cost(self) -> float:
        """Seconds that the search has cost."""
        return max(0.0, self.spent)

    def count_saved(self, steps: int, step_seconds: float, gain: float) -> None:
        """Adds what steps with the winners have saved.

        Args:
            steps: Their number.
            step_seconds: Of a step with the user's own setting.
            gain: The rate with the winners over that with the user's own setting.
        """
        self.saved += steps * step_seconds * (1 - 1 / gain)

    @property
    def benefit(self) -> float:
        """Seconds that the winners have saved, and faster candidates before they won."""
        return self.saved + max(0.0, -self.spent)

    def may_lose(self, trained_seconds: float) -> float:
        """Seconds that may still be lost at worst, after some seconds of training."""
        return SHARE * trained_seconds + self.saved - self.spent

    def allows(self, steps: float, step_seconds: float, start_seconds: float, trained_seconds: float) -> bool:
        """Whether the worst case of a block fits, and what was lost so far is little.

        Args:
            steps: Of the block, those that lead in included.
            step_seconds: Of a step with the user's own setting.
            start_seconds: What starting it takes besides.
            trained_seconds: So far.
        """
        little = min(SHARE * trained_seconds, FIRST_SECONDS + LATER_SHARE * trained_seconds)
        worst = start_seconds + (WORST - 1) * (steps + 1) * step_seconds
        return self.spent - self.saved <= little and worst <= self.may_lose(trained_seconds)
