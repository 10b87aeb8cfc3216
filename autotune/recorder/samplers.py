"""Samplers of the script's own: does training decide what they draw next? Workers need their indices ahead of it."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter  # by name: the script may replace what `time` holds
from typing import TYPE_CHECKING, Any

from .attributes import Attributes, OwnDraws, held_by

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

KNOWN_SAMPLERS = ("torch", "accelerate", "lightning", "lightning_fabric", "pytorch_lightning", "transformers")
"""Packages whose samplers draw from a generator of their own, whatever is trained meanwhile."""
FEEDBACK = "training changes what the sampler reads from batch to batch: indices drawn ahead, for workers, would differ"
AHEAD = ("num_workers", "prefetch_factor")
"""Arguments of DataLoader that decide how far ahead of training indices are drawn."""
MOST_SECONDS = 2.0
"""Time for looking at the samplers of a script; no look begins after that. Not tuned."""


def samplers_within(*samplers: Any) -> list[Any]:
    """Those samplers, and samplers that they hold."""
    seen: dict[int, Any] = {}
    waiting = list(samplers)
    for one in waiting:  # grows as it goes
        if one is not None and id(one) not in seen:
            seen[id(one)] = one
            held = getattr(one, "__dict__", None) or {}
            waiting += [
                value for name, value in held.items() if name.endswith("sampler") and hasattr(value, "__iter__")
            ]
    return list(seen.values())


def own_samplers(*samplers: Any) -> list[Any]:
    """Those samplers, and samplers that they hold, whose classes are of no known package."""
    within = samplers_within(*samplers)
    return [one for one in within if type(one).__module__.partition(".")[0] not in KNOWN_SAMPLERS]


def own_samplers_of(loader: DataLoader[Any]) -> list[Any]:
    """The script's own samplers of a loader."""
    return own_samplers(loader.batch_sampler, loader.sampler)


class Feedback:
    """Detects whether anything but a sampler changes what the sampler holds or reads, between two of its batches.

    Args:
        samplers: The script's own ones in a pass; a change between two passes is none of this.
        seconds_left: Time for looking, shared with other passes.

    Attributes:
        is_seen: Whether there was such a change.
    """

    def __init__(self, samplers: Sequence[Any], seconds_left: list[float]) -> None:
        self.is_seen = False
        self._samplers = samplers
        self._seconds_left = seconds_left
        self._held: tuple[Attributes, OwnDraws] | None = None

    def after_draw(self) -> None:
        """A batch was drawn."""
        if self._samplers and self._seconds_left[0] > 0 and not self.is_seen:
            began = perf_counter()
            self._held = Attributes(*self._samplers), OwnDraws(held_by(*self._samplers))
            self._seconds_left[0] -= perf_counter() - began

    def before_draw(self) -> None:
        """The next one is about to be drawn."""
        if self._held is not None:
            began = perf_counter()
            (held, draws), self._held = self._held, None
            self.is_seen = draws.are_seen or not Attributes(*self._samplers).are_as(held)
            self._seconds_left[0] -= perf_counter() - began
