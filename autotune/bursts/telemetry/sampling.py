"""Telemetry of a burst: a thread that watches memory, processors and the GPU, and other processes that use them."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic  # by name: the user's module may replace what `time` holds
from typing import Any

import psutil

from autotune.bursts.hosts.cleanup import descendants
from autotune.bursts.telemetry.gpu_telemetry import SAMPLE_SECONDS, GpuTelemetry
from autotune.hardware import CpuEnergy
from autotune.measuring import TelemetrySummary
from autotune.sandbox.system import LINUX

NOTABLE_GROWTH = 0.01
"""Memory is counted again when the tree's resident size grows by this share over its highest so far."""
LONGEST_PAUSE = 5
"""Samples between two looks at memory, once it has settled."""
_BUSY_FIELDS = ("user", "nice", "system", "irq", "softirq")
_IDLE_FIELDS = ("idle", "iowait")
_OWN_FIELDS = ("user", "system")
_TREE_FIELDS = (*_OWN_FIELDS, "children_user", "children_system")
"""CPU times of a process and of its ended children: workers come and go with the epochs."""


@dataclass(frozen=True)
class CpuSeconds:
    """CPU time spent until now, in seconds over all CPUs."""

    at: float
    busy: float
    idle: float
    stolen: float
    own: float


class Telemetry:
    """Watches while it is open, from its own thread.

    Memory is PSS where the system reports it (pages that forked workers share count once), else RSS. Where the system
    also reports each process's highest RSS, a peak between two looks is seen too.

    Args:
        limit_bytes: Host memory of the process tree above which `on_limit` is called, from the watching thread.
        on_limit: Receives the bytes in use; it is expected to end the process.
        gpu: Telemetry of the GPU, if there is one to watch.
        energy: Energy counter of the processors, if they do the training.
        retries: Returns how often the device's allocator has had to try again so far; None if that is not counted.
        root: The process whose tree is watched; this one when None.
    """

    def __init__(
        self,
        limit_bytes: int | None,
        on_limit: Callable[[int], None],
        *,
        gpu: GpuTelemetry | None = None,
        energy: CpuEnergy | None = None,
        retries: Callable[[], int | None] = lambda: None,
        root: psutil.Process | None = None,
    ) -> None:
        self._limit_bytes = limit_bytes
        self._on_limit = on_limit
        self._gpu = gpu
        self._energy = energy
        self._joules_before: float | None = None
        self._retries, self._retries_before = retries, retries()
        self._process = root or psutil.Process()
        self._children: list[psutil.Process] = []
        # The forkserver and the command are ours too: their work is no foreign load.
        self._ancestors = self._process.parents()[:2]
        self._peak_bytes = 0
        self._counted_at_bytes = 0.0
        self._began: CpuSeconds | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="autotune-telemetry", daemon=True)

    def __enter__(self) -> Telemetry:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=1.0)

    def begin(self) -> None:
        """Begins the timed part of the burst: what was spent before does not count."""
        with self._lock:
            if self._gpu is not None:
                self._gpu.begin()
            self._joules_before, self._retries_before = self._joules(), self._retries()
            self._began = self._cpu_seconds()

    def end(self) -> TelemetrySummary:
        """Ends the timed part, and returns its figures."""
        with self._lock:
            ended = self._cpu_seconds()
            cpu: dict[str, Any] = shares(self._began or ended, ended) if ended is not None else {"seconds": 0.0}
            gpu: dict[str, Any] = self._gpu.end() if self._gpu is not None else {}
            counted = {
                "energy_joules": _spent(self._joules_before, self._joules()),
                "allocator_retries": _spent(self._retries_before, self._retries()),
            }
            return TelemetrySummary.model_validate(cpu | counted | gpu)

    def peak_bytes(self) -> int:
        """The tree's highest memory so far, after one more look."""
        self._sample_memory()
        return self._peak_bytes

    def _joules(self) -> float | None:
        return self._energy.joules() if self._energy is not None else None

    def _watch(self) -> None:
        pause = countdown = 1
        while not self._stop.wait(SAMPLE_SECONDS):
            if self._gpu is not None:
                with self._lock:
                    self._gpu.sample()
            countdown -= 1
            if countdown == 0:
                # A look takes a millisecond from training, and memory that has settled seldom grows again.
                countdown = pause = 1 if self._sample_memory() else min(2 * pause, LONGEST_PAUSE)

    def _sample_memory(self) -> bool:
        """Looks at the tree's memory; returns whether it has grown notably."""
        with contextlib.suppress(OSError):  # the user's code may have taken every file descriptor
            self._children = descendants(self._process)
        tree = (self._process, *self._children)
        # The highest RSS so far, else RSS: quick to read, but shared pages count in each process.
        resident = _total(tree, lambda process: _high_water_bytes(process) or process.memory_info().rss)
        # To count shared pages once takes the kernel milliseconds: only when there is something new to count.
        if resident <= (1 + NOTABLE_GROWTH) * self._counted_at_bytes:
            return False
        total = int(_total(tree, _memory_bytes))
        self._peak_bytes = max(self._peak_bytes, total)
        self._counted_at_bytes = resident  # last: two threads look, and neither may skip an unfinished count
        if self._limit_bytes is not None and total > self._limit_bytes:
            self._on_limit(total)
        return True

    def _cpu_seconds(self) -> CpuSeconds | None:
        """CPU time until now; None if it cannot be read, as when the user's code has taken every file descriptor."""
        try:
            times = psutil.cpu_times()
            tree = (self._process, *descendants(self._process))
            own = _total(tree, lambda process: _sum(process.cpu_times(), _TREE_FIELDS))
            own += _total(self._ancestors, lambda process: _sum(process.cpu_times(), _OWN_FIELDS))
        except OSError:
            return None
        busy, idle, stolen = (_sum(times, fields) for fields in (_BUSY_FIELDS, _IDLE_FIELDS, ("steal",)))
        return CpuSeconds(at=monotonic(), busy=busy, idle=idle, stolen=stolen, own=own)


