"""The passes that a script makes through its loaders, as the observer sees them: an ``iter()``, and its batches."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from time import perf_counter, process_time  # by name: the script may replace what `time` holds
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from .batches import Watched
from .loop import UNKNOWN_READING
from .naming import length_of, loader_key

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

_AROUND = (GeneratorType, enumerate, map, zip)
"""What hands on an iterator's items, such as a progress bar."""
_MOST_AROUND = 3
"""Of them around one another, between a loader and what replays its batches. Chosen."""


class Pass:
    """One pass through a loader.

    Args:
        loader: The script's.
        alike_before: Passes in training, through loaders like it, that began before.

    Attributes:
        places: Of its batches, among all that were drawn.
        samples: In them.
        seconds: That drawing them took.
        busy_seconds: Processor time of this process meanwhile.
        trains: Whether a model in training was called with what was drawn, as far as can be told, or a step taken.
        evaluates: Whether a model was called with it otherwise.
        is_over: Whether it was told that there are no more.
        is_cycled: Whether its batches are replayed by an `itertools.cycle`.
    """

    def __init__(self, loader: DataLoader[Any], alike_before: int) -> None:
        self.loader = loader
        self.alike_before = alike_before
        self.places: list[int] = []
        self.samples, self.seconds, self.busy_seconds = 0, 0.0, 0.0
        self.trains = self.evaluates = False
        self.is_over = self.is_cycled = False
        self._iterator: Callable[[], Watched | None] = lambda: None

    @property
    def only_evaluates(self) -> bool:
        """Whether nothing was trained on."""
        return self.evaluates and not self.trains

    @property
    def is_whole(self) -> bool:
        """Whether all was drawn; who zips loaders does not ask the second one for its end."""
        return self.is_over or len(self.places) >= (length_of(self.loader) or len(self.places) + 1)

    @property
    def goes_on(self) -> bool:
        """Whether more may be drawn."""
        return self.iterator is not None and not self.is_over

    def may_be_used(self, *, trains: bool) -> bool:
        """Whether what is computed now may be with its batches, which were drawn last.

        Of a pass that does not go on: if nothing was computed with them yet, or the same. Else it is over, and a batch
        from before is gone on with: ``next(iter(loader))`` is left off at once, and then its batch is used.
        """
        return self.goes_on or (self.trains if trains else self.evaluates) or not (self.trains or self.evaluates)

    @property
    def iterator(self) -> Watched | None:
        """What the script draws from; None once it has let go of it."""
        return self._iterator()

    def through(self, batches: Iterator[Any], drawn: Callable[[Any], None]) -> Iterator[Any]:
        """The loader's iterator, each of whose batches is told."""
        began = (0.0, 0.0)

        def draws() -> None:
            nonlocal began
            began = perf_counter(), process_time()

        def timed(batch: Any) -> None:
            self.seconds += perf_counter() - began[0]
            self.busy_seconds += process_time() - began[1]
            drawn(batch)

        watched = Watched(batches, timed, draws, self._end)
        self._iterator = weakref.ref(watched)  # its workers end when the script drops it
        return watched

    def _end(self) -> None:
        self.is_over = True

    def note(self, place: int, samples: int) -> None:
        """A batch was drawn."""
        self.places.append(place)
        self.samples += samples


