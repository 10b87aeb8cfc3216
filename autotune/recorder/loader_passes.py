"""A script's passes through its loaders, as the observer sees them: an ``iter()`` and its batches."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from time import perf_counter, process_time  # by name: the script may replace what `time` holds
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from ..timing.loop import UNKNOWN_READING
from ..torch_settings.naming import class_of, length_of, loader_key
from .attributes import CopiedReading
from .batches import Watched
from .samplers import FEEDBACK, MOST_SECONDS, Feedback, own_samplers_of

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

_AROUND = (GeneratorType, enumerate, map, zip)
"""Types that wrap an iterator and hand on its items, like a progress bar."""
_MOST_AROUND = 3
"""Most nested wrappers between a loader and the `itertools.cycle` that replays its batches. Not tuned."""


class Pass:
    """One pass through a loader.

    Args:
        loader: The script's loader.
        alike_before: Earlier passes in training through loaders with the same key.
        look_seconds: Time left for looking at samplers, of all passes together.

    Attributes:
        places: Indices of its batches among all draws.
        samples: Samples in them.
        seconds: Time that drawing them took.
        busy_seconds: Processor time of this process meanwhile.
        trains: Whether its batches seem to be trained on: a model in training was called, or a step taken.
        evaluates: Whether a model was called with its batches otherwise.
        is_over: Whether the iterator has ended.
        is_cycled: Whether an `itertools.cycle` replays its batches.
        feedback: Whether training changes what the script's own samplers hold.
    """

    def __init__(self, loader: DataLoader[Any], alike_before: int, look_seconds: list[float]) -> None:
        self.loader = loader
        self.feedback = Feedback(own_samplers_of(loader), look_seconds)
        self.alike_before = alike_before
        self.places: list[int] = []
        self.samples, self.seconds, self.busy_seconds = 0, 0.0, 0.0
        self.trains = self.evaluates = False
        self.is_over = self.is_cycled = False
        self._iterator: Callable[[], Watched | None] = lambda: None

    @property
    def only_evaluates(self) -> bool:
        """Whether its batches only served evaluation."""
        return self.evaluates and not self.trains

    @property
    def is_whole(self) -> bool:
        """Whether all batches were drawn; ``zip`` does not reach the end of a second loader."""
        return self.is_over or len(self.places) >= (length_of(self.loader) or len(self.places) + 1)

    @property
    def goes_on(self) -> bool:
        """Whether more batches may be drawn."""
        return self.iterator is not None and not self.is_over

    def may_be_used(self, *, trains: bool) -> bool:
        """Whether the current computation may use its batches, if they were drawn last.

        A pass that does not continue qualifies if its batches have served nothing yet, or the same purpose. Otherwise
        it is over, and an earlier batch is used again. ``next(iter(loader))`` is a pass that ends before its batch is
        used.
        """
        return self.goes_on or (self.trains if trains else self.evaluates) or not (self.trains or self.evaluates)

    @property
    def iterator(self) -> Watched | None:
        """The iterator that the script draws from; None once the script has dropped it."""
        return self._iterator()

    def through(self, batches: Iterator[Any], drawn: Callable[[Any], None]) -> Iterator[Any]:
        """Wraps the loader's iterator to report each batch."""
        began = (0.0, 0.0)

        def draws() -> None:
            nonlocal began
            self.feedback.before_draw()
            began = perf_counter(), process_time()

        def timed(batch: Any) -> None:
            self.seconds += perf_counter() - began[0]
            self.busy_seconds += process_time() - began[1]
            self.feedback.after_draw()
            drawn(batch)

        watched = Watched(batches, timed, draws, self._end)
        self._iterator = weakref.ref(watched)  # workers must end when the script drops it
        return watched

    def _end(self) -> None:
        self.is_over = True

    def note(self, place: int, samples: int) -> None:
        """Notes a batch that was drawn."""
        self.places.append(place)
        self.samples += samples


