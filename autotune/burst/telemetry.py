"""What runs beside a burst: a thread that follows the memory of the whole process tree."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psutil

SAMPLE_SECONDS = 0.1
_CHILDREN_EVERY = 5


class MemoryWatch:
    """Samples the memory of this process and its descendants, and acts once when a limit is passed.

    The figure is PSS where the system gives it (pages shared by forked workers count once), else RSS.

    Args:
        limit_bytes: Above this `on_limit` is called, from the watching thread.
        on_limit: Takes the bytes that were seen; it is expected to end the process.
    """

    def __init__(self, limit_bytes: int | None, on_limit: Callable[[int], None]) -> None:
        self._limit_bytes = limit_bytes
        self._on_limit = on_limit
        self._process = psutil.Process()
        self._children: list[psutil.Process] = []
        self._peak_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="autotune-memory", daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=1.0)

    def peak_bytes(self) -> int:
        """The highest figure so far; looks once more first, so that a short peak's end is seen."""
        self._sample(refresh=True)
        return self._peak_bytes

    def _watch(self) -> None:
        count = 0
        while not self._stop.wait(SAMPLE_SECONDS):
            self._sample(refresh=count % _CHILDREN_EVERY == 0)
            count += 1

    def _sample(self, *, refresh: bool) -> None:
        if refresh:
            self._children = self._process.children(recursive=True)
        total = sum(_memory_bytes(process) for process in (self._process, *self._children))
        self._peak_bytes = max(self._peak_bytes, total)
        if self._limit_bytes is not None and total > self._limit_bytes:
            self._on_limit(total)


def _memory_bytes(process: psutil.Process) -> int:
    """PSS, else RSS; 0 for a process that has gone."""
    try:
        full = process.memory_full_info()
    except psutil.Error:
        return 0
    return int(getattr(full, "pss", full.rss))
