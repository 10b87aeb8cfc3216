"""Whether a setting is faster: log ratios of neighbouring blocks, with a bound that holds at every look.

The bound is that of a normal mixture (Robbins 1970; Howard, Ramdas, McAuliffe and Sekhon, *Time-uniform,
nonparametric, nonasymptotic confidence sequences*, 2021, section 3.2), with the variance of all pairs of this training
in the place of the unknown one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

ERROR = 0.01
"""The chance that a bound of one candidate is ever wrong, over all looks, if pairs are spread normally. There are about
ten candidates."""
MIXTURE_PAIRS = 10
"""Pairs for which the mixture makes the bound narrowest. Chosen: most candidates are decided by then."""
MARGIN = 0.02
"""What a setting must gain to replace the one before."""
USUAL_SPREAD, LEAST_SPREAD, USUAL_WEIGHT = 0.05, 0.005, 4
"""Standard deviation of the log ratio of two blocks before any pair is known, its least, and the pairs that it counts
for. Of blocks of 0.4 s on two shared cores it was 0.02 to 0.06."""
FEWEST_PAIRS, MOST_PAIRS = 3, 30
"""A candidate needs the first number of pairs to win, since one or two may be a neighbour's doing. It is out when the
second number has not decided it."""
WITHIN, MUCH, MANY_PAIRS = 2.0, 5.0, 10
"""A candidate needs the third number of pairs to win if its ratio is known less well than to within the first number,
or is larger than the second. A neighbour may have stalled some of a few pairs; then their spread says little. A spread
of 0.1 delays no winner of up to four times. Simulated, candidates that are no faster win in less than 1 % of cases if
up to 70 % of all blocks are stalled to seven times their length or more. If half of them are stalled to one length, of
1.5 to 5 times, up to 2 % win."""


class Spread:
    """How pairs of blocks of equal settings differ, pooled over all candidates."""

    def __init__(self) -> None:
        self._squares = USUAL_WEIGHT * USUAL_SPREAD**2
        self._freedom = float(USUAL_WEIGHT)

    def add(self, logs: Sequence[float]) -> None:
        """Takes in a candidate's pairs, once it is decided."""
        if len(logs) > 1:
            self._squares += _squares(logs)
            self._freedom += len(logs) - 1

    def beside(self, logs: Sequence[float]) -> float:
        """The standard deviation of a pair, for a candidate with these so far."""
        own = _squares(logs) if len(logs) > 1 else 0.0
        freedom = max(0, len(logs) - 1)
        pooled = (self._squares + own) / (self._freedom + freedom)
        return max(LEAST_SPREAD, math.sqrt(max(pooled, own / freedom if freedom else 0.0)))


class Evidence:
    """What is known of one candidate against the incumbent.

    Attributes:
        logs: Logarithms of the candidate's rate over the incumbent's, a pair of neighbouring blocks each.
    """

    def __init__(self, spread: Spread) -> None:
        self.logs: list[float] = []
        self._spread = spread

    def add(self, incumbent_seconds: float, candidate_seconds: float) -> None:
        """A pair of blocks, each by the seconds of a step."""
        self.logs.append(math.log(incumbent_seconds / candidate_seconds))

    @property
    def ratio(self) -> float:
        """The candidate's rate over the incumbent's; 1 before the first pair."""
        return math.exp(math.fsum(self.logs) / len(self.logs)) if self.logs else 1.0

    @property
    def bounds(self) -> tuple[float, float]:
        """The ends of its interval; infinite before the first pair."""
        count = len(self.logs)
        if not count:
            return 0.0, math.inf
        wide = count + MIXTURE_PAIRS
        half = self._spread.beside(self.logs) * math.sqrt(wide / count**2 * math.log(wide / (MIXTURE_PAIRS * ERROR**2)))
        return self.ratio * math.exp(-half), self.ratio * math.exp(half)

    @property
    def verdict(self) -> str | None:
        """``won`` or ``lost``, once it is decided."""
        low, high = self.bounds
        is_usual = high <= WITHIN**2 * low and self.ratio <= MUCH
        if low > 1 + MARGIN and len(self.logs) >= (FEWEST_PAIRS if is_usual else MANY_PAIRS):
            return "won"
        return "lost" if high < 1 + MARGIN or len(self.logs) >= MOST_PAIRS else None


def _squares(logs: Sequence[float]) -> float:
    mean = math.fsum(logs) / len(logs)
    return math.fsum((log - mean) ** 2 for log in logs)


SHARE = 0.02
"""The share of the time trained that may be lost at worst."""
FIRST_SECONDS, LATER_SHARE = 2.0, 0.001
"""Where candidates have lost these seconds, others wait until the smaller share of the time allows more: a training of
ten minutes in which nothing is faster then usually loses less than 0.5 %. Not tuned."""
WORST = 2.0
"""A block ends when its steps take this many times what the baseline's take."""


class Ledger:
    """Seconds that the search has cost, and that the winners have saved: losses stay within a small share of training.

    The rule is that of conservative bandits (Wu et al., ICML 2016): an arm is played only if its worst case fits into
    what has been saved so far.

    Attributes:
        spent: What candidates and switches took beyond the script's own setting. Faster steps are counted in full, so
            that noise cancels out.
        saved: What the winners have saved since they won.
        compiling: The part of `spent` that compiling took. It was allowed in advance, so it holds up no block later.
    """

    def __init__(self) -> None:
        self.spent = 0.0
        self.saved = 0.0
        self.compiling = 0.0
        self._own_steps, self._own_seconds = 0, 0.0
        self._played = 0  # steps of candidates

    @property
    def net(self) -> float:
        """`spent`; the steps saved at most what as many took in the user's own setting."""
        return max(self.spent, -self._played * self._own_step) if self._own_steps else self.spent

    @property
    def cost(self) -> float:
        """Seconds that the search has cost."""
        return max(0.0, self.net)

    def count_compiling(self, seconds: float) -> None:
        """Adds seconds that compiling took."""
        self.spent += seconds
        self.compiling += seconds

    def count_own(self, steps: int, seconds: float) -> None:
        """Adds a block of the user's own setting."""
        self._own_steps += steps
        self._own_seconds += seconds

    @property
    def _own_step(self) -> float:
        """Seconds that a step of the user's own setting was seen to take. No other step can save more."""
        return self._own_seconds / self._own_steps if self._own_steps else math.inf

    def count_step(self, seconds: float, step_seconds: float) -> None:
        """Adds what a step took beyond one with the user's own setting."""
        self.spent += seconds - step_seconds
        self._played += 1

    def count_saved(self, steps: int, step_seconds: float, gain: float) -> None:
        """Adds what steps with the winners have saved.

        Args:
            steps: Their number.
            step_seconds: Of a step with the user's own setting.
            gain: The rate with the winners over that with the user's own setting.
        """
        self.saved += steps * min(step_seconds, self._own_step) * (1 - 1 / gain)

    @property
    def benefit(self) -> float:
        """Seconds that the winners have saved, and faster candidates before they won."""
        return self.saved + max(0.0, -self.net)

    def may_lose(self, trained_seconds: float) -> float:
        """Seconds that may still be lost at worst, after some seconds of training."""
        return SHARE * trained_seconds + self.saved - self.net

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
        return self.net - self.compiling - self.saved <= little and worst <= self.may_lose(trained_seconds)
