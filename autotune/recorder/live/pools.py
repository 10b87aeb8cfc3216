"""One pass through a script's loader, fed from loaders that are exchanged within it: pools.

All pools of a pass draw from one iterator over the script's own sampler, and each hands out all that it has drawn
before the next one does. So every index comes once, in the order of the untuned run. Pools draw random numbers from a
generator of their own; what the script's own loader would draw is drawn once a pass, when it would (`drawing.Indices`).
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing.context
import os
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter  # by name: the script may replace what `time` holds
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, Sampler
from torch.utils.data._utils import signal_handling

from ...sandbox.system import KILL
from ...torch_settings.naming import length_of, queue_of
from ..added_workers import as_added, signals_wait
from ..attributes import Attributes, OwnDraws, Watch, held_by
from ..batches import Batches
from ..drawing import Indices, copied, drawn_since, random_states
from ..open_files import SHARED, OpenFiles, with_own_places
from ..stream import ITERATE

if TYPE_CHECKING:
    from collections.abc import Mapping


POLL_SECONDS = 5.0
"""While a pool waits for a batch, it checks this often that its workers live; torch does the same."""
_OF_ORDER = ("sampler", "batch_sampler", "batch_size", "drop_last")
Changed = tuple[tuple[str, Any], ...]
"""Arguments of `DataLoader` that a setting changes, sorted; none: it is the script's own."""


class OutdatedError(Exception):
    """The script has changed what its data set reads, of which workers of ours have an older copy."""

    def __init__(self) -> None:
        super().__init__("the script changes what its data set reads while it trains, which workers would not see")


class _Feed(Sampler[Any]):
    """What a pool's loader draws from: the order of the pass, as long as the pool is open."""

    def __init__(self) -> None:
        self.order: Indices | None = None
        self.drawn: deque[Any] = deque()  # and not handed out yet

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.order is None:
            raise StopIteration
        self.drawn.append(next(self.order))
        return self.drawn[-1]

    def __len__(self) -> int:
        return 0


