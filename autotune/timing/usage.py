"""Memory and processor use of this process, its descendants, and other processes, as Linux reports it."""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterable
from time import perf_counter, sleep  # by name: the script may replace what `time` holds
from typing import TYPE_CHECKING, Any

from ..sandbox.system import LINUX, children_of, stat_of
from .devices import devices_like

if TYPE_CHECKING:
    import torch

WATCH_SECONDS = 0.5
"""Time between two checks of memory."""
GROWTH = 1.05
"""Growth of resident memory after which it is measured in full. That walks all pages: 35 ms for three processes of
440 MB, during which training waits for each page that it touches first."""
IDLE_LIMIT = 0.1
"""If the idle share of the processors exceeds the share of other programs by this, they take nothing from this run. Not
tuned."""


LOOK_SHARE, LOOK_SECONDS, MOST_LOOKS = 0.05, 0.1, 16
"""Looks at the resources that a training holds: their largest share of its time, the least time between two, and their
largest number. Beyond that, every second look is dropped, and later ones are twice as far apart. A look takes 17 ms for
a process of 470 MB, and a slope needs three looks in a round of a second or two."""


def processes(top: int | None = None) -> list[int]:
    """A process (this one by default) and its descendants; only itself where the system does not report them."""
    family = [top or os.getpid()]
    for process in family:  # grows as it goes
        with contextlib.suppress(OSError):
            family += children_of(process)
    return family


def memory_bytes() -> int | None:
    """Memory of all `processes`, shared pages counted once; None where the system does not report it."""
    total = 0
    for process in processes():
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{process}/smaps_rollup", "rb") as rollup:
            for line in rollup:
                if line.startswith(b"Pss:"):
                    total += 1024 * int(line.split()[1])
                    break
    return total or None


def available_bytes() -> int | None:
    """Memory available without swapping; None where the system does not report it."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/meminfo", "rb") as meminfo:
        for line in meminfo:
            if line.startswith(b"MemAvailable:"):
                return 1024 * int(line.split()[1])
    return None


def resident_bytes(process_ids: Iterable[int] | None = None) -> int:
    """Memory of processes, shared pages counted for each: an upper bound of `memory_bytes`, and faster to read.

    Args:
        process_ids: Ids of the processes; None for `processes`.
    """
    total = 0
    for process in processes() if process_ids is None else process_ids:
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{process}/statm") as statm:
            total += int(statm.read().split()[1])
    return total * mmap.PAGESIZE


def free_memory() -> None:
    """Frees tensors of a former player, and iterators of its loaders, whose workers end with them."""
    gc.collect()
    free_cache()


def free_cache() -> None:
    """Frees the GPU memory that the allocator keeps for later; that of CUDA graphs stays."""
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def forget_peaks(device: torch.device) -> None:
    """Resets the device's peak for a player that joins."""
    import torch

    if device.type == "cuda":
        free_memory()
        for each in devices_like(device):
            torch.cuda.reset_peak_memory_stats(each)


def peak_bytes(device: torch.device) -> tuple[int, int]:
    """Peaks of device memory: reserved by the allocator, and allocated to tensors. Of several GPUs, the fullest one's.

    They are 0 on a CPU, which has no allocator that counts.
    """
    import torch

    if device.type == "cpu":
        return 0, 0
    if device.type == "cuda":  # torch.accelerator has these only since 2.9
        peaks = (torch.cuda.max_memory_reserved, torch.cuda.max_memory_allocated)
        reserved, allocated = (max((int(peak(each)) for each in devices_like(device)), default=0) for peak in peaks)
        return reserved, allocated
    if device.type == "mps":  # keeps no peak
        return int(torch.mps.driver_allocated_memory()), int(torch.mps.current_allocated_memory())
    return int(torch.accelerator.max_memory_reserved(device)), int(torch.accelerator.max_memory_allocated(device))


def allocator_retries(device: torch.device) -> int | None:
    """How often the allocator has freed its cache and tried again so far; None if the device does not count it."""
    import torch

    if device.type != "cuda":
        return None
    return sum(int(torch.cuda.memory_stats(each).get("num_alloc_retries", 0)) for each in devices_like(device))


def lost_fraction(foreign: float, idle: float | None) -> float:
    """Share of the processors that others took from this run. Work on idle processors takes nothing from it.

    Args:
        foreign: Share on which others computed.
        idle: Share that was idle; None if unknown.
    """
    return foreign if idle is None or idle < IDLE_LIMIT + foreign else 0.0