class Passes:
    """All passes, in the order in which they began."""

    def __init__(self) -> None:
        self._all: list[Pass] = []
        self._going_on: list[Pass] = []
        self._begun: Counter[str] = Counter()

    def begin(self, loader: DataLoader[Any], *, trains: bool) -> Pass:
        """Another pass; `trains` tells whether gradients are wanted there."""
        key = loader_key(loader)
        self._all.append(Pass(loader, self._begun[key]))
        self._begun[key] += trains
        self._going_on.append(self._all[-1])
        return self._all[-1]

    def are_used(self, *, trains: bool) -> None:
        """Something is computed: with what was drawn last, as a rule.

        Args:
            trains: Whether it is training: evaluation has models in another mode, or wants no gradients.
        """
        latest = _drawn_last(self._going_on)
        self._going_on = [one for one in self._going_on if one.goes_on or one is latest]
        if latest is not None and not latest.may_be_used(trains=trains):
            latest = _drawn_last([one for one in self._going_on if one is not latest])
        if latest is not None:
            latest.trains |= trains
            latest.evaluates |= not trains

    def evaluating(self, marks: Sequence[int]) -> set[int]:
        """Places of batches that models were called with, though never to train; none where no others fed training.

        Args:
            marks: Batches that were drawn before each step.
        """
        between = range(marks[0], marks[-1]) if marks else range(0)
        feeding = [one for one in self._all if any(place in between for place in one.places)]
        if all(one.only_evaluates for one in feeding):
            return set()
        return {place for one in self._all if one.only_evaluates for place in one.places}

    def reading(self, loader: DataLoader[Any] | None) -> tuple[float, float]:
        """As `loop.reading`, of what the script itself has drawn from a loader; workers do not show it."""
        own = [one for one in self._all if one.loader is loader and one.samples and not one.loader.num_workers]
        if not own:
            return UNKNOWN_READING
        seconds = sum(one.seconds for one in own)
        waiting = 1 - sum(one.busy_seconds for one in own) / max(seconds, 1e-9)
        return seconds / sum(one.samples for one in own), min(1.0, max(0.0, waiting))

    def look_for_cycles(self) -> None:
        """Notes which passes are replayed, before they end: there a cycle lets go of its iterator."""
        for one in self._all:
            iterator = one.iterator
            one.is_cycled |= iterator is not None and _is_cycled(iterator)

    def look_away(self) -> None:
        """Notes nothing any more, and keeps nothing of what the script draws from."""
        for one in self._all:
            if (iterator := one.iterator) is not None:
                iterator.look_away()
        self._all.clear()
        self._going_on.clear()

    def described(
        self, loader: int, told_as: Mapping[int, int], first_step: int, evaluated: Collection[int]
    ) -> dict[str, Any]:
        """How a script goes through a loader that feeds training.

        Args:
            loader: Its id.
            told_as: Ids of loaders: of each that was drawn from, the one that it is told as.
            first_step: Batches that were drawn before the first step was taken.
            evaluated: Places of batches that were not trained on, as `evaluating` tells them.

        Returns:
            ``passed``, passes through one like it before the one that training begins in; ``begun_anew``, passes that
            began between steps when the one before had not come to its end; ``is_cycled``.
        """
        fed = [one for one in self._all if one.places and one.places[0] not in evaluated]
        own = [one for one in fed if told_as.get(id(one.loader)) == loader]
        before = [one for one in own if one.places[0] < first_step]
        goes_on = [one for one in before if one.places[-1] >= first_step]
        return {
            "passed": (goes_on or before[-1:] or own)[0].alike_before,
            "begun_anew": sum(
                later.places[0] >= first_step and not former.is_whole for former, later in itertools.pairwise(own)
            ),
            "is_cycled": any(one.is_cycled for one in own),
        }


def _drawn_last(passes: Sequence[Pass]) -> Pass | None:
    """The pass of the very last batch."""
    return max((one for one in passes if one.places), key=lambda one: one.places[-1], default=None)


def _is_cycled(iterator: Any) -> bool:
    """Whether a cycle draws from an iterator, directly or through what hands on its items.

    Python is asked for what refers to it: that walks through all objects, but writes to none, so that the memory which
    workers share with this process stays shared.
    """
    around = [iterator]
    for _ in range(_MOST_AROUND + 1):
        referring = gc.get_referrers(*around)
        if any(type(one) is itertools.cycle for one in referring):
            return True
        around = [one for one in referring if issubclass(type(one), _AROUND)]
        if not around:
            return False
    return False
