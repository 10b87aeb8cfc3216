"""The job of a burst, in its own process: build, train, watch, and send what was measured."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter  # by name: the user's module may replace what `time` holds
from time import time as wall_clock

import torch

from autotune.bursts import loop
from autotune.bursts.gpu_telemetry import GpuTelemetry, open_gpu_telemetry
from autotune.bursts.protocol import Reporter, Request
from autotune.bursts.telemetry import Telemetry
from autotune.knobs import TrainConfig
from autotune.measuring import Measurement, Outcome, Point
from autotune.training.tuned import Tuned
from autotune.workload.target import load_workload


def run_burst(request: Request, reporter: Reporter) -> Measurement:
    """Trains for a moment and measures; what goes wrong is raised.

    Args:
        request: What to run.
        reporter: Told how far it has come; and told at once, before the process ends, when memory passes the limit.
    """
    start_seconds = max(0.0, wall_clock() - request.asked_at)
    point = request.point or Point(config=TrainConfig())
    device = request.device or "cpu"
    reporter.phase("build")
    began = perf_counter()
    torch.manual_seed(request.seed)
    gpu = open_gpu_telemetry(request.device_uuid)  # before our own context exists: who is there already is foreign
    used_before = gpu.used_bytes() if gpu is not None else None
    cap_memory(request)
    with Telemetry(request.memory_limit_bytes, end_over_limit(request, reporter), gpu=gpu) as telemetry:
        tuned = Tuned(point.config, device=device)
        tuned.apply_process_settings()
        workload = load_workload(request.importable, point.parameters)
        build_seconds = perf_counter() - began
        reporter.phase("train")
        measurement = loop.measure_burst(
            workload,
            tuned,
            request.plan,
            start_seconds=start_seconds,
            build_seconds=build_seconds,
            telemetry=telemetry,
            largest_samples=request.largest_samples,
        )
        used = {"host_memory_bytes": telemetry.peak_bytes()}
    return measurement.model_copy(update=used | device_memory(tuned, measurement, used, gpu, used_before))


def device_memory(
    tuned: Tuned, measurement: Measurement, host: dict[str, int], gpu: GpuTelemetry | None, used_before: int | None
) -> dict[str, object]:
    """The measurement's fields on device memory; on the CPU the device's memory is the host's."""
    if tuned.device.type == "cpu":
        return {"device_memory_bytes": host["host_memory_bytes"]}
    reserved = int(torch.accelerator.max_memory_reserved(tuned.device))
    figures: dict[str, object] = {"device_allocated_bytes": int(torch.accelerator.max_memory_allocated(tuned.device))}
    if tuned.device.type == "cuda":
        stats = torch.cuda.memory_stats(tuned.device)
        figures["allocator_retries"] = int(stats.get("num_alloc_retries", 0))
        figures["fragmented_bytes"] = int(stats.get("inactive_split_bytes.all.peak", 0))
        used_now = gpu.used_bytes() if gpu is not None else None
        if used_now is not None and used_before is not None:
            context = used_now - used_before - torch.cuda.memory_reserved(tuned.device)
            figures["device_context_bytes"] = max(0, int(context))
    summary = measurement.telemetry
    return {
        "device_memory_bytes": reserved,
        "telemetry": summary.model_copy(update=figures) if summary is not None else None,
    }


def end_over_limit(request: Request, reporter: Reporter) -> Callable[[int], None]:
    """What to do when the process tree takes more host memory than it may."""

    def end(seen_bytes: int) -> None:
        outcome = Outcome.OOM if request.device in {None, "cpu"} else Outcome.HOST_OOM
        limit = request.memory_limit_bytes
        reporter.failure(
            outcome, f"the process tree took {seen_bytes} bytes of host memory, more than the target of {limit}"
        )
        os._exit(0)

    return end


def cap_memory(request: Request) -> None:
    """Turns the memory target into a clean out-of-memory error on CUDA."""
    if request.device in {"cuda", "rocm"} and request.memory_fraction is not None:
        torch.cuda.set_per_process_memory_fraction(request.memory_fraction)
