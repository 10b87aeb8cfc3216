"""A loader that draws as many random numbers in this process, and at the same moments, as the script's own would.

A shuffle uses the generator that dropout uses, or one of the script's own. With another number of workers torch would
draw at other moments, call a sampler once more, and skip a draw: all later random numbers would differ.
"""

from __future__ import annotations

import contextlib
import math
import pickle
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.utils.data import BatchSampler, DataLoader, IterDataPipe, RandomSampler

from ..torch_settings.naming import class_of, queue_of
from ..torch_settings.undo import nothing
from .added_workers import as_added, signals_wait
from .attributes import Attributes, Watch
from .batches import Batches, Watched
from .persisting import NewEpoch, Persisting
from .rewinding import LEFT_EARLY, Rewinding
from .samplers import own_samplers

READS_DRAW = (
    "workers draw the random numbers of reading data from their own generators: augmentation differs, and so does all "
    "that the process draws later from {}, as with another seed"
)
WORKERS_DRAW = (
    "workers draw random numbers as they read data, and the numbers depend on how many workers there are: augmentation "
    "has the same distribution, and other values"
)
TORCHS, PYTHONS, NUMPYS = "torch's generator (shuffles, dropout)", "Python's random", "numpy.random"
INDICES_DRAW = (
    "the sampler draws random numbers for each batch, and for workers ahead of training: if training draws some too, "
    "their order changes"
)
INDICES_FED_BACK = (
    "training changes what the sampler reads, but its indices were drawn ahead, for workers: samples differ from those "
    "of the script's own loader; tune again, or pin num_workers and prefetch_factor"
)
_OF_PASS = {"_order", "_copied", "_must_restart"}
_checked: set[tuple[str, str]] = set()
"""Warnings that were checked for already, each with a class."""


class Own(NamedTuple):
    """What decides when the script's own loader draws.

    Attributes:
        workers: Their number.
        queue: Batches that they prepare in advance.
        persists: Whether they persist from epoch to epoch.
    """

    workers: int = 0
    queue: int = 0
    persists: bool = False

    @classmethod
    def of(cls, loader: DataLoader[Any]) -> Own:
        """The values of a loader."""
        return cls(loader.num_workers, queue_of(loader), loader.persistent_workers)

    @classmethod
    def given(cls, arguments: Mapping[str, Any]) -> Own:
        """The values of a loader that is made with some arguments."""
        workers = arguments.get("num_workers", 0)
        queue = workers * (arguments.get("prefetch_factor") or 2)
        return cls(workers, queue, arguments.get("persistent_workers", False))