class Passes:
    """All passes, in the order of their starts.

    Args:
        looks_at_samplers: Whether to look for feedback, which may take seconds.
    """

    def __init__(self, *, looks_at_samplers: bool = False) -> None:
        self._look_seconds = [MOST_SECONDS if looks_at_samplers else 0.0]
        self._all: list[Pass] = []
        self._going_on: list[Pass] = []
        self._begun: Counter[str] = Counter()
        self._reading: dict[int, CopiedReading] = {}  # by the id of a data set that is read in this process

    def begin(self, loader: DataLoader[Any], *, trains: bool) -> Pass:
        """Begins a pass; `trains` is whether gradients are enabled."""
        key = loader_key(loader)
        if not loader.num_workers and id(loader.dataset) not in self._reading:
            self._reading[id(loader.dataset)] = CopiedReading(loader.dataset, loader.collate_fn, loader.worker_init_fn)
        self._all.append(Pass(loader, self._begun[key], self._look_seconds))
        self._begun[key] += trains
        self._going_on.append(self._all[-1])
        return self._all[-1]

    def are_used(self, *, trains: bool) -> None:
        """Notes a computation, which usually uses the last batch.

        Args:
            trains: Whether it is training: evaluation switches the models' mode, or disables gradients.
        """
        latest = _drawn_last(self._going_on)
        self._going_on = [one for one in self._going_on if one.goes_on or one is latest]
        if latest is not None and not latest.may_be_used(trains=trains):
            latest = _drawn_last([one for one in self._going_on if one is not latest])
        if latest is not None:
            latest.trains |= trains
            latest.evaluates |= not trains

    def evaluating(self, marks: Sequence[int]) -> set[int]:
        """Indices of batches that only served evaluation; none if no other batches fed training.

        Args:
            marks: Number of draws before each step.
        """
        between = range(marks[0], marks[-1]) if marks else range(0)
        feeding = [one for one in self._all if any(place in between for place in one.places)]
        if all(one.only_evaluates for one in feeding):
            return set()
        return {place for one in self._all if one.only_evaluates for place in one.places}

    def reading(self, loader: DataLoader[Any] | None) -> tuple[float, float]:
        """Returns the same as `loop.reading`, from the script's own draws; unknown for loaders with workers."""
        own = [one for one in self._all if one.loader is loader and one.samples and not one.loader.num_workers]
        if not own:
            return UNKNOWN_READING
        seconds = sum(one.seconds for one in own)
        waiting = 1 - sum(one.busy_seconds for one in own) / max(seconds, 1e-9)
        return seconds / sum(one.samples for one in own), min(1.0, max(0.0, waiting))

    def look_for_cycles(self) -> None:
        """Notes which passes are replayed, before they end: at the end a cycle drops its iterator."""
        for one in self._all:
            iterator = one.iterator
            one.is_cycled |= iterator is not None and _is_cycled(iterator)

    def look_away(self) -> None:
        """Stops noting, and drops all references to the script's iterators."""
        for one in self._all:
            if (iterator := one.iterator) is not None:
                iterator.look_away()
        self._all.clear()
        self._reading.clear()
        self._going_on.clear()

    def described(
        self, loader: int, merged_ids: Mapping[int, int], first_step: int, evaluated: Collection[int]
    ) -> dict[str, Any]:
        """Describes how a script passes through a loader that feeds training.

        Args:
            loader: Id of the loader.
            merged_ids: Id of the loader that each loader counts as, see `loop.merged`.
            first_step: Number of draws before the first step.
            evaluated: Indices of batches that were not trained on, from `evaluating`.

        Returns:
            - ``passed``: passes through such a loader before the pass in which training begins
            - ``begun_anew``: passes that began between steps although the former one had not ended
            - ``is_cycled``: see `Pass`
            - ``copied``: why copies of its data set in workers would read something else; None if nothing is seen
            - ``samplers``: classes of the script's own samplers
            - ``feedback``: why their indices cannot be drawn ahead; None if nothing is seen
        """
        fed = [one for one in self._all if one.places and one.places[0] not in evaluated]
        own = [one for one in fed if merged_ids.get(id(one.loader)) == loader]
        before = [one for one in own if one.places[0] < first_step]
        goes_on = [one for one in before if one.places[-1] >= first_step]
        reading = self._reading.get(id(own[-1].loader.dataset))
        return {
            "passed": (goes_on or before[-1:] or own)[0].alike_before,
            "begun_anew": sum(
                later.places[0] >= first_step and not former.is_whole for former, later in itertools.pairwise(own)
            ),
            "is_cycled": any(one.is_cycled for one in own),
            "copied": reading and reading.why_no_copies,
            "samplers": [class_of(sampler) for sampler in own_samplers_of(own[-1].loader)],
            "feedback": FEEDBACK if any(one.feedback.is_seen for one in own) else None,
        }


def _drawn_last(passes: Sequence[Pass]) -> Pass | None:
    """The pass of the last batch."""
    drawn = [each for each in passes if each.places]
    return max(drawn, key=lambda candidate: candidate.places[-1], default=None)


def _is_cycled(iterator: Any) -> bool:
    """Whether a cycle draws from an iterator, directly or through wrappers.

    It asks Python for referrers. That walks through all objects, but writes to none, so that memory shared with workers
    stays shared.
    """
    around = [iterator]
    for _ in range(_MOST_AROUND + 1):
        referring = gc.get_referrers(*around)
        if any(type(referrer) is itertools.cycle for referrer in referring):
            return True
        around = [referrer for referrer in referring if issubclass(type(referrer), _AROUND)]
        if not around:
            return False
    return False
