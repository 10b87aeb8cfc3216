"""What a training draws from while it warms up: the loader that feeds it, and its batches."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...torch_settings.naming import loader_key, tensors_in
from .pools import OwnReading
from .steps import WARM_STEPS

if TYPE_CHECKING:
    from .pools import Pass

LOOKED_AT = 32
"""Batches of each pass that are looked at. Not tuned."""
LATE_STEPS = 32
"""Steps between two passes after which the search begins all the same. Not tuned."""


@dataclass
class Source:
    """What is known of one loader."""

    steps: int = 0  # that drew from it
    batches: int = 0  # since the first step
    since_step: int = 0  # batches since the last step
    batch_bytes: int = 0  # of the last batch
    shapes: set[tuple[Any, ...]] = field(default_factory=set)  # of the tensors, a tuple for each kind of batch
    reading: OwnReading = field(default_factory=OwnReading)  # what the script's own reading does to its process


class Draws:
    """Batches that were drawn so far, from each loader.

    Attributes:
        count: Batches so far, of all loaders.
        unfit: Loaders that are left as they are, by key, with the reasons.
    """

    def __init__(self) -> None:
        self.count = 0
        self.unfit: dict[str, str] = {}
        self._sources: defaultdict[str, Source] = defaultdict(Source)  # by the keys of loaders
        self._later_steps = 0  # steps after the first one
        self._thread = 0  # of the last draw
        self._idle = 0  # steps in a row that have ended between two passes

    def of(self, key: str | None) -> Source:
        """What is known of a loader; None: the shapes of all of them."""
        if key is not None:
            return self._sources[key]
        return Source(shapes={shape for source in self._sources.values() for shape in source.shapes})

    def add(self, key: str, passing: Pass) -> None:
        """A pass is about to draw a batch."""
        source = self._sources[key]
        source.since_step += 1
        self.count += 1
        self._thread = threading.get_ident()
        if 0 < passing.count < LOOKED_AT:  # the first batch draws what the order is shuffled by
            source.reading.before()

    def look_at(self, key: str, passing: Pass, batch: Any) -> None:
        """Looks at a batch, if it is one of the first of its pass."""
        if passing.count > LOOKED_AT:
            return
        source = self._sources[key]
        if passing.count > 1:  # a look that began at the end of the last pass may still be open
            source.reading.after()
        tensors = list(tensors_in(batch))
        source.batch_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        if not passing.loader.num_workers:
            source.reading.hold(passing.loader)
        if not passing.is_exhausted:  # the last batch of a pass may be smaller
            source.shapes.add(tuple(tensor.shape for tensor in tensors))

    def end_step(self, steps: int, passing: Pass | None) -> None:
        """A step has ended; `steps` have by now. `passing` is the pass that training reads."""
        self._idle = 0 if passing is not None else self._idle + 1
        self._later_steps = steps - 1
        for source in self._sources.values():
            source.steps += source.since_step > 0
            source.batches += source.since_step if self._later_steps else 0  # the script may read before it trains
            source.since_step = 0

    def per_step(self, key: str) -> float:
        """Batches of a loader per step, at least 1."""
        return max(1.0, self._sources[key].batches / max(1, self._later_steps))

    def feeds_most(self, key: str) -> bool:
        """Whether no other loader has fed more steps so far."""
        return self._sources[key].steps >= max(source.steps for source in self._sources.values())

    @property
    def awaits_pass(self) -> bool:
        """Whether a pass through a loader may soon begin: the last one has just ended, or frameworks draw ahead."""
        return any(source.steps for source in self._sources.values()) and 0 < self._idle < LATE_STEPS

    def why_unknown(self, passing: Pass | None, thread: int) -> str | None:
        """Why it is not known what feeds training.

        Args:
            passing: The pass that training reads.
            thread: The thread that trains.

        Returns:
            The reason; None where the loader of `passing` feeds it.
        """
        steps = {key: source.steps for key, source in self._sources.items() if source.steps}
        fewest = max(WARM_STEPS, *steps.values(), 0) // 2  # another one may feed some steps besides
        feeding = [key for key in steps if steps[key] > fewest]
        if len(feeding) > 1:
            return "several loaders feed training"
        if not feeding:
            none = "no loader feeds most of the steps" if steps else "no loader was seen to feed training"
            return next(iter(self.unfit.values()), none)
        if passing is None:
            return "training goes on between two passes through its loader"
        if loader_key(passing.loader) != feeding[0]:
            return "several loaders feed training"
        return "a thread of the script draws batches ahead of training" if self._thread != thread else None
