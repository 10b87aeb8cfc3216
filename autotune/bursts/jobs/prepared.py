"""Builds a workload in its own process, under a config, with its memory watched."""

from __future__ import annotations

import contextlib
import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter  # by name: the user's module may replace what `time` holds
from time import time as wall_clock
from typing import Any

import psutil
import torch

from autotune.bursts.gpu_telemetry import GpuWatch, processes_of_run
from autotune.bursts.hosts.protocol import PipeReporter, Request
from autotune.hardware import CpuEnergy
from autotune.timing.usage import UsageWatch, allocator_retries
from autotune.torch_settings.process_settings import tune_allocator
from autotune.training.ranks import this_rank
from autotune.training.tuned import Tuned
from autotune.workload.target import load_workload
from autotune.workload.workload import Workload


@dataclass
class Prepared:
    """A workload that is built, with its config at work and its telemetry."""

    workload: Workload
    tuned: Tuned  # the config at work
    telemetry: UsageWatch | None  # of memory, the processors and the GPU; None where the first of several ranks watches
    start_seconds: float  # of the process
    build_seconds: float  # of `build()`
    gpu: GpuWatch
    used_before: int | None  # bytes on the GPU before this process opened it

    def of_device(self) -> dict[str, int]:
        """Memory that a CUDA allocator reserved in pieces too small to use, and memory in use beyond the allocator."""
        device = self.tuned.device
        if device.type != "cuda":
            return {}
        figures = {"fragmented_bytes": int(torch.cuda.memory_stats(device).get("inactive_split_bytes.all.peak", 0))}
        used = self.gpu.used_bytes()
        if used is not None and self.used_before is not None:
            context = used - self.used_before - torch.cuda.memory_reserved(device)
            figures["device_context_bytes"] = max(0, int(context))
        return figures


@contextlib.contextmanager
def prepared(request: Request, reporter: PipeReporter) -> Iterator[Prepared]:
    """Builds the workload under the request's config, and watches its memory while open.

    Args:
        request: What to run.
        reporter: Receives progress, and the failure when memory passes the limit, just before the process ends.
    """
    start_seconds = max(0.0, wall_clock() - request.asked_at)
    point = request.point
    reporter.phase("build")
    began = perf_counter()
    torch.manual_seed(request.seed)
    rank = this_rank()
    # Before our own context exists: processes that are there already are foreign.
    uuids = [request.device_uuid] if request.device_uuid is not None and rank.number == 0 else []
    gpu = GpuWatch(uuids, processes_of_run, of_all=rank.alone)
    used_before = gpu.used_bytes()
    cap_memory(request)
    tuned = Tuned(point.config, device=request.device or "cpu")
    energy = CpuEnergy.open() if tuned.device.type == "cpu" else None
    counters: dict[str, Callable[[], float | None]] = {
        "allocator_retries": functools.partial(allocator_retries, tuned.device)
    }
    if energy is not None:
        counters["energy_joules"] = energy.joules
    telemetry = None
    if rank.number == 0:
        top = None if rank.alone else os.getppid()  # the launcher, above all ranks
        # The forkserver and the command are ours too: their work is no foreign load.
        helpers = [process.pid for process in psutil.Process(top).parents()[:2]]
        limit, exceeded = request.memory_limit_bytes, end_over_limit(request, reporter)
        telemetry = UsageWatch(limit, exceeded, top=top, helpers=helpers, counters=counters, gpu=gpu, peaks=True)
    with telemetry or contextlib.nullcontext():
        tuned.apply_process_settings()
        if request.steady_malloc and tuned.device.type == "cpu":
            tune_allocator(tuned.device)
        workload = load_workload(request.importable, point.parameters)
        if not rank.alone:
            torch.manual_seed(request.seed + rank.number)  # what is drawn from here on differs from rank to rank
        yield Prepared(workload, tuned, telemetry, start_seconds, perf_counter() - began, gpu, used_before)


class CompilerWatch:
    """Counts what the compiler does between `begin` and `end`, while others may compile before and after."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, Any]] = Counter()
        self._before: Counter[tuple[str, Any]] = Counter()

    def begin(self) -> None:
        """Begins to count."""
        self._before = _compiled_so_far()

    def end(self) -> None:
        """Adds what was done since."""
        now = _compiled_so_far()
        self._seen += now - self._before
        self._before = now

    def counts(self) -> dict[str, int | None]:
        """How often it split the model, left out CUDA graphs, and recompiled a part; None where torch does not say."""
        from torch._dynamo import convert_frame

        compiles = [count for (what, _), count in self._seen.items() if what == "compile"]
        return {
            "graph_breaks": sum(count for (what, _), count in self._seen.items() if what == "break"),
            "cudagraph_skips": self._seen["skip", None],
            "recompiles": sum(compiles) - len(compiles) if hasattr(convert_frame, _COMPILES) else None,
        }


_COMPILES = "FRAME_COMPILE_COUNTER"  # internal to torch, so it may change


def _compiled_so_far() -> Counter[tuple[str, Any]]:
    """What the compiler has done in this process: graph breaks by reason, skips, compilations by function."""
    from torch._dynamo import convert_frame, utils

    events: Counter[tuple[str, Any]] = Counter()
    events["skip", None] = int(utils.counters.get("inductor", Counter())["cudagraph_skips"])
    events.update({("break", reason): count for reason, count in utils.counters.get("graph_break", {}).items()})
    events.update({("compile", code): count for code, count in getattr(convert_frame, _COMPILES, {}).items()})
    return events


def end_over_limit(request: Request, reporter: PipeReporter) -> Callable[[int], None]:
    """What to do when the process tree takes more host memory than it may."""

    def end(seen_bytes: int) -> None:
        limit = request.memory_limit_bytes
        reporter.failure(
            request.out_of_memory,
            f"the process tree took {seen_bytes} bytes of host memory, more than the target of {limit}",
        )
        os._exit(0)

    return end


def cap_memory(request: Request) -> None:
    """Turns the memory target into a clean out-of-memory error on CUDA."""
    if request.device in {"cuda", "rocm"} and request.memory_fraction is not None:
        torch.cuda.set_per_process_memory_fraction(request.memory_fraction)
