"""What this process and all below it take of memory and processors, and what others take, as Linux tells it."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterable
from time import perf_counter, sleep  # by name: the script may replace what `time` holds
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

WATCH_SECONDS = 0.5
"""Between two glances at memory."""
GROWTH = 1.05
"""Of what is resident, after which memory is looked at: that walks all pages, 35 ms for three processes of 440 MB,
during which training waits for each page that it touches first."""
IDLE_LIMIT = 0.1
"""Of the processors: where more are idle, beside those that others compute on, nothing was taken. Chosen."""


LOOK_SHARE, LOOK_SECONDS, MOST_LOOKS = 0.05, 0.1, 16
"""Looks at what a training holds: the most that they take of its time, the least time between two, and their number,
from which on every second one is dropped and later ones are twice as far apart. A look takes 17 ms for a process of
470 MB, and a slope needs three looks in a round of a second or two."""


def processes(top: int | None = None) -> list[int]:
    """A process, this one unless it is named, and all below it; alone where the system does not tell."""
    found = [top or os.getpid()]
    for process in found:  # grows as it goes
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{process}/task"):
                with contextlib.suppress(OSError), open(f"/proc/{process}/task/{task}/children") as listed:
                    found += [int(child) for child in listed.read().split()]
    return found


def memory_bytes() -> int | None:
    """Of all of them, what pages they share counted once; None where that is not told."""
    total = 0
    for process in processes():
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{process}/smaps_rollup", "rb") as told:
            for line in told:
                if line.startswith(b"Pss:"):
                    total += 1024 * int(line.split()[1])
                    break
    return total or None


def available_bytes() -> int | None:
    """Memory that could be taken without swapping; None where the system does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/meminfo", "rb") as told:
        for line in told:
            if line.startswith(b"MemAvailable:"):
                return 1024 * int(line.split()[1])
    return None


def resident_bytes(of: Iterable[int] | None = None) -> int:
    """Of all of them, what pages they share counted for each: no less than `memory_bytes`, and told at once.

    Args:
        of: Process ids; None: `processes`.
    """
    total = 0
    for process in processes() if of is None else of:
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{process}/statm") as told:
            total += int(told.read().split()[1])
    return total * os.sysconf("SC_PAGESIZE")


def free_memory() -> None:
    """Frees what a player has left behind: iterators of loaders, whose workers end with them, and tensors."""
    import torch

    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def forget_peaks(device: torch.device) -> None:
    """From here on the device's peak is that of the player that joins."""
    import torch

    if device.type == "cuda":
        free_memory()
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> tuple[int, int]:
    """What the allocator has taken of the device's memory at most, and what tensors have taken of that.

    On a CPU nothing: there is no allocator that counts.
    """
    import torch

    if device.type == "cpu":
        return 0, 0
    if device.type == "cuda":  # torch.accelerator has these only since 2.9
        return int(torch.cuda.max_memory_reserved(device)), int(torch.cuda.max_memory_allocated(device))
    if device.type == "mps":  # which keeps no peak
        return int(torch.mps.driver_allocated_memory()), int(torch.mps.current_allocated_memory())
    return int(torch.accelerator.max_memory_reserved(device)), int(torch.accelerator.max_memory_allocated(device))


def lost_fraction(foreign: float, idle: float | None) -> float:
    """Share of the processors that others took from this run: on idle ones they may compute as they like.

    Args:
        foreign: Share on which others computed.
        idle: Share on which nobody did; None where that is not known.
    """
    return foreign if idle is None or idle < IDLE_LIMIT + foreign else 0.0


def held(top: int | None = None) -> dict[str, int]:
    """What a training holds now and could run out of, as far as the system reports it.

    Args:
        top: The process that all of it hangs below; None: this one.

    Returns:
        ``host_bytes``: memory of the processes that no file backs, pages that they share counted once;
        ``shm_bytes``: of /dev/shm, used by anybody; ``open_files``: of the process that has opened most;
        ``device_bytes``: of tensors on the GPU.
    """
    family = processes(top)
    memory, files = [], []
    for process in family:
        with contextlib.suppress(OSError, ValueError):
            memory.append(_unbacked_bytes(process))
            files.append(len(os.listdir(f"/proc/{process}/fd")))
    found = {}
    if any(memory):
        found["host_bytes"] = sum(memory)
    if files:
        found["open_files"] = max(files)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            shm = os.statvfs("/dev/shm")  # noqa: S108 - nothing is put there
            found["shm_bytes"] = (shm.f_blocks - shm.f_bfree) * shm.f_frsize
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        found["device_bytes"] = int(torch.cuda.memory_allocated())
    return found