class Pool:
    """A loader of one setting.

    Workers are seeded as torch would seed those of the script's own loader now; nothing is drawn from its generator.

    Args:
        changed: What differs from the script's own loader.
        arguments: Of `DataLoader`, as `Changes.arguments` makes them.
        patience_seconds: The longest time to wait for a batch. The script's own setting waits as long as it takes.

    Attributes:
        persists: Whether its workers live on after a pass.
        start_seconds: Duration of its workers' start; 0 before.
        delivered: Batches since it was opened.
    """

    def __init__(
        self, loader: DataLoader[Any], changed: Changed, arguments: Mapping[str, Any], patience_seconds: float
    ) -> None:
        self._feed = _Feed()
        self.changed = changed
        self._adds_workers = bool(arguments["num_workers"]) and not loader.num_workers
        self.persists = bool(arguments.get("persistent_workers"))
        self.patience_seconds = patience_seconds
        self.start_seconds = 0.0
        self.delivered = 0
        kept = {name: value for name, value in arguments.items() if name not in _OF_ORDER}
        kept["generator"] = seeds = copied(loader.generator)
        if changed:  # else workers would draw what those of the next pass will draw
            seeds.manual_seed(hash((seeds.get_state().numpy().tobytes(), changed)) % 2**63)
        batched = loader._auto_collation
        kept |= {"batch_sampler": self._feed} if batched else {"sampler": self._feed, "batch_size": None}
        if kept["num_workers"]:
            kept["persistent_workers"] = True  # over the pass at least: pools take turns
            if not self.is_own:
                begin = kept.get("worker_init_fn")
                kept["worker_init_fn"] = with_own_places(as_added(begin) if self._adds_workers else begin)
                kept["timeout"] = min(POLL_SECONDS, patience_seconds)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's advice on the number of workers is none for the script
            self.loader = DataLoader(**kept)
        self.loader.check_worker_number_rationality = lambda: None  # type: ignore[method-assign]
        self._batches: Iterator[Any] | None = None
        self._watch: Watch | None = None  # its workers have copies of the same objects

    @property
    def is_own(self) -> bool:
        """Whether it is the script's own setting: then its failures are the script's."""
        return not self.changed

    @property
    def batches(self) -> Any:
        """Torch's iterator; None before it is opened."""
        return self._batches

    @property
    def queue_batches(self) -> int:
        """Batches that its workers prepare in advance."""
        return queue_of(self.loader)

    @property
    def is_open(self) -> bool:
        """Whether it draws further indices."""
        return self._feed.order is not None

    def start(self) -> None:
        """Starts its workers, which wait for something to do."""
        if self.loader.num_workers and self._batches is None:
            began = perf_counter()
            self._batches = self._iterated()
            self._leave_to_us()
            self.start_seconds = perf_counter() - began

    def open(self, order: Indices) -> None:
        """Draws from a pass from now on."""
        self._feed.order = order
        self._feed.drawn.clear()  # of a pass that was left early
        self.delivered = 0
        self._wait_at_most(self.patience_seconds)  # workers may still have to start, or to end the last pass
        self._batches = self._iterated()
        self._wait_at_most(POLL_SECONDS)
        self._leave_to_us()

    def _iterated(self) -> Iterator[Any]:
        """Torch's iterator. Workers of ours leave it to the script how its own processes start."""
        if self._adds_workers and self._watch is None:
            self._watch = Watch(self.loader.dataset, self.loader.collate_fn)
        default: Any = multiprocessing.context._default_context
        actual = default._actual_context
        with signals_wait() if self._adds_workers else contextlib.nullcontext():
            batches = ITERATE(self.loader)
        if not self.is_own:
            default._actual_context = actual
        return batches

    def close(self) -> None:
        """Draws no further indices; batches of those drawn are still handed out."""
        self._feed.order = None

    def take(self) -> Any:
        """The next batch.

        Raises:
            OutdatedError: Its workers may have read it otherwise than the script's own loader would now.
            StopIteration: All that it has drawn is handed out, and there is no more to draw or it is closed.
        """
        assert self._batches is not None  # noqa: S101 - it was opened before
        if self._watch is not None and self._watch.has_changed:
            raise OutdatedError
        deadline = perf_counter() + self.patience_seconds
        try:
            while True:
                try:
                    batch = next(self._batches)
                    break
                except RuntimeError as error:  # torch raises it also where workers have died
                    if self.is_own or not str(error).startswith("DataLoader timed out"):
                        raise
                    if perf_counter() > deadline:
                        raise RuntimeError(f"no batch came within {self.patience_seconds:g} s") from error
        except StopIteration:
            raise
        except Exception:
            if self.is_own and self._feed.drawn:  # its batch is lost, as untuned; the script may ask for the next one
                self._feed.drawn.popleft()
            raise
        self._feed.drawn.popleft()
        self.delivered += 1
        return batch

    def give_up(self) -> Iterable[Any]:
        """Kills its workers; returns the indices that it has drawn and not handed out."""
        self.close()
        for worker in getattr(self._batches, "_workers", ()):
            with contextlib.suppress(OSError, AttributeError):
                os.kill(worker.pid, KILL)
        if (batches := self._batches) is not None:  # torch, which would wait for them, leaves it alone then
            batches._shutdown = True  # type: ignore[attr-defined]
            if (pinning_ends := getattr(batches, "_pin_memory_thread_done_event", None)) is not None:
                pinning_ends.set()
        drawn, self._feed.drawn = self._feed.drawn, deque()
        return drawn

    def end(self) -> None:
        """Ends its workers, once they are idle."""
        self._batches = self.loader._iterator = None

    def _wait_at_most(self, seconds: float) -> None:
        """Torch's iterator raises an error after this time. The script's own setting keeps its own."""
        if not self.is_own and getattr(self._batches, "_timeout", False):
            self._batches._timeout = min(seconds, self.patience_seconds)  # type: ignore[union-attr]

    def _leave_to_us(self) -> None:
        """Takes its workers out of torch's watch, which would end the training in the middle of any line."""
        batches = self._batches
        if not self.is_own and getattr(batches, "_worker_pids_set", False):
            signal_handling._remove_worker_pids(id(batches))  # type: ignore[attr-defined]
            batches._worker_pids_set = False  # type: ignore[union-attr]


class Pools(dict[Changed, Pool]):
    """The pools for one of the script's loaders. The key is what a pool changes.

    Attributes:
        passing: The last pass, where workers persist; the next one is the same object, as torch's iterator is.
    """

    passing: weakref.ref[Pass] | None = None

    def end(self) -> None:
        """Ends all workers."""
        for pool in self.values():
            pool.end()
        self.clear()


