"""Checks memory: running out is reported as such, the cap holds, and a burst frees what it took."""

from __future__ import annotations

import time
from collections.abc import Iterator

from autotune.doctor.context import DEADLINE_SECONDS, SHORT, Clinic, point
from autotune.doctor.findings import Finding
from autotune.hardware import probe_host
from autotune.measuring import Outcome
from autotune.units import format_bytes

CAP_BYTES = 400 * 2**20
"""Less than the 512 MiB that the workload takes; on a CPU, the process's own memory adds to that."""
KEPT_BYTES, PATIENCE_SECONDS = 32 * 2**20, 5.0


def running_out(clinic: Clinic) -> Iterator[Finding]:
    """Running out of memory is reported as such."""
    failures: dict[str, str] = {}
    for part in ("forward", "backward", "optimizer"):
        burst = clinic.runner().run(point("out_of_memory", {"part": part}), SHORT, DEADLINE_SECONDS)
        if burst.outcome is not Outcome.OOM:
            failures[part] = f"{burst.outcome.value}: {burst.reason}"
    text = "; ".join(f"in the {part} reported as {ending}" for part, ending in failures.items())
    yield Finding.of(
        "memory that runs out",
        holds=not failures,
        found=text or "reported as such in forward, backward and optimizer",
        remedy="pass --memory-target, so that the memory model stays below the limit",
    )


def cap(clinic: Clinic) -> Iterator[Finding]:
    """The memory target is a cap."""
    gpu = clinic.gpu
    if gpu is not None and gpu.memory_total_bytes:
        runner = clinic.runner(memory_fraction=CAP_BYTES / gpu.memory_total_bytes)
    else:
        runner = clinic.runner(memory_limit_bytes=CAP_BYTES)
    burst = runner.run(point("growing"), SHORT, DEADLINE_SECONDS)
    yield Finding.of(
        "cap on memory",
        holds=burst.outcome is Outcome.OOM,
        found=f"a step that takes 512 MiB under a cap of {format_bytes(CAP_BYTES)} ended as {burst.outcome.value}",
        remedy="leave memory free for other programs: nothing stops a burst that takes too much",
    )


def nothing_left(clinic: Clinic) -> Iterator[Finding]:
    """A burst frees all memory of the device."""
    name = "device memory after a burst"
    if clinic.device != "cuda" or clinic.gpu is None or clinic.gpu.memory_free_bytes is None:
        yield Finding.none(name, "only NVML reports the free memory of a GPU")
        return
    before = _free_bytes(clinic)
    clinic.runner().run(point("growing"), SHORT, DEADLINE_SECONDS)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (kept := before - _free_bytes(clinic)) > KEPT_BYTES and time.monotonic() < deadline:
        time.sleep(0.1)
    holds = kept <= KEPT_BYTES
    text = "all is free again" if holds else f"{format_bytes(kept)} stay taken"
    remedy = "end other programs that use this GPU, or restart its driver"
    yield Finding.of(name, holds=holds, found=text, remedy=remedy, decisive=True)


def _free_bytes(clinic: Clinic) -> int:
    examined = clinic.gpu
    matches = [gpu for gpu in probe_host().gpus if examined is not None and gpu.uuid == examined.uuid]
    return (matches[0].memory_free_bytes or 0) if matches else 0