def _unbacked_bytes(process: int) -> int:
    """Proportional memory of a process without pages of files: a mapped data set fills up with those, and drops them.

    Raises:
        OSError: The process has gone.
    """
    with open(f"/proc/{process}/smaps_rollup", "rb") as told:
        return sum(1024 * int(line.split()[1]) for line in told if line.startswith((b"Pss_Anon:", b"Pss_Shmem:")))


class Looks:
    """Looks between the laps of a player at what its process and all below it hold.

    Args:
        top: The process that all of it hangs below; None: this one.
    """

    def __init__(self, top: int | None = None) -> None:
        self._top = top
        self._taken: list[dict[str, Any]] = []
        self._samples, self._trained, self._due, self._least = 0, 0.0, 0.0, LOOK_SECONDS

    def after(self, samples: int, seconds: float, *, leads_in: bool, clock_mhz: float | None = None) -> None:
        """A lap has ended: looks if it is time to. The loader's workers are held.

        Args:
            samples: That it trained.
            seconds: That it took for them.
            leads_in: Whether no measurement counts it, nor what came before.
            clock_mhz: Of the GPU, in it.
        """
        if leads_in:
            self.taken()
            return
        self._samples += samples
        self._trained += seconds
        if self._trained < self._due:
            return
        began = perf_counter()
        trained = {"samples": self._samples, "seconds": self._trained}
        self._taken.append({**trained, "clock_mhz": clock_mhz, **held(self._top)})
        pause = max(self._least, (perf_counter() - began) / LOOK_SHARE)
        if len(self._taken) == MOST_LOOKS:
            self._taken, self._least = self._taken[::2], 2 * pause
        self._due = self._trained + max(self._least, pause)

    def taken(self) -> list[dict[str, Any]]:
        """All looks since the last time, as fields of an `autotune.measuring.Look`."""
        taken, self._taken = self._taken, []
        self._samples, self._trained, self._due, self._least = 0, 0.0, 0.0, LOOK_SECONDS
        return taken


class Processors:
    """The share of the processors that others took since a moment, where none was idle for them to take.

    Args:
        top: Whatever hangs below this process is no other; None: this one.
    """

    def __init__(self, top: int | None = None) -> None:
        self._top = top
        self._began = self._read()

    def taken(self) -> float:
        """That share; 0 where it is not known."""
        before, now = self._began, self._read()
        if before is None or now is None or now[0] <= before[0]:
            return 0.0
        total, busy, own = (now[index] - before[index] for index in range(3))
        return lost_fraction(max(0.0, (busy - own) / total), max(0.0, 1 - busy / total))

    def _read(self) -> tuple[float, float, float] | None:
        """Ticks of all processors, those that were busy, and those that were ours."""
        try:
            with open("/proc/stat") as told:
                figures = [float(figure) for figure in told.readline().split()[1:9]]
            own = 0.0
            for process in processes(self._top):
                with contextlib.suppress(OSError), open(f"/proc/{process}/stat") as told:
                    fields = told.read().rsplit(")", 1)[1].split()
                    own += sum(map(float, fields[11:15]))
        except (OSError, IndexError, ValueError):
            return None
        return sum(figures), sum(figures) - figures[3] - figures[4], own


class UsageWatch:
    """Looks at memory now and then, and at the processors while a block is trained.

    Args:
        limit_bytes: More memory than this is too much; None: whatever there is.
        exceeded: Told at once when it is more.
        top: Whatever hangs below this process is no other; None: this one.
    """

    def __init__(self, limit_bytes: int | None, exceeded: Callable[[int], None], top: int | None = None) -> None:
        self._peak_bytes = 0
        self._limit_bytes = limit_bytes
        self._exceeded = exceeded
        self.top = top
        self._processors = Processors(top)
        threading.Thread(target=self._watch, name="autotune-memory", daemon=True).start()

    def begin(self) -> None:
        """A block begins."""
        self._processors = Processors(self.top)

    def end(self) -> dict[str, float]:
        """The share of the processors that others took since, where none was idle for them to take."""
        return {"foreign_cpu_fraction": self._processors.taken()}

    def peak_bytes(self) -> int | None:
        """The most memory that was seen, now included; None where the system does not tell."""
        self._peak_bytes = max(self._peak_bytes, memory_bytes() or 0)
        return self._peak_bytes or None

    def _watch(self) -> None:
        known = 0
        while True:
            sleep(WATCH_SECONDS)
            resident = resident_bytes()
            near = self._limit_bytes is not None and resident > self._limit_bytes
            if resident <= GROWTH * known and not near:
                continue
            known = max(known, resident)
            seen = self.peak_bytes()
            if seen is not None and self._limit_bytes is not None and seen > self._limit_bytes:
                self._exceeded(seen)
