"""Checks memory: what runs out, what a cap and a burst leave free, and whether pairs stay fair where it is full."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.doctor.context import DEADLINE_SECONDS, SHORT, SURE, Clinic, point
from autotune.doctor.findings import Finding
from autotune.hardware import probe_host
from autotune.measuring import Outcome
from autotune.units import format_bytes

CAPPED_MIB, CAP_BYTES = 512, 400 * 2**20
"""What a step takes, and a cap below that; on a CPU, the process's own memory adds to it."""
KEPT_BYTES, PATIENCE_SECONDS = 32 * 2**20, 5.0
FILLED = (0.3, 0.48, 0.9)
"""Shares of memory that a step takes: two sides fit together, barely fit, and do not."""
FILLED_MIB, OVERHEAD_BYTES = 256, 2**30
"""What a step takes on a CPU; and what a GPU keeps beside the step: a context, and the allocator's rounding. Not
tuned."""
ITSELF_SECONDS, ALIKE = 1.0, 0.02


def itself(clinic: Clinic) -> Iterator[Finding]:
    """A config equals itself, however full memory is."""
    gpu = clinic.gpu
    free = gpu.free_bytes if gpu is not None else None
    plan = BurstPlan(measure_seconds=ITSELF_SECONDS * clinic.length, fastest_wins=False)
    taken = None if free is not None else _taken_bytes(clinic, plan)
    name, texts, holds, gaps = "a config against itself", [], True, []
    shares = [share for share in FILLED if free is None or share * free > OVERHEAD_BYTES]
    if free is not None and len(shares) < len(FILLED):
        left_out = ", ".join(f"{share:.0%}" for share in FILLED if share not in shares)
        gaps = [f"not checked at {left_out}: only {format_bytes(free)} are free"]
    if not shares:
        yield Finding.none(name, *gaps)
        return
    for share in shares:
        if free is not None:
            runner = clinic.runner(device_bytes=free)
            filled = point("filling", {"mib": max(1, round((share * free - OVERHEAD_BYTES) / 2**20))})
        else:  # a smaller limit instead of a larger step
            runner = clinic.runner(memory_limit_bytes=round(taken / share) if taken else None)
            filled = point("filling", {"mib": FILLED_MIB})
        with contextlib.closing(runner):
            runner.challenge(None, [filled], plan, DEADLINE_SECONDS, lambda *_: None)
            ((burst, pair),) = runner.challenge(filled, [filled], plan, DEADLINE_SECONDS, lambda *_: None)
        if pair is None or not pair.blocks:
            holds = False
            texts.append(f"not block by block at {share:.0%} ({burst.reason or burst.outcome.value})")
            continue
        holds &= abs(math.log(pair.ratio)) <= ALIKE + SURE * pair.error
        texts.append(f"{pair.ratio:.3f} ({pair.ci95.low:.3f}–{pair.ci95.high:.3f}) at {share:.0%}")
    yield Finding.of(
        name, holds=holds, found="; ".join([*texts, *gaps]), decisive=True,
        remedy="end other programs on this machine; tune with --memory-target 0.4, where two sides fit",
    )  # fmt: skip


def _taken_bytes(clinic: Clinic, plan: BurstPlan) -> int | None:
    """The memory that the filling step takes with its process."""
    filled = point("filling", {"mib": FILLED_MIB})
    with contextlib.closing(clinic.runner()) as runner:
        ((burst, _),) = runner.challenge(None, [filled], plan, DEADLINE_SECONDS, lambda *_: None)
    return burst.measurement.device_memory_bytes if burst.measurement is not None else None


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
    burst = runner.run(point("filling", {"mib": CAPPED_MIB}), SHORT, DEADLINE_SECONDS)
    yield Finding.of(
        "cap on memory",
        holds=burst.outcome is Outcome.OOM,
        found=f"{CAPPED_MIB} MiB for a step, under a cap of {format_bytes(CAP_BYTES)}, ended as {burst.outcome.value}",
        remedy="leave memory free for other programs: nothing stops a burst that takes too much",
    )


def nothing_left(clinic: Clinic) -> Iterator[Finding]:
    """A burst frees all memory of the device."""
    name = "device memory after a burst"
    if clinic.device != "cuda" or clinic.gpu is None or clinic.gpu.memory_free_bytes is None:
        yield Finding.none(name, "only NVML reports the free memory of a GPU")
        return
    before = _free_bytes(clinic)
    clinic.runner().run(point("filling", {"mib": CAPPED_MIB}), SHORT, DEADLINE_SECONDS)
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