class Unwatched(Telemetry):
    """Watches nothing: the first of several ranks watches all."""

    def __init__(self) -> None:
        super().__init__(None, lambda _: None)

    def __enter__(self) -> Unwatched:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self) -> None:
        """Does nothing."""

    def end(self) -> TelemetrySummary:
        """No figures."""
        return TelemetrySummary(seconds=0.0)

    def peak_bytes(self) -> int:
        """No figures."""
        return 0


def _spent(before: float | None, after: float | None) -> float | None:
    """The increase of a counter; None if it could not be read."""
    return after - before if before is not None and after is not None else None


def shares(before: CpuSeconds, after: CpuSeconds) -> dict[str, float]:
    """Fractions of all CPUs between two looks, by the names of `TelemetrySummary`."""
    seconds, own = after.at - before.at, after.own - before.own
    if seconds <= 0:
        return {"seconds": 0.0}
    spent = {
        "cpu_fraction": own,
        "foreign_cpu_fraction": after.busy - before.busy - own,
        "idle_cpu_fraction": after.idle - before.idle,
        "stolen_cpu_fraction": after.stolen - before.stolen,
    }
    capacity = seconds * (os.cpu_count() or 1)
    # The system counts in ticks of 10 ms, so that short spans can come out below zero.
    return {"seconds": seconds, **{name: min(1.0, max(0.0, part / capacity)) for name, part in spent.items()}}


def _sum(times: Any, fields: Sequence[str]) -> float:
    """The sum of those fields that this system has."""
    return sum(getattr(times, field, 0.0) for field in fields)


def _total(processes: Sequence[psutil.Process], read: Callable[[psutil.Process], float]) -> float:
    """The sum of a figure over processes; those that have ended count nothing."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            total += read(process)
    return total


def _memory_bytes(process: psutil.Process) -> int:
    """PSS at the process's peak, else PSS now, else RSS.

    PSS and RSS come from the same look: memory of a step that comes and goes between two looks would count twice, or
    not at all.
    """
    try:
        rollup = _bytes_by_name(process, "smaps_rollup")
        resident, proportional = rollup["Rss:"], rollup["Pss:"]
    except (OSError, KeyError):
        full = process.memory_full_info()
        resident, proportional = full.rss, getattr(full, "pss", full.rss)
    above = max(0, (_high_water_bytes(process) or 0) - resident)  # memory that came and went is its own, not shared
    return int(proportional) + above


def _high_water_bytes(process: psutil.Process) -> int | None:
    """The highest RSS since the process began, even between two looks; None where the system does not report it.

    Raises:
        OSError: The process has gone.
    """
    if LINUX:
        return _bytes_by_name(process, "status").get("VmHWM:")
    return getattr(process.memory_info(), "peak_wset", None)  # of Windows


def _bytes_by_name(process: psutil.Process, file: str) -> dict[str, int]:
    """The sizes in one of Linux's files about a process's memory.

    Raises:
        OSError: The process has gone, or the system has no such file.
    """
    with open(f"/proc/{process.pid}/{file}", encoding="utf-8", errors="replace") as file_text:
        lines = (line.split() for line in file_text)
        return {words[0]: 1024 * int(words[1]) for words in lines if words[-1:] == ["kB"]}