class Pass(Batches):
    """A pass of the script's through its loader: its iterator.

    A lazy pass opens its pool with the first batch, as the script's own loader without workers does. Where workers
    persist, the next pass gets the same pools.

    Args:
        draws: Called before a batch is drawn.
        drawn: Called with the pass, each batch, and the seconds that it was waited for.
        failed: Called when a pool other than the script's own fails; returns the pool that feeds the rest.

    Attributes:
        pool: The one that hands out batches now.
        count: Batches so far.
        is_over: Whether there are no more, or reading has failed.
        is_superseded: Whether another pass through the loader has begun before the end of this one.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        order: Indices,
        pools: Pools,
        pool: Pool,
        *,
        lazily: bool,
        draws: Callable[[Pass], None],
        drawn: Callable[[Pass, Any, float], None],
        failed: Callable[[Pass, Exception], Pool],
        ended: Callable[[Pass], None],
    ) -> None:
        self.loader = loader
        self.pools = pools
        self._draws, self._drawn, self._failed, self._ended = draws, drawn, failed, ended
        self.begin(order, pool, lazily=lazily)

    def begin(self, order: Indices, pool: Pool, *, lazily: bool) -> None:
        """Begins, or begins again with other indices."""
        self.order = order
        self.pool = pool
        self.count = 0
        self.is_over = False
        self.is_superseded = False
        self._next: Pool | None = None
        self._is_opened = not lazily
        if not lazily:
            pool.open(order)

    def __del__(self) -> None:
        self.order.leave()

    def _inner(self) -> Any:
        return self.pool._batches

    def __len__(self) -> int:
        return length_of(self.loader) or 0

    def go_on_with(self, pool: Pool) -> None:
        """Another pool feeds the rest, as soon as this one has handed out what it has drawn.

        The same one may, if the script's setting takes over before a candidate's pool has begun.
        """
        if pool is self.pool and self._next is None:
            return
        self.pool.close()
        self._next = pool

    @property
    def is_exhausted(self) -> bool:
        """Whether all batches are handed out, though the script has not asked for the end: frameworks count them."""
        return self.count > 0 and self.count >= (length_of(self.loader) or math.inf)

    @property
    def has_settled(self) -> bool:
        """Whether batches come from a pool whose queue was emptied since it was opened."""
        return self._next is None and self.pool.delivered > self.pool.queue_batches

    def __next__(self) -> Any:
        if self.is_over:
            raise StopIteration
        self._draws(self)
        began = perf_counter()
        self.order.ask()
        try:
            batch = self._taken()
        except StopIteration:
            self.is_over = True
            self._ended(self)
            raise
        self.count += 1
        self._drawn(self, batch, perf_counter() - began)
        return batch

    def _taken(self) -> Any:
        while True:
            try:
                if not self._is_opened:
                    self._is_opened = True
                    self.pool.open(self.order)
                return self.pool.take()
            except StopIteration:  # noqa: PERF203 - the loop seldom turns
                if self._next is None:
                    raise
                self.pool, self._next = self._next, None
                self._is_opened = False
            except Exception as error:
                if self.pool.is_own or error is self.order.error:
                    raise
                self.order.take_back(self.pool.give_up())
                self.pools.pop(self.pool.changed, None)
                self.pool, self._next = self._failed(self, error), None
                self._is_opened = False


class OwnReading:
    """Looks at the process around the first batches, where it reads them itself: could workers read them as well?

    Attributes:
        draws_random_numbers: Whether reading draws from the generators of this process, as augmentation does.
        why_no_workers: Why workers would not read the same; None where nothing speaks against it.
    """

    def __init__(self) -> None:
        self.draws_random_numbers = False
        self.why_no_workers: str | None = None
        self._generators: dict[str, Any] = {}
        self._files: OpenFiles | None = None  # before the first batch
        self._looks = False
        self._held: weakref.WeakKeyDictionary[DataLoader[Any], tuple[Attributes, OwnDraws]] = (
            weakref.WeakKeyDictionary()
        )

    def hold(self, loader: DataLoader[Any]) -> None:
        """Keeps what a loader's data set holds after its first batch: some of it may be made then."""
        if loader not in self._held:
            holders = loader.dataset, loader.collate_fn
            self._held[loader] = Attributes(*holders), OwnDraws(held_by(*holders))

    def has_changed(self, loader: DataLoader[Any]) -> bool:
        """Whether its data set, or what collates, holds something else since."""
        former = self._held.get(loader)
        return former is not None and not Attributes(loader.dataset, loader.collate_fn).are_as(former[0])

    def draws_own(self, loader: DataLoader[Any]) -> bool:
        """Whether reading has drawn from generators of random numbers that its data set holds."""
        return loader in self._held and self._held[loader][1].are_seen

    def before(self) -> None:
        """Before a batch is read."""
        self._generators, self._looks = random_states(), True
        if self._files is None:
            self._files = OpenFiles()
        else:
            self._files.look_again()  # between two batches the script itself may read

    def after(self) -> None:
        """After it was read."""
        if not self._looks:
            return
        self._looks = False
        self.draws_random_numbers |= bool(drawn_since(self._generators))
        if self._files is not None and self._files.are_read:
            self.why_no_workers = SHARED
