"""Describes a machine in words: its parts, measured peaks, and values that could not be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from autotune.hardware.model import Cpu, Gpu, Hardware, Memory, Peaks, Software
from autotune.units import format_bytes, format_flops
from autotune.wording import percent


def hardware_rows(hardware: Hardware) -> list[tuple[str, tuple[str, ...]]]:
    """Returns each part of a machine with its lines; leaves out parts without any."""
    rows: list[tuple[str, Iterable[str]]] = [(f"GPU {gpu.index}", _gpu_lines(gpu)) for gpu in hardware.gpus]
    rows += [
        *([] if hardware.gpus else [("GPU", ["none found: training runs on the CPU"])]),
        ("CPU", _cpu_lines(hardware.cpu)),
        ("memory", _host_memory_lines(hardware.memory)),
        ("software", _software_lines(hardware.software)),
        ("peaks", _peak_lines(hardware.peaks) if hardware.peaks else []),
        ("not read", [f"{field}: {reason}" for field, reason in hardware.unread.items()]),
    ]
    return [(label, texts) for label, lines in rows if (texts := tuple(lines))]


def _joined(*parts: str | None) -> str:
    return ", ".join(part for part in parts if part)


def _with(value: object, template: str) -> str | None:
    """The value in words; None if it was not read (the row "not read" gives the reason)."""
    return None if value is None else template.format(value)


def _size(size: float | None, template: str) -> str | None:
    return None if size is None else template.format(format_bytes(size))


def _gpu_lines(gpu: Gpu) -> Iterator[str]:
    capability = ".".join(map(str, gpu.compute_capability)) if gpu.compute_capability else None
    busy = None if gpu.utilization_fraction is None else f"{percent(gpu.utilization_fraction)} busy"
    lines = (
        _joined(gpu.name + (" (a MIG slice)" if gpu.mig else ""), gpu.kind, gpu.uuid),
        _joined(_size(gpu.memory_total_bytes, "{} of memory"), _size(gpu.memory_free_bytes, "{} of it free")),
        _joined(_with(capability, "compute capability {}"), _with(gpu.sm_count, "{} multiprocessors")),
        _precisions(gpu),
        _joined(_with(gpu.driver, "driver {}"), _with(gpu.cuda, "CUDA up to {}")),
        _joined(
            _with(gpu.sm_clock_mhz, "{} MHz now"),
            _with(gpu.sm_clock_max_mhz, "{} MHz at most"),
            _with(gpu.memory_clock_mhz, "memory {} MHz"),
            _with(gpu.power_watts, "{:.0f} W now"),
            _with(gpu.power_limit_watts, "limit {:.0f} W"),
            _with(gpu.temperature_celsius, "{} °C"),
            busy,
        ),
        *(
            "in use by " + _joined(f"process {other.pid}", other.name, _size(other.memory_bytes, "{}"))
            for other in gpu.processes
        ),
        _with(
            gpu.others_processes or None,
            f"in use by {{}} process{'' if gpu.others_processes == 1 else 'es'} of other users or of other containers",
        ),
    )
    yield from filter(None, lines)


def _cpu_lines(cpu: Cpu) -> Iterator[str]:
    cores = _joined(_with(cpu.physical_cores, "{} physical cores"), f"{cpu.logical_cores} logical")
    yield _joined(cpu.model or "unnamed", cores)
    yield f"{cpu.budget} usable" + (f" ({cpu.budget_reason})" if cpu.budget_reason else "")
    if cpu.isa:
        yield " ".join(cpu.isa)
    yield _precisions(cpu)


def _precisions(device: Gpu | Cpu) -> str:
    reason = f" ({device.precision_reason})" if device.precision_reason else ""
    return f"precisions worth trying: {_joined(*device.precisions)}{reason}"


def _host_memory_lines(memory: Memory) -> Iterator[str]:
    limit = _size(memory.cgroup_limit_bytes, "limited to {} by its control group")
    yield _joined(format_bytes(memory.total_bytes), f"{format_bytes(memory.available_bytes)} available", limit)
    if memory.shm_bytes is not None:
        yield f"{format_bytes(memory.shm_bytes)} free in /dev/shm, through which workers send batches"


def _software_lines(software: Software) -> Iterator[str]:
    torch, python = f"torch {software.torch}" if software.torch else "torch not found", f"Python {software.python}"
    yield _joined(torch, _with(software.cuda, "built for CUDA {}"), python, _with(software.autotune, "autotune {}"))
    yield software.os


def _peak_lines(peaks: Peaks) -> Iterator[str]:
    rates = [f"{precision} {_flops(flops)}" for precision, flops in peaks.matmul_flops_per_second.items()]
    lines = (
        f"matrix products: {_joined(*rates)}" if rates else None,
        _size(peaks.memory_bytes_per_second, "memory: {}/s"),
        _size(peaks.host_to_device_bytes_per_second, "host to device: {}/s"),
        _with(peaks.seconds, "measured in {:.2g} s, once each: a bound, not a benchmark"),
    )
    yield from filter(None, lines)


def _flops(flops_per_second: float | None) -> str:
    return "not measured" if flops_per_second is None else format_flops(flops_per_second)