def held(top: int | None = None) -> dict[str, int]:
    """Returns the limited resources that a training holds now, as far as the system reports them.

    Args:
        top: The topmost process of the training; None for this one.

    Returns:
        ``host_bytes``: memory of the processes that no file backs, shared pages counted once;
        ``shm_bytes``: use of /dev/shm by all programs; ``open_files``: of the process with the most;
        ``device_bytes``: memory of tensors on the GPU.
    """
    family = processes(top)
    memory, files = [], []
    for process in family:
        with contextlib.suppress(OSError, ValueError):
            memory.append(_unbacked_bytes(process))
            files.append(len(os.listdir(f"/proc/{process}/fd")))
    figures = {}
    if any(memory):
        figures["host_bytes"] = sum(memory)
    if files:
        figures["open_files"] = max(files)
    if LINUX:
        with contextlib.suppress(OSError):
            shm = os.statvfs("/dev/shm")  # noqa: S108 - nothing is written there
            figures["shm_bytes"] = (shm.f_blocks - shm.f_bfree) * shm.f_frsize
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        figures["device_bytes"] = int(torch.cuda.memory_allocated())
    return figures


def _unbacked_bytes(process: int) -> int:
    """Proportional memory of a process without file pages, which the kernel can drop, as for a mapped data set.

    Raises:
        OSError: The process has ended.
    """
    with open(f"/proc/{process}/smaps_rollup", "rb") as rollup:
        return sum(1024 * int(line.split()[1]) for line in rollup if line.startswith((b"Pss_Anon:", b"Pss_Shmem:")))


class Looks:
    """Looks between laps at the resources that a player's processes hold.

    Args:
        top: The topmost process of the training; None for this one.
    """

    def __init__(self, top: int | None = None) -> None:
        self._top = top
        self._taken: list[dict[str, Any]] = []
        self._samples, self._trained, self._due, self._least = 0, 0.0, 0.0, LOOK_SECONDS

    def after(self, samples: int, seconds: float, *, leads_in: bool, clock_mhz: float | None = None) -> None:
        """Looks after a lap if the next look is due. The loader's workers must be stopped.

        Args:
            samples: Samples of the lap.
            seconds: Seconds of the lap.
            leads_in: Whether the lap is warm-up, so that earlier looks do not count either.
            clock_mhz: The GPU's clock during the lap.
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
        """All looks since the last call, as fields of an `autotune.measuring.Look`."""
        taken, self._taken = self._taken, []
        self._samples, self._trained, self._due, self._least = 0, 0.0, 0.0, LOOK_SECONDS
        return taken


class Processors:
    """Measures the share of the processors that other programs took since a moment, unless enough were idle.

    Args:
        top: This process and its descendants are not counted as others; None for the current process.
    """

    def __init__(self, top: int | None = None) -> None:
        self._top = top
        self._began = self._read()

    def taken(self) -> float:
        """The share; 0 if unknown."""
        before, now = self._began, self._read()
        if before is None or now is None or now[0] <= before[0]:
            return 0.0
        total, busy, own = (now[index] - before[index] for index in range(3))
        return lost_fraction(max(0.0, (busy - own) / total), max(0.0, 1 - busy / total))

    def _read(self) -> tuple[float, float, float] | None:
        """Ticks of all processors: total, busy, and our own."""
        try:
            with open("/proc/stat") as stat:
                figures = [float(figure) for figure in stat.readline().split()[1:9]]
            own = 0.0
            for process in processes(self._top):
                with contextlib.suppress(OSError):
                    own += sum(map(float, stat_of(process)[11:15]))
        except (OSError, IndexError, ValueError):
            return None
        return sum(figures), sum(figures) - figures[3] - figures[4], own


class UsageWatch:
    """Watches memory all the time, and the processors while a block is trained.

    Args:
        limit_bytes: Limit of memory; None for no limit.
        exceeded: Called at once with the memory in use if it exceeds the limit.
        top: This process and its descendants are not counted as others; None for the current process.
        device: The device that trains.
    """

    def __init__(
        self, limit_bytes: int | None, exceeded: Callable[[int], None], top: int | None, device: torch.device
    ) -> None:
        self._peak_bytes = 0
        self._limit_bytes = limit_bytes
        self._exceeded = exceeded
        self.top = top
        self._processors = Processors(top)
        self._device, self._retries = device, allocator_retries(device)
        threading.Thread(target=self._watch, name="autotune-memory", daemon=True).start()

    def begin(self) -> None:
        """Begins a block."""
        self._processors = Processors(self.top)
        self._retries = allocator_retries(self._device)

    def end(self) -> dict[str, float | int | None]:
        """Ends a block; returns the share of the processors that others took in it, and retries of the allocator."""
        retries = allocator_retries(self._device)
        more = retries - (self._retries or 0) if retries is not None else None
        return {"foreign_cpu_fraction": self._processors.taken(), "allocator_retries": more}

    def peak_bytes(self) -> int | None:
        """Peak memory so far, including now; None where the system does not report it."""
        self._peak_bytes = max(self._peak_bytes, memory_bytes() or 0)
        return self._peak_bytes or None

    def _watch(self) -> None:
        known_bytes = 0
        while True:
            sleep(WATCH_SECONDS)
            resident = resident_bytes()
            near = self._limit_bytes is not None and resident > self._limit_bytes
            if resident <= GROWTH * known_bytes and not near:
                continue
            known_bytes = max(known_bytes, resident)
            seen = self.peak_bytes()
            if seen is not None and self._limit_bytes is not None and seen > self._limit_bytes:
                self._exceeded(seen)
