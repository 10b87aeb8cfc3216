"""A data set collated once: its samples are the rows of a few large tensors, in memory or on the device.

A batch is then a selection of rows, instead of samples that are read and collated again in each epoch. The loader stays
torch's own, with the user's sampler, so the order of samples does not change.

Only a data set whose samples are always the same can be placed. That is tested, never assumed: samples are read again
under other random numbers, and the user's own function collates batches of other samples and sizes. All must equal the
rows that would be selected for them.
"""

from __future__ import annotations

import contextlib
import math
import random
import warnings
from array import array
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter  # by name: the user's module may replace what `time` holds
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, Subset

from autotune.errors import ConfigError
from autotune.hardware.host import read_memory
from autotune.recorder.attributes import is_same
from autotune.recorder.order import random_numbers
from autotune.torch_settings.naming import length_of, tensors_in
from autotune.training.ranks import this_rank
from autotune.units import format_bytes, format_seconds
from autotune.workload.batches import with_tensors

Collate = Callable[[Any], Any]
CHUNK_SAMPLES, CHUNK_BYTES = 1024, 2**26
"""Most samples and bytes to read at once: a chunk takes memory twice, collated and copied into place."""
FIRST_SAMPLES = 16
"""Samples of the first chunk, which shows how large samples are."""
PROBED_SAMPLES, FEWEST_PROBED, PROBED_SECONDS, MOST_PROBED_SECONDS = 32, 4, 1.0, 3.0
"""`look_at` reads `PROBED_SAMPLES`, or as many as take `PROBED_SECONDS`, but `FEWEST_PROBED` at least. It refuses a set
whose fewest samples would take more than `MOST_PROBED_SECONDS`.

An augmentation that changes one sample in five escapes the comparisons once in 10⁶ times: 0.8 to the power of the 26
samples and of the 42 that are read again. Reading the whole set compares other samples once more."""
COMPARED_SEEDS = (11, 23)
COMPARED_SAMPLES = 16
FEW = 16
"""Longest list to check for changes at each batch: more parts would take as long as the batch."""
HASHED_BYTES = 2**24
"""Largest array to look into once per pass, which takes 10 ms. Labels fit; images are read again, a few each pass."""
MOST_OF_FREE = 0.5
"""Largest share of the free memory for the whole set. Not tuned; activations need the rest."""


class Rows:
    """A whole batch, which a placed data set passes to `unpacked`.

    Args:
        batch: The batch as the user's own collation would have made it.
        count: Number of its samples.
    """

    __slots__ = ("batch", "count")

    def __init__(self, batch: Any, count: int) -> None:
        self.batch = batch
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, _: int) -> Any:
        raise TypeError("its own loader reads a placed data set; for another loader, use the data set that you placed")


def unpacked(rows: Rows) -> Any:
    """The collation of a loader that reads a placed data set."""
    return rows.batch


