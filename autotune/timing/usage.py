"""Memory and processor use of this process, its descendants, and other processes, as Linux reports it."""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from time import monotonic, perf_counter  # by name: the script may replace what `time` holds
from typing import TYPE_CHECKING, Any

from ..sandbox.cgroups import ROOT, memory_limit, read_text
from ..sandbox.system import CHILDREN_ARE_LISTED, LINUX, children_of, stat_of
from .devices import devices_like

if TYPE_CHECKING:
    import torch

PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 1.0
"""Time between two looks at memory, while it grows and once it has settled."""
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
    """A process (this one by default) and its descendants; only itself where nothing reports them."""
    family = [top or os.getpid()]
    if not CHILDREN_ARE_LISTED:
        try:
            return family + [child.pid for child in _process(family[0]).children(recursive=True)]
        except _not_read():
            return family
    for process in family:  # grows as it goes
        with contextlib.suppress(OSError):
            family += children_of(process)
    return family


def memory_bytes(family: Iterable[int] | None = None, *, peaks: bool = False) -> int | None:
    """Memory of processes, shared pages counted once where the system reports that; None if it reports none.

    Args:
        family: Ids of the processes; None for `processes`.
        peaks: Whether to count each process at its peak, where the system reports that.
    """
    return int(_total(family, lambda process: _memory_bytes(process, peaks=peaks))) or None


def available_bytes(root: Path = ROOT) -> int | None:
    """Memory available without swapping, of the machine and within the limit of this process's control group.

    Args:
        root: Stands for ``/``.

    Returns:
        None where the system does not report it.
    """
    free = re.search(r"^MemAvailable: *(\d+) kB$", read_text(root / "proc/meminfo"), re.MULTILINE)
    limit = memory_limit(root)
    rooms = ([1024 * int(free[1])] if free else []) + ([limit.room_bytes] if limit else [])
    return min(rooms, default=None)


def resident_bytes(family: Iterable[int] | None = None, *, peaks: bool = False) -> int:
    """Memory of processes, shared pages counted for each: an upper bound of `memory_bytes`, and faster to read.

    The arguments are those of `memory_bytes`.
    """
    return int(_total(family, lambda process: (peaks and _peak_bytes(process)) or _resident_bytes(process)))


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
        OSError: The process has ended, or the system does not report it.
    """
    sizes = _bytes_by_name(process, "smaps_rollup")
    return sizes.get("Pss_Anon:", 0) + sizes.get("Pss_Shmem:", 0)


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


def shares(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Fractions of all CPUs between two readings of `Processors`, by the names of `measuring.TelemetrySummary`."""
    spent = {name: now - before[name] for name, now in after.items()}
    seconds = spent.pop("seconds")
    if seconds <= 0:
        return {"seconds": 0.0}
    capacity = seconds * (os.cpu_count() or 1)
    # The system counts in ticks of 10 ms, so that short spans can come out below zero.
    return {"seconds": seconds, **{name: min(1.0, max(0.0, part / capacity)) for name, part in spent.items()}}


class Processors:
    """Measures who used the processors since it was made.

    Args:
        top: This process and its descendants are not counted as others; None for the current process.
        helpers: Further processes that are not, without their descendants.
    """

    def __init__(self, top: int | None = None, helpers: Sequence[int] = ()) -> None:
        self._top, self._helpers = top, helpers
        self._began = self._read()

    def shares(self) -> dict[str, float]:
        """The `shares` since then; only ``seconds``, and those 0, where the system does not report them."""
        before, now = self._began, self._read()
        return shares(before, now) if before is not None and now is not None else {"seconds": 0.0}

    def taken(self) -> float:
        """Share that other programs and virtual machines took from this run; 0 if unknown."""
        seen = self.shares()
        lost = lost_fraction(seen.get("foreign_cpu_fraction", 0.0), seen.get("idle_cpu_fraction"))
        return seen.get("stolen_cpu_fraction", 0.0) + lost

    def _read(self) -> dict[str, float] | None:
        """CPU time until now, in seconds over all CPUs, by the names of the shares; ``seconds`` is the time itself.

        None if it cannot be read, as when the user's code has taken every file descriptor.
        """
        try:
            busy, idle, stolen = _machine_seconds()
            own = _total(processes(self._top), _cpu_seconds)
            own += _total(self._helpers, lambda process: _cpu_seconds(process, with_ended=False))
        except _not_read():
            return None
        return {
            "seconds": monotonic(), "cpu_fraction": own, "foreign_cpu_fraction": busy - own,
            "idle_cpu_fraction": idle, "stolen_cpu_fraction": stolen,
        }  # fmt: skip