class Drawing(DataLoader[Any]):
    """A loader that draws as another one would. Call `read` instead of ``iter()``.

    Workers that persist, unlike those of the other loader, see changes to the data set between passes, and begin each
    pass as new ones would.

    Attributes:
        why_restarted: Why workers that persist were restarted; None where they were not.
    """

    why_restarted: str | None = None
    _order: _Order | None = None
    _copied: Attributes | None = None
    _must_restart: torch.Tensor | None = None  # shared with workers

    def __getstate__(self) -> dict[str, Any]:
        """Without the pass that is being read, so that it can be copied as torch's own."""
        return {name: value for name, value in vars(self).items() if name not in _OF_PASS}

    @property
    def _index_sampler(self) -> Any:  # torch's iterators ask for it
        return super()._index_sampler if self._order is None else self._order

    def read(
        self,
        own: Own,
        sampler: Any,
        iterate: Callable[[DataLoader[Any]], Iterator[Any]],
        say: Callable[[str], None],
        *,
        goes_on: bool,
    ) -> Watched:
        """Starts a pass.

        Args:
            own: Describes the loader to draw as.
            sampler: Draws the indices of batches; None for this loader's own.
            iterate: Makes one of torch's iterators.
            say: Receives a warning about draws that differ. A worker may call it.
            goes_on: Whether it was read before, so that persistent workers exist.
        """
        outlasts = self.persistent_workers and not own.persists  # the workers of the other loader
        if outlasts:
            self._see_changes()
        goes_on &= own.persists
        sampler = super()._index_sampler if sampler is None else sampler
        seeds = copied(self.generator)  # torch draws the workers' seed from it, the same one as the loader of `own`
        looks = self.num_workers > own.workers and _is_first(INDICES_DRAW, _within(sampler))
        indices = Indices(self, own, sampler, begins=not goes_on, say=say if looks else None)
        if queue_of(self) > own.queue and (samplers := own_samplers(sampler)):
            indices.watch(Watch(*samplers), say)

        def start() -> Iterator[Any]:
            self._order = self._order or _Order()
            self._order.sampler, self._order.indices = sampler, indices
            begin, collate = self.worker_init_fn, self.collate_fn
            if outlasts and self._iterator is not None:
                self._iterator._shared_seed = NewEpoch(_seed_of(seeds))  # torch sends it; it makes its own for pipes
            elif outlasts:
                self._must_restart = torch.zeros(1).share_memory_()  # type: ignore[no-untyped-call]
                collate = persisting = Persisting(begin, collate, self._must_restart)
                begin = persisting.begin
            changed: dict[str, Any] = {"generator": seeds, "worker_init_fn": begin, "collate_fn": collate}
            adds_workers = self.num_workers > own.workers == 0
            if adds_workers:
                changed["worker_init_fn"] = begin = as_added(begin)
            if self.num_workers not in {0, own.workers} and _is_first(READS_DRAW, self.dataset):
                first = _FirstReads(begin, collate, say, adds_workers=adds_workers)
                changed |= {"worker_init_fn": first.begin, "collate_fn": first}
            with signals_wait() if adds_workers else contextlib.nullcontext():
                return self._with(changed, iterate)

        return Watched(start() if own.workers else _Late(start), draws=indices.ask, dropped=lambda: indices.leave(say))

    def _see_changes(self) -> None:
        """Restarts workers if their copies differ from those that new ones would have."""
        former, self._copied = self._copied, Attributes(self.dataset, self.collate_fn)
        if former is not None and not self._copied.are_as(former):
            self._restart("the data set was changed between epochs")
        elif self._must_restart is not None and self._must_restart.item():
            self._restart(
                "workers change their copies of the data set, or worker_init_fn fails when it is called again"
            )

    def _restart(self, why: str) -> None:
        self._iterator = self._must_restart = None
        self.why_restarted = why

    def _with(self, changed: dict[str, Any], iterate: Callable[[DataLoader[Any]], Iterator[Any]]) -> Iterator[Any]:
        """Calls a function while some attributes are changed."""
        kept = {name: getattr(self, name) for name in changed}
        try:
            for name, value in changed.items():
                setattr(self, name, value)
            return iterate(self)
        finally:
            for name, value in kept.items():
                setattr(self, name, value)


class _Order:
    """Replaces a loader's sampler: persistent workers use the same one in each epoch."""

    sampler: Any
    indices: Indices

    def __iter__(self) -> Iterator[Any]:
        return self.indices

    def __len__(self) -> int:
        return len(self.sampler)


class Indices(Iterator[Any]):
    """The indices of a pass, batch by batch, drawn when the script's own loader would draw; sooner only for workers.

    Args:
        loader: The loader, or one with the same data set and generator.
        own: Describes the loader to draw as.
        sampler: Draws the indices of batches.
        begins: Whether torch would make a new iterator, rather than reuse one whose workers persist.
        say: Receives a warning if random numbers are drawn before they are due.

    Attributes:
        error: What the sampler has raised, if anything.
    """

    def __init__(
        self, loader: DataLoader[Any], own: Own, sampler: Any, *, begins: bool, say: Callable[[str], None] | None = None
    ) -> None:
        self.error: Exception | None = None
        self._sampler = sampler
        self._rewinding = Rewinding(sampler)  # first: a pass that was left takes back its draws
        self._source = iter(sampler)
        for _ in range(begins + isinstance(loader.dataset, IterDataPipe)):  # torch's own draws of seeds
            _seed_of(loader.generator)
        if begins and own.workers:  # torch makes two iterators then, and some shuffle on creation
            self._source = iter(sampler)
        # This sampler may draw once more at its end, which a script that counts batches never reaches.
        self._most = len(sampler) if type(_within(sampler)) is RandomSampler else math.inf
        self._due = own.queue
        self._say = say
        self._count = 0.0
        self._ready: deque[Any] = deque()
        self._watched: tuple[Watch, Callable[[str], None]] | None = None
        self._draw(self._due)

    def watch(self, watch: Watch, say: Callable[[str], None]) -> None:
        """Says once if anything but the sampler changes what is watched, between two of its batches."""
        self._watched = watch, say

    def ask(self) -> None:
        """The script asks for a batch."""
        self._due += 1
        self._rewinding.asked()
        self._draw(self._due)

    def leave(self, say: Callable[[str], None] = nothing) -> None:
        """The script leaves the pass: generators that the sampler holds are as if no batch had been drawn ahead."""
        with contextlib.suppress(Exception):  # nothing may come out of a `__del__`
            if self._rewinding.give_back() and _is_first(LEFT_EARLY, _within(self._sampler)):
                say(LEFT_EARLY)

    def __next__(self) -> Any:
        if not self._ready and self._count < self._most:
            self._draw_ahead()
        if not self._ready:
            raise StopIteration
        return self._ready.popleft()

    def take_back(self, batches: Iterable[Any]) -> None:
        """Takes batches of indices that came to nothing; they come again, first."""
        self._ready.extendleft(reversed(list(batches)))

    def _draw(self, count: float) -> None:
        while self._count < count:
            if self._watched is not None and self._watched[0].has_changed:
                (_, say), self._watched = self._watched, None
                if _is_first(INDICES_FED_BACK, _within(self._sampler)):
                    say(INDICES_FED_BACK)
            try:
                self._ready.append(next(self._source))
            except StopIteration:
                self._count = math.inf
                return
            except Exception as error:
                self.error = error
                raise
            self._count += 1
            if self._watched is not None:
                self._watched[0].renew()

    def _draw_ahead(self) -> None:
        before = random_states() if self._say is not None else {}
        self._rewinding.draw_ahead(lambda: self._draw(self._count + 1))
        if self._say is not None and drawn_since(before):
            self._say(INDICES_DRAW)
            self._say = None


