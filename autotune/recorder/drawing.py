"""A loader whose passes draw random numbers in this process as the script's own loader would: when, and how many.

A shuffle is drawn from the generator that training draws its dropout from, or from one of the script's own. With other
workers torch would draw at other moments, call a sampler once more, and leave out a draw: then all that comes later is
another training.
"""

from __future__ import annotations

import contextlib
import math
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import BatchSampler, DataLoader, IterDataPipe, RandomSampler

from .batches import Batches, Watched
from .naming import class_of

READS_DRAW = (
    "reading the data draws random numbers, in workers from generators of their own: augmentation, shuffles and "
    "dropout are drawn as under another seed"
)
INDICES_DRAW = (
    "the sampler draws random numbers from batch to batch, for workers ahead of training: where training draws some, "
    "too, they come in another order"
)
_told: set[tuple[str, str]] = set()
"""Sentences that were said, or are looked into, each of a class."""


class Own(NamedTuple):
    """What decides when the script's own loader draws.

    Attributes:
        workers: Their number.
        prefetch_factor: Batches that each of them prepares; None without workers.
        persists: Whether they go on from epoch to epoch.
    """

    workers: int = 0
    prefetch_factor: int | None = None
    persists: bool = False

    @classmethod
    def of(cls, loader: DataLoader[Any]) -> Own:
        """Those of a loader."""
        return cls(loader.num_workers, loader.prefetch_factor, loader.persistent_workers)


class Drawing(DataLoader[Any]):
    """A loader that draws as another one would: `read` instead of ``iter()``."""

    _order: _Order | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without the pass that is being read, so that it can be copied as torch's own."""
        return {name: value for name, value in vars(self).items() if name != "_order"}

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
        """A pass.

        Args:
            own: The loader that it draws as.
            sampler: Draws the indices of its batches; None: its own does.
            iterate: Makes an iterator of torch's.
            say: Told what cannot be as it was; a worker may call it.
            goes_on: Whether it was read before, so that workers that persist are there.
        """
        goes_on &= own.persists
        sampler = super()._index_sampler if sampler is None else sampler
        seeds = copied(self.generator)  # torch draws the workers' seed from it, the same one as the loader of `own`
        draws = (not goes_on) + isinstance(self.dataset, IterDataPipe)
        source = begun(sampler, self.generator, draws=draws, starts_workers=bool(own.workers) and not goes_on)
        within = sampler.sampler if type(sampler) is BatchSampler else sampler
        # This one may draw once more when it is asked for the end, which a script that counts batches never does.
        most = len(sampler) if type(within) is RandomSampler else math.inf
        looks = self.num_workers > own.workers and _is_first(INDICES_DRAW, within)
        indices = _Indices(source, own.workers * (own.prefetch_factor or 0), most, say if looks else None)

        def start() -> Iterator[Any]:
            self._order = self._order or _Order()
            self._order.sampler, self._order.indices = sampler, indices
            changed: dict[str, Any] = {"generator": seeds}
            if self.num_workers and not own.workers and _is_first(READS_DRAW, self.dataset):
                first = _FirstReads(self.worker_init_fn, self.collate_fn, say)
                changed |= {"worker_init_fn": first.begin, "collate_fn": first}
            return self._with(changed, iterate)

        return Watched(start() if own.workers else _Late(start), draws=indices.ask)

    def _with(self, changed: dict[str, Any], iterate: Callable[[DataLoader[Any]], Iterator[Any]]) -> Iterator[Any]:
        """What a function makes of it while some attributes are others."""
        kept = {name: getattr(self, name) for name in changed}
        try:
            for name, value in changed.items():
                setattr(self, name, value)
            return iterate(self)
        finally:
            for name, value in kept.items():
                setattr(self, name, value)


class _Order:
    """In the place of a loader's sampler: workers that persist ask the same one in each epoch."""

    sampler: Any
    indices: _Indices

    def __iter__(self) -> Iterator[Any]:
        return self.indices

    def __len__(self) -> int:
        return len(self.sampler)


class _Indices(Iterator[Any]):
    """The indices of a pass, batch by batch, drawn when the script's own loader would: sooner only for workers.

    Args:
        source: Draws them.
        ahead: Batches for which the script's own loader draws before one is asked for.
        most: Batches for which is drawn sooner, at most.
        say: Told if random numbers are drawn sooner.
    """

    def __init__(self, source: Iterator[Any], ahead: int, most: float, say: Callable[[str], None] | None) -> None:
        self._source = source
        self._due = ahead
        self._most = most
        self._say = say
        self._count = 0.0
        self._ready: deque[Any] = deque()
        self._draw(ahead)

    def ask(self) -> None:
        """The script asks for a batch."""
        self._due += 1
        self._draw(self._due)

    def __next__(self) -> Any:
        if not self._ready and self._count < self._most:
            self._draw_ahead()
        if not self._ready:
            raise StopIteration
        return self._ready.popleft()

    def _draw(self, count: float) -> None:
        while self._count < count:
            try:
                self._ready.append(next(self._source))
            except StopIteration:
                self._count = math.inf
                return
            self._count += 1

    def _draw_ahead(self) -> None:
        if self._say is None:
            self._draw(self._count + 1)
            return
        before = random_states()
        self._draw(self._count + 1)
        if random_states() != before:
            self._say(INDICES_DRAW)
            self._say = None


class _Late(Batches):
    """An iterator that is made when it is first asked for something: without workers, torch draws no sooner."""

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
        say: Told if they were.
    """

    def __init__(self, begin: Callable[[int], None] | None, collate: Any, say: Callable[[str], None]) -> None:
        self._begin, self._collate, self._say = begin, collate, say
        self._before: Any = None

    def begin(self, worker: int) -> None:
        """A worker begins."""
        if self._begin is not None:
            self._begin(worker)
        self._before = random_states() if worker == 0 else None

    def __call__(self, samples: Any) -> Any:
        batch = self._collate(samples)
        before, self._before = self._before, None
        if before is not None and random_states() != before:
            self._say(READS_DRAW)
        return batch


def copied(generator: torch.Generator | None) -> torch.Generator:
    """A generator in the state of another one; None: of torch's own on the CPU."""
    copy = torch.Generator()
    copy.set_state((torch.default_generator if generator is None else generator).get_state())
    return copy


def begun(sampler: Any, generator: torch.Generator | None, *, draws: int, starts_workers: bool) -> Iterator[Any]:
    """The indices that a sampler draws for a pass, after what torch draws as it begins one.

    Args:
        sampler: Of a loader's indices.
        generator: Of the loader.
        draws: How many seeds torch draws.
        starts_workers: Whether it starts workers: then it makes two iterators, of which some shuffle as they are made.
    """
    indices = iter(sampler)
    for _ in range(draws):
        torch.empty((), dtype=torch.int64).random_(generator=generator)
    return iter(sampler) if starts_workers else indices


def random_states() -> list[Any]:
    """The states of a process's own generators: torch's on the CPU, Python's, and NumPy's where it is imported."""
    states: list[Any] = [torch.get_rng_state().tolist(), random.getstate()]
    if (numpy := sys.modules.get("numpy")) is not None:
        with contextlib.suppress(Exception):  # of a bit generator of the script's own
            states.append(str(numpy.random.get_state(legacy=False)))
    return states


def _is_first(sentence: str, thing: object) -> bool:
    """Whether a thing's class has not been looked at in this respect."""
    key = sentence, class_of(thing)
    is_first = key not in _told
    _told.add(key)
    return is_first