class UsageWatch:
    """Watches memory from its own thread, and the processors and counters while a block is trained.

    Args:
        limit_bytes: Limit for all processes together; None for no limit.
        exceeded: Called by the thread with the bytes in use, if they exceed the limit.
        top: Watched with its descendants; None for the current process.
        helpers: More processes, whose work is no load of others.
        counters: Read further figures of `measuring.TelemetrySummary`, by name; each returns None where there is none.
        gpu: Watches GPUs in the same way.
        peaks: Whether memory that was taken between two looks, or before the watch, counts.
    """

    def __init__(
        self,
        limit_bytes: int | None,
        exceeded: Callable[[int], None],
        *,
        top: int | None = None,
        helpers: Sequence[int] = (),
        counters: Mapping[str, Callable[[], float | None]] = {},
        gpu: Any = None,
        peaks: bool = False,
    ) -> None:
        self.top = top
        self._limit_bytes, self._exceeded = limit_bytes, exceeded
        self._helpers, self._with_peaks = helpers, peaks
        self._peak_bytes = self._counted_at_bytes = 0
        self._processors: Processors | None = None
        self._counters, self._gpu = counters, gpu
        self._before = self._counted()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="autotune-usage", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def __enter__(self) -> UsageWatch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._gpu is not None:
            self._gpu.close()
        self._thread.join(timeout=1.0)

    def begin(self) -> None:
        """Begins a block: what was spent before does not count."""
        if self._gpu is not None:
            self._gpu.begin()
        self._before = self._counted()
        self._processors = Processors(self.top, self._helpers)

    def end(self) -> dict[str, Any]:
        """Ends a block; returns its figures, by the names of `measuring.TelemetrySummary`."""
        figures: dict[str, Any] = self._processors.shares() if self._processors is not None else {"seconds": 0.0}
        now = self._counted()
        figures |= {name: increase(before, now[name]) for name, before in self._before.items()}
        return figures | (self._gpu.end() if self._gpu is not None else {})

    def _counted(self) -> dict[str, float | None]:
        return {name: read() for name, read in self._counters.items()}

    def peak_bytes(self) -> int | None:
        """Peak memory so far, including now; None where the system does not report it."""
        self._count(processes(self.top))
        return self._peak_bytes or None

    def _watch(self) -> None:
        pause = PAUSE_SECONDS
        while not self._is_over.wait(pause):
            # A look takes a millisecond from training, and memory that has settled seldom grows again.
            pause = PAUSE_SECONDS if self._look() else min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _look(self) -> bool:
        """Looks at memory; returns whether it has grown notably."""
        family = processes(self.top)
        resident = resident_bytes(family, peaks=self._with_peaks)
        near = self._limit_bytes is not None and resident > self._limit_bytes
        if resident <= GROWTH * self._counted_at_bytes and not near:
            return False
        self._count(family)
        self._counted_at_bytes = resident
        return True

    def _count(self, family: Sequence[int]) -> None:
        """Measures memory in full."""
        seen = memory_bytes(family, peaks=self._with_peaks) or 0
        self._peak_bytes = max(self._peak_bytes, seen)
        if self._limit_bytes is not None and seen > self._limit_bytes:
            self._exceeded(seen)