class _Late(Batches):
    """An iterator that is made on first use: without workers, torch draws no sooner."""

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self._make = make
        self._made: Iterator[Any] | None = None

    def _inner(self) -> Any:
        if self._made is None:
            self._made = self._make()
        return self._made

    def __len__(self) -> int:
        return len(self._inner())

    def __next__(self) -> Any:
        return next(self._inner())


class _FirstReads:
    """A collate function that looks, in the first worker, whether random numbers were drawn for its first batch.

    Args:
        begin: The script's ``worker_init_fn``.
        collate: The script's ``collate_fn``.
        say: Receives a warning if they were.
        adds_workers: Whether the script's own loader reads in its own process, whose other draws follow then.
    """

    def __init__(
        self, begin: Callable[[int], None] | None, collate: Any, say: Callable[[str], None], *, adds_workers: bool
    ) -> None:
        self._begin, self._collate, self._say = begin, collate, say
        self._adds_workers = adds_workers
        self._before: Any = None

    def begin(self, worker: int) -> None:
        """Begins a worker."""
        if self._begin is not None:
            self._begin(worker)
        self._before = random_states() if worker == 0 else None

    def __call__(self, samples: Any) -> Any:
        batch = self._collate(samples)
        before, self._before = self._before, None
        if before is not None and (drawn := drawn_since(before)):
            self._say(READS_DRAW.format(", ".join(drawn)) if self._adds_workers else WORKERS_DRAW)
        return batch


def copied(generator: torch.Generator | None) -> torch.Generator:
    """Copies a generator; None for torch's default one on the CPU."""
    copy = torch.Generator()
    copy.set_state((torch.default_generator if generator is None else generator).get_state())
    return copy


def _seed_of(generator: torch.Generator | None) -> int:
    """What torch seeds the workers of a pass from; drawn from the loader's generator."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def _within(sampler: Any) -> Any:
    """The sampler that torch's own batches are made of; another sampler itself."""
    return sampler.sampler if type(sampler) is BatchSampler else sampler


def random_states() -> dict[str, Any]:
    """The states of a process's global generators, by name: torch's on the CPU, Python's, and NumPy's if imported."""
    states: dict[str, Any] = {TORCHS: torch.get_rng_state().numpy().tobytes(), PYTHONS: random.getstate()}
    if (numpy := sys.modules.get("numpy")) is not None:
        with contextlib.suppress(Exception):  # of a bit generator of the script's own
            states[NUMPYS] = pickle.dumps(numpy.random.get_state(legacy=False))
    return states


def drawn_since(before: Mapping[str, Any]) -> list[str]:
    """The generators that have drawn since `random_states` returned `before`."""
    now = random_states()
    return [name for name in before if name in now and now[name] != before[name]]


def _is_first(sentence: str, thing: object) -> bool:
    """Whether an object's class has not been checked for this warning."""
    key = sentence, class_of(thing)
    is_first = key not in _checked
    _checked.add(key)
    return is_first