class PlacedDataset(Dataset[Any]):
    """Behaves as the user's data set, but selects batches from rows that were collated once.

    The first batch reads the whole set, unless `place` has done so. A data set that cannot be placed, or that the user
    changes later, is read sample by sample, after a warning.

    Args:
        collate: Collates a list of its samples into a batch.
        device: Holds the rows.
    """

    _OWN = frozenset(
        {"_dataset", "_collate", "_device", "_whole", "_state", "_hashes", "_left", "_passes", "_refused", "_seconds"}
    )

    def __init__(self, dataset: Any, collate: Collate, device: torch.device) -> None:
        self._dataset = dataset
        self._collate = collate
        self._device = device
        self._whole: Any = None
        self._state: list[Any] = []
        self._hashes: list[int | None] = []
        self._left = 0  # samples that this rank draws before its next pass
        self._passes = 0
        self._refused = False
        self._seconds: float | None = None

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of the user's data set, for ``isinstance``."""
        return type(self._dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in PlacedDataset._OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._dataset, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy places its data set itself."""
        return PlacedDataset, (self._dataset, self._collate, self._device)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        return self._dataset[index]

    def __getitems__(self, indices: Sequence[Any]) -> Rows:
        if not self._refused:
            try:
                place(self)
                self._require_unchanged(len(indices))
                return Rows(self._selected(indices), len(indices))
            except (ConfigError, MemoryError, torch.OutOfMemoryError) as error:
                self._refused, self._whole = True, None
                warnings.warn(f"the data set is loaded sample by sample from here on: {error}", stacklevel=2)
        return Rows(self._collate(_fetch(self._dataset, indices)), len(indices))

    def _read(self) -> Any:
        """The whole set as one batch, chunk by chunk."""
        samples = len(self._dataset)
        size = min(samples, FIRST_SAMPLES)
        whole: Any = None
        rows: list[torch.Tensor] = []
        first = 0
        while first < samples:
            indices = range(first, min(first + size, samples))
            batch = self._collate(_fetch(self._dataset, indices))
            parts = _rows_of(batch, len(indices))
            if whole is None:
                sample_bytes = sum(part.nbytes for part in parts) / len(indices)
                self._require_room(round(sample_bytes * samples))
                size = max(1, min(CHUNK_SAMPLES, int(CHUNK_BYTES / max(sample_bytes, 1))))
                rows = [part.new_empty((samples, *part.shape[1:]), device=self._device) for part in parts]
                unused = iter(rows)
                whole = with_tensors(batch, lambda _: next(unused))  # noqa: B023 - called here and now
            if [part.shape[1:] for part in parts] != [row.shape[1:] for row in rows]:
                raise ConfigError("its samples are not of one shape")
            for row, part in zip(rows, parts, strict=True):
                row[first : first + len(indices)] = part
            first += len(indices)
        return whole

    def _require_unchanged(self, count: int) -> None:
        """Compares the data set with the placed one; once per pass also its arrays, and a few samples.

        Raises:
            ConfigError: It was changed.
        """
        self._left -= count
        now = state_of(self._dataset)
        changed = len(now) != len(self._state) or not all(map(is_same, now, self._state))
        if not changed and self._left < 0:
            self._passes += 1
            samples = len(self._dataset)
            chosen = random.Random(self._passes).sample(range(samples), min(COMPARED_SAMPLES, 1 + samples // 100))
            with _errors_as_reasons():
                changed = self._hashes != hashes_of(self._state) or not self._is_as_read(chosen, self._passes)
            self._remember()  # reading samples may fill caches
            self._left -= count
        if changed:
            raise ConfigError("it was changed after it had been collated")

    def _remember(self) -> None:
        self._state = state_of(self._dataset)
        self._hashes = hashes_of(self._state)
        self._left = math.ceil(len(self._dataset) / this_rank().count)

    def _is_as_read(self, indices: Sequence[int], seed: int) -> bool:
        """Whether samples read again, under other random numbers, equal the rows selected for them."""
        with random_numbers(seed):
            expected = self._collate(_fetch(self._dataset, indices))
        return alike(expected, self._selected(indices))

    def _require_room(self, needed: int) -> None:
        if self._device.type == "cuda":
            free = torch.cuda.mem_get_info(self._device)[0]
        else:
            free = read_memory({}).available_bytes
        if needed > MOST_OF_FREE * free:
            size = format_bytes(needed)
            raise ConfigError(f"it takes {size}, more than half of the {format_bytes(free)} of memory that are free")

    def _compare(self) -> None:
        """Compares batches of other samples, read under other random numbers, with the rows selected for them.

        Raises:
            ConfigError: They differ.
        """
        samples = len(self._dataset)
        for seed in COMPARED_SEEDS:
            chosen = random.Random(seed).sample(range(samples), min(samples, COMPARED_SAMPLES))
            for indices in (chosen, chosen[: max(1, len(chosen) // 3)]):
                if not self._is_as_read(indices, seed):
                    raise ConfigError("its samples, or the batches made of them, differ from time to time")

    def _selected(self, indices: Sequence[Any]) -> Any:
        try:
            if type(indices) is list and indices:  # torch itself takes three times as long to read one
                index = torch.frombuffer(array("q", indices), dtype=torch.int64)
            else:
                index = torch.as_tensor(indices, dtype=torch.int64)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            raise ConfigError("its sampler draws no whole numbers") from None
        if min(indices, default=0) < 0:
            index = torch.where(index < 0, index + len(self._dataset), index)
        index = index.to(self._device, non_blocking=True)
        return with_tensors(self._whole, lambda rows: rows.index_select(0, index))


def place(dataset: PlacedDataset) -> None:
    """Reads and collates the whole set, unless that was done before, and compares some samples with a second reading.

    The state of random numbers does not change.

    Raises:
        ConfigError: Samples or collation are not always the same, or the set does not fit in memory.
    """
    if dataset._whole is not None:
        return
    began = perf_counter()
    with _errors_as_reasons():
        if (why := unfit(dataset._dataset)) is not None:
            raise ConfigError(why)
        with random_numbers(0):
            dataset._whole = dataset._read()
        try:
            dataset._compare()
        except BaseException:
            dataset._whole = None
            raise
    dataset._remember()
    dataset._seconds = perf_counter() - began


def placement_seconds(dataset: object) -> float | None:
    """Seconds that reading and collating a data set took; None where it is not placed."""
    return dataset._seconds if type(dataset) is PlacedDataset else None


def state_of(dataset: Any, depth: int = 3) -> list[Any]:
    """The length and the values of a data set, and of others that it wraps, by which a later change is noticed.

    Changes inside a value are not noticed, except those of a tensor in place.
    """
    state: list[Any] = [length_of(dataset)]
    for value in getattr(dataset, "__dict__", {}).values():
        state.append(value)
        held = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else (value,)
        for part in held if len(held) <= FEW else ():
            if isinstance(part, Dataset) and depth:
                state += state_of(part, depth - 1)
            elif isinstance(part, torch.Tensor) and not part.is_inference():
                state.append(part._version)
    return state


def hashes_of(state: Sequence[Any]) -> list[int | None]:
    """The hashes of the arrays in a state; None for a large array, and for other values."""
    return [_hash_of(value) for value in state]


def _hash_of(value: Any) -> int | None:
    try:
        view = memoryview(value)
        return hash(view.tobytes()) if view.nbytes <= HASHED_BYTES else None
    except (TypeError, ValueError, BufferError):
        return None


def look_at(dataset: Any, collate: Collate, drawn: Sequence[Any], sample_seconds: float) -> int:
    """Estimates the bytes that a data set would take when placed, from a few of its samples.

    Args:
        dataset: The user's data set.
        collate: Collates a list of its samples into a batch.
        drawn: Some indices that its sampler draws.
        sample_seconds: Seconds to read one sample.

    Raises:
        ConfigError: The data set cannot be placed; the message gives the reason.
    """
    with _errors_as_reasons():
        if (why := unfit(dataset)) is not None:
            raise ConfigError(why)
        if not all(isinstance(index, int) for index in drawn):
            raise ConfigError("its sampler draws no whole numbers")
        samples, again = len(dataset), 1 + 2 * len(COMPARED_SEEDS)
        if FEWEST_PROBED * again * sample_seconds > MOST_PROBED_SECONDS:
            seconds = format_seconds(sample_seconds)
            raise ConfigError(f"reading a sample takes {seconds}, too long to find out whether it is always the same")
        affordable = int(PROBED_SECONDS / (max(sample_seconds, 1e-9) * again))
        count = min(samples, max(FEWEST_PROBED, min(PROBED_SAMPLES, affordable)))
        indices = [round(place * (samples - 1) / max(1, count - 1)) for place in range(count)]
        probe = PlacedDataset(Subset(dataset, indices), collate, torch.device("cpu"))
    place(probe)
    return round(sum(rows.nbytes for rows in tensors_in(probe._whole)) / count * samples)


def unfit(dataset: Any) -> str | None:
    """The reason why a data set cannot be placed whatever its samples are, or None."""
    if isinstance(dataset, IterableDataset) or not length_of(dataset):
        return "it has no length by which all its samples could be read"
    if hasattr(dataset, "set_epoch"):
        return "its samples may differ from epoch to epoch, since it has a set_epoch()"
    return None


def alike(batch: Any, other: Any) -> bool:
    """Whether two batches have the same structure and types, and equal tensors; NaN equals NaN."""
    structure, its_structure = (with_tensors(each, lambda _: None) for each in (batch, other))
    mine, theirs = list(tensors_in(batch)), list(tensors_in(other))
    if type(batch) is not type(other) or structure != its_structure or len(mine) != len(theirs):
        return False
    return all(_equal(tensor, its.to(tensor.device)) for tensor, its in zip(mine, theirs, strict=True))


def _equal(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    if tensor.shape != other.shape or tensor.dtype != other.dtype:
        return False
    return bool(((tensor == other) | ((tensor != tensor) & (other != other))).all())  # noqa: PLR0124 - only NaN is not


def _rows_of(batch: Any, count: int) -> list[torch.Tensor]:
    """The tensors of a batch, each with one row per sample.

    Raises:
        ConfigError: The batch has other tensors, or holds something that is not a tensor.
    """
    parts: list[torch.Tensor] = []

    def keep(part: torch.Tensor) -> torch.Tensor:
        plain = type(part) is torch.Tensor and part.layout is torch.strided and not part.requires_grad
        if not plain or part.device.type != "cpu" or not part.dim() or part.shape[0] != count:
            raise ConfigError("its batches hold tensors that have not one row a sample")
        parts.append(part)
        return part

    try:
        with_tensors(batch, keep)
    except TypeError as error:
        raise ConfigError(str(error)) from None
    if not parts:
        raise ConfigError("its batches hold no tensors")
    return parts


def _fetch(dataset: Any, indices: Sequence[Any]) -> Any:
    """Reads samples as torch's loader does."""
    if getattr(dataset, "__getitems__", None):
        return dataset.__getitems__(list(indices))
    return [dataset[index] for index in indices]


@contextlib.contextmanager
def _errors_as_reasons() -> Iterator[None]:
    """Turns an error of the user's code while the set is read into a reason not to place it."""
    try:
        yield
    except (ConfigError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        first_line = (str(error).splitlines() or [""])[0][:200]
        raise ConfigError(f"reading all of it raised {type(error).__name__}: {first_line}") from error