def increase(before: float | None, after: float | None) -> float | None:
    """The increase of a counter; None if it could not be read."""
    return after - before if before is not None and after is not None else None


# What Linux shows in files is read there: a script's interpreter may have no psutil. Other systems need it.


def _process(process: int) -> Any:
    """A process as psutil shows it.

    Raises:
        ImportError, psutil.Error: This interpreter has no psutil, or the process has ended.
    """
    import psutil

    return psutil.Process(process)


def _not_read() -> tuple[type[Exception], ...]:
    """What reading a figure may raise."""
    psutil = sys.modules.get("psutil")
    return (ImportError, OSError, ValueError, LookupError, *([psutil.Error] if psutil is not None else []))


def _total(family: Iterable[int] | None, read: Callable[[int], float]) -> float:
    """The sum of a figure over processes, `processes` by default; those that have ended count nothing."""

    def figure(process: int) -> float:
        try:
            return read(process)
        except _not_read():
            return 0.0

    return sum(map(figure, processes() if family is None else family))


def _resident_bytes(process: int) -> int:
    if not LINUX:
        return int(_process(process).memory_info().rss)
    with open(f"/proc/{process}/statm") as statm:
        return int(statm.read().split()[1]) * mmap.PAGESIZE


def _peak_bytes(process: int) -> int | None:
    """The highest resident memory since a process began, even between two looks; None where nothing reports it."""
    if LINUX:
        return _bytes_by_name(process, "status").get("VmHWM:")
    return getattr(_process(process).memory_info(), "peak_wset", None)  # of Windows


def _memory_bytes(process: int, *, peaks: bool) -> int:
    """PSS, which counts shared pages once, else RSS.

    At the peak, PSS and RSS come from the same look: memory of a step that comes and goes between two looks would count
    twice, or not at all.
    """
    try:
        rollup = _bytes_by_name(process, "smaps_rollup")
        resident, proportional = rollup["Rss:"], rollup["Pss:"]
    except (OSError, KeyError):
        resident = proportional = _resident_bytes(process)
    # Memory that came and went is its own, not shared.
    return proportional + (max(0, (_peak_bytes(process) or 0) - resident) if peaks else 0)


def _bytes_by_name(process: int, file: str) -> dict[str, int]:
    """The sizes in one of Linux's files about a process's memory.

    Raises:
        OSError: The process has gone, or the system has no such file.
    """
    with open(f"/proc/{process}/{file}", encoding="utf-8", errors="replace") as file_text:
        lines = (line.split() for line in file_text)
        return {words[0]: 1024 * int(words[1]) for words in lines if words[-1:] == ["kB"]}


def _machine_seconds() -> tuple[float, float, float]:
    """Seconds in which all processors were busy, idle, and taken by other virtual machines, since the machine began."""
    if LINUX:
        with open("/proc/stat") as stat:
            ticks = [float(figure) for figure in stat.readline().split()[1:9]]
        user, nice, system, idle, waiting, interrupts, soft_interrupts, stolen = (part / _ticks() for part in ticks)
        return user + nice + system + interrupts + soft_interrupts, idle + waiting, stolen
    import psutil

    times = psutil.cpu_times()
    names = ("user", "nice", "system", "irq", "softirq", "interrupt", "dpc")
    return sum(getattr(times, name, 0.0) for name in names), times.idle, 0.0


def _cpu_seconds(process: int, *, with_ended: bool = True) -> float:
    """CPU time of a process, and of its ended children: workers come and go with the epochs."""
    if LINUX:
        user, system, *ended = map(float, stat_of(process)[11:15])
        return (user + system + (sum(ended) if with_ended else 0.0)) / _ticks()
    times = _process(process).cpu_times()
    return float(sum(times[: 4 if with_ended else 2]))  # user, system, and both of ended children


def _ticks() -> int:
    """Ticks in a second."""
    return os.sysconf("SC_CLK_TCK")
