"""What a training draws from while it warms up: the loader that feeds it, and its batches."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from ...torch_settings.naming import loader_key, tensors_in
from .pools import OwnReading
from .steps import WARM_STEPS

if TYPE_CHECKING:
    from .pools import Pass

LOOKED_AT = 32
"""Batches that are looked at. Not tuned."""
LATE_STEPS = 32
"""Steps between two passes after which the search begins all the same. Not tuned."""


class Draws:
    """Batches that were drawn so far, of all loaders.

    Attributes:
        count: Batches so far.
        per_step: Batches per step, at least 1.
        batch_bytes: Bytes of the last batch.
        shapes: Shapes of the tensors, one tuple for each kind of batch.
        unfit: Loaders that are left as they are, by key, with the reasons.
        reading: What the script's own reading does to its process.
    """

    def __init__(self) -> None:
        self.count, self.per_step, self.batch_bytes = 0, 1.0, 0
        self.shapes: set[tuple[Any, ...]] = set()
        self.unfit: dict[str, str] = {}
        self.reading = OwnReading()
        self._since_step: set[str] = set()  # keys of loaders
        self._steps: dict[str, int] = {}  # steps that drew from each
        self._thread = 0  # of the last draw
        self._idle = 0  # steps in a row that have ended between two passes

    def add(self, key: str, passing: Pass | None) -> None:
        """A batch is about to be drawn from a loader; `passing` is the pass that training reads."""
        self._since_step.add(key)
        self.count += 1
        self._thread = threading.get_ident()
        # The first batch draws what the order is shuffled by.
        if self.count < LOOKED_AT and passing is not None and passing.count:
            self.reading.before()

    def look_at(self, batch: Any, passing: Pass | None) -> None:
        """Looks at a batch, if it is one of the first."""
        if self.count >= LOOKED_AT:
            return
        self.reading.after()
        tensors = list(tensors_in(batch))
        self.batch_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        if passing is not None:
            if not passing.loader.num_workers:
                self.reading.hold(passing.loader)
            self.shapes.add(tuple(tensor.shape for tensor in tensors))  # the last batch of a pass may be smaller

    def end_step(self, steps: int, passing: Pass | None) -> None:
        """A step has ended; `steps` have by now. `passing` is the pass that training reads."""
        self._idle = 0 if passing is not None else self._idle + 1
        for key in self._since_step:
            self._steps[key] = self._steps.get(key, 0) + 1
        self._since_step.clear()
        self.per_step = max(1.0, self.count / steps)

    def feeds_most(self, key: str) -> bool:
        """Whether no other loader has fed more steps so far."""
        return self._steps.get(key, 0) >= max(self._steps.values(), default=0)

    @property
    def awaits_pass(self) -> bool:
        """Whether a pass through a loader may soon begin: the last one has just ended, or frameworks draw ahead."""
        return bool(self._steps) and 0 < self._idle < LATE_STEPS

    def why_unknown(self, passing: Pass | None, thread: int) -> str | None:
        """Why it is not known what feeds training.

        Args:
            passing: The pass that training reads.
            thread: The thread that trains.

        Returns:
            The reason; None where the loader of `passing` feeds it.
        """
        fewest = max(WARM_STEPS, *self._steps.values(), 0) // 2  # another one may feed some steps besides
        feeding = [key for key, steps in self._steps.items() if steps > fewest]
        if len(feeding) > 1:
            return "several loaders feed training"
        if not feeding:
            none = "no loader feeds most of the steps" if self._steps else "no loader was seen to feed training"
            return next(iter(self.unfit.values()), none)
        if passing is None:
            return "training goes on between two passes through its loader"
        if loader_key(passing.loader) != feeding[0]:
            return "several loaders feed training"
        return "a thread of the script draws batches ahead of training" if self._thread != thread else None
