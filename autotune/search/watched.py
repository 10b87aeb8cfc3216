"""Checks what the proof shows besides rates: resources that run out, and whether this speed is normal here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from autotune.hardware import DeviceKind, Hardware
from autotune.knobs import WorkloadFacts
from autotune.measuring import Growth, Held, Measurement, SideName, slope
from autotune.results.result import PeakShare, Side
from autotune.sandbox.system import open_files_limit

NOTABLE_SECONDS = 86_400.0
"""A resource that lasts for this long, and for an epoch, is not reported. Not tuned."""
NOTABLE_CLOCK = 0.01
"""The least share of the GPU's clock, lost in a minute, that is reported. Not tuned."""


def growths(
    name: SideName, measured: Measurement | None, hardware: Hardware, device: DeviceKind, samples: int | None
) -> Iterator[Growth]:
    """Resources whose use grew in all processes of a side and that run out within a day or an epoch, soonest first.

    The measurement comes from the rounds of the proof; `samples` are those of an epoch, None if endless.
    """
    if measured is None or not measured.looks:
        return
    epoch_seconds = samples / measured.samples_per_second if samples else None
    processes = 1 + max(look.process for look in measured.looks)
    passed = sum(block.samples for block in measured.blocks) / processes
    growing = []
    for what, free in _free(measured, hardware, device).items():
        if (grown := slope(measured.looks, what, measured.samples_per_second)) is None:
            continue
        growth = Growth(
            side=name, what=what, per_second=grown[0], ci95=grown[1], free=free, epoch_seconds=epoch_seconds,
            within_epoch=samples is not None and passed < samples,
        )  # fmt: skip
        if what == "GPU clock":
            clock = measured.seen.sm_clock_mhz
            notable = clock is not None and 60 * growth.per_second >= NOTABLE_CLOCK * clock
        else:
            limit = max(NOTABLE_SECONDS, epoch_seconds or 0.0)
            notable = growth.full_seconds is not None and growth.full_seconds <= limit
        growing += [growth] if notable else []
    yield from sorted(growing, key=lambda growth: growth.full_seconds or NOTABLE_SECONDS)


def _free(measured: Measurement, hardware: Hardware, device: DeviceKind) -> dict[Held, float | None]:
    """The free amount of each resource, beyond what training took."""
    files = max((look.open_files or 0 for look in measured.looks), default=0)
    limit, on_device = open_files_limit(), None
    if device != "cpu" and measured.device_memory_bytes is not None:
        free = hardware.memory_limit_bytes(device, 1.0)
        on_device = free - measured.device_memory_bytes if free is not None else None
    free_now: dict[Held, float | None] = {
        "host memory": hardware.memory.available_bytes - (measured.host_memory_bytes or 0),
        "shared memory": hardware.memory.shm_bytes,
        "open files": limit[0] - files if limit is not None else None,
        "GPU memory": on_device,
        "GPU clock": None,
    }
    return {what: max(0.0, amount) if amount is not None else None for what, amount in free_now.items()}


def peak_shares(
    name: SideName,
    side: Side,
    hardware: Hardware,
    device: DeviceKind,
    facts: WorkloadFacts,
    ceilings: Mapping[str, float | None],
) -> Iterator[PeakShare]:
    """The share of this machine's peaks that a side reaches, for each part that was measured."""
    peaks, config = hardware.peaks, side.config
    if side.measurement is None:
        return
    rate = side.measurement.samples_per_second
    devices = 1 if device == "cpu" else config.ranks  # peaks are per device
    if peaks is not None:
        fastest = peaks.matmul_flops_per_second.get(config.precision)
        if facts.flops_per_sample and fastest:
            yield PeakShare(
                side=name, part="compute", reached=rate * facts.flops_per_sample, peak=devices * fastest,
                precision=config.precision,
            )  # fmt: skip
        copying = peaks.memory_bytes_per_second
        if facts.update_bytes and copying and config.strategy == "ddp":
            passing = facts.update_bytes + config.accumulation_steps * facts.pass_bytes
            per_sample = config.ranks * passing / config.effective_batch + facts.batch_bytes / facts.baseline.batch_size
            yield PeakShare(side=name, part="memory", reached=rate * per_sample, peak=devices * copying)
    if loader := ceilings.get("loader"):
        yield PeakShare(side=name, part="loading", reached=rate, peak=loader)
