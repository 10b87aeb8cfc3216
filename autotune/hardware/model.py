"""The model of a machine: probing fills it in, the search reads it, and a result stores it.

A value that could not be read is None, and `unread` names it with the reason: never 0, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from pydantic import Field

from autotune.stored import DeviceKind, Figure, Seconds, Share, Stored, Whole

_GPU_KEY = re.compile(r"^gpus\.\d+\.")


class GpuProcess(Stored):
    """Another process of this user that holds memory of a GPU."""

    pid: Whole
    name: str | None = None
    memory_bytes: Whole | None = None


class Gpu(Stored):
    """One accelerator, as its driver reports it."""

    kind: DeviceKind
    index: Whole = Field(description="the index that torch uses, after CUDA_VISIBLE_DEVICES")
    name: str
    uuid: str | None = None
    memory_total_bytes: Whole | None = None
    memory_free_bytes: Whole | None = None
    compute_capability: tuple[Whole, Whole] | None = None
    sm_count: Whole | None = None
    precisions: tuple[str, ...] = Field(default=("fp32",), description="worth trying for speed, fp32 first")
    precision_reason: str = ""
    attention: str | None = Field(default=None, description="the kernel that torch's attention takes in half precision")
    driver: str | None = None
    cuda: str | None = Field(default=None, description="CUDA version of the driver")
    power_limit_watts: Figure | None = None
    power_watts: Figure | None = None
    sm_clock_mhz: Whole | None = None
    sm_clock_max_mhz: Whole | None = None
    memory_clock_mhz: Whole | None = None
    temperature_celsius: int | None = Field(default=None, ge=-300, le=10_000)
    utilization_fraction: Share | None = None
    mig: bool | None = Field(default=None, description="whether this is a slice of a partitioned GPU")
    processes: tuple[GpuProcess, ...] = Field(default=(), description="processes of this user that hold its memory")
    others_processes: Whole = Field(default=0, description="number of processes of others or outside this container")

    @property
    def free_bytes(self) -> int | None:
        """Its memory that other programs, such as a desktop, leave free; all of it if that is unknown."""
        if self.memory_total_bytes is None or self.memory_free_bytes is None:
            return self.memory_total_bytes
        return min(self.memory_free_bytes, self.memory_total_bytes)


class Cpu(Stored):
    """The processor and how much of it this process may use."""

    model: str | None
    physical_cores: Whole | None
    logical_cores: Whole
    budget: int = Field(ge=1, le=2**20, description="CPUs usable after affinity and cgroup quotas")
    budget_reason: str = ""
    isa: tuple[str, ...] = Field(default=(), description="such as avx2, avx512f, avx512_bf16, amx_bf16 or neon")
    precisions: tuple[str, ...] = Field(default=("fp32",), description="worth trying for speed, fp32 first")
    precision_reason: str = ""


class Memory(Stored):
    """Host memory."""

    total_bytes: Whole
    available_bytes: Whole = Field(description="min(available, cgroup limit - current)")
    cgroup_limit_bytes: Whole | None = None
    shm_bytes: Whole | None = Field(default=None, description="free in /dev/shm, through which workers send batches")


class Software(Stored):
    """Versions that change speed."""

    os: str
    python: str
    torch: str | None = None
    cuda: str | None = Field(default=None, description="CUDA version that torch was built for")
    autotune: str | None = None


class Peaks(Stored):
    """Rates measured in a second or two; they bound what any config can reach."""

    matmul_flops_per_second: dict[str, Figure | None] = Field(default_factory=dict, description="by precision")
    memory_bytes_per_second: Figure | None = None
    host_to_device_bytes_per_second: Figure | None = None
    seconds: Seconds | None = Field(default=None, description="time that measuring took")


class Hardware(Stored):
    """One machine."""

    hostname: str
    gpus: tuple[Gpu, ...] = ()
    cpu: Cpu
    memory: Memory
    software: Software
    peaks: Peaks | None = None
    unread: dict[str, str] = Field(default_factory=dict, description="reason by field that could not be read")

    def device(self, kind: DeviceKind) -> Gpu | Cpu:
        """The record of the device to train on: the first GPU of that kind, or the CPU."""
        return next((gpu for gpu in self.gpus if gpu.kind == kind), self.cpu)

    def memory_limit_bytes(self, kind: DeviceKind, share: float) -> int | None:
        """Memory that training may take: a share of the device's free memory; None if unknown."""
        record = self.device(kind)
        free = record.free_bytes if isinstance(record, Gpu) else self.memory.available_bytes
        return round(share * free) if free is not None else None

    @property
    def devices(self) -> tuple[DeviceKind, ...]:
        """The kinds of device to train on: the CPU, and those of the GPUs."""
        return tuple(dict.fromkeys(("cpu", *(gpu.kind for gpu in self.gpus))))

    def machine(self, device: DeviceKind) -> str:
        """Names what trains on a device: ``NVIDIA GeForce RTX 4070, 16 CPUs`` or ``Intel Xeon, 2 CPUs``."""
        cpus = self.cpu.budget
        return f"{self.processor(device)}, {cpus} CPU{'' if cpus == 1 else 's'}"

    def processor(self, device: DeviceKind) -> str:
        """The model of the GPU or CPU that trains on a device."""
        record = self.device(device)
        return record.name if isinstance(record, Gpu) else record.model or "unnamed CPU"

    @property
    def default_device(self) -> DeviceKind:
        """The first GPU's kind, else ``cpu``."""
        return self.gpus[0].kind if self.gpus else "cpu"

    @property
    def slug(self) -> str:
        """A folder name for this kind of machine, such as ``nvidia-geforce-rtx-4070`` or ``intel-xeon-2-cpus``."""
        return slug(self.gpus[0].name if self.gpus else f"{self.cpu.model or 'cpu'}-{self.cpu.budget}-cpus")

    def led_by(self, uuids: Collection[str]) -> Hardware:
        """This machine with the GPUs of these UUIDs first, since the first GPU stands for those that train."""
        order = sorted(range(len(self.gpus)), key=lambda place: self.gpus[place].uuid not in uuids)
        renamed = {f"gpus.{old}.": f"gpus.{new}." for new, old in enumerate(order)}
        unread = {_GPU_KEY.sub(lambda key: renamed[key[0]], key): why for key, why in self.unread.items()}
        return self.model_copy(update={"gpus": tuple(self.gpus[place] for place in order), "unread": unread})


def slug(text: str) -> str:
    """Lower-case words joined by hyphens, safe as a file name on every system."""
    cleaned = re.sub(r"\((?:r|tm)\)|\bcpu\b(?!s)|processor|@.*", " ", text.lower())
    return "-".join(re.findall(r"[a-z0-9]+", cleaned))[:80] or "unnamed"
