"""Reads NVIDIA GPUs through NVML, which opens no CUDA context: a context takes memory that must be measured.

The functions take the `pynvml` module, or an object like it, so that tests can simulate any card. Each value is queried
separately: a value that a card does not support is None, with the driver's own reason.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from autotune.hardware.model import Gpu, GpuProcess

# The TU116 and TU117 chips have compute capability 7.5 like the RTX 20 series, but no tensor cores.
_TURING_WITHOUT_TENSOR_CORES = re.compile(r"\bGTX 16\d\d|\bMX ?\d{3}\b|\bT(?:400|500|550|600|1000|1200|2000)\b")
ANY_OF_THESE = "gpus.visible"
"""Under this key stands why the allowed GPUs are uncertain; all GPUs are then read."""


def gpu_precisions(name: str, capability: tuple[int, int] | None) -> tuple[tuple[str, ...], str]:
    """The precisions worth trying on an NVIDIA GPU, fp32 first, and why, in one sentence.

    The name counts too: two families of compute capability 7.5 differ only by it.
    """
    if capability is None:
        return ("fp32",), "fp32 only: the compute capability could not be read"
    version = f"compute capability {capability[0]}.{capability[1]}"
    if capability >= (8, 0):
        return ("fp32", "tf32", "bf16", "fp16"), f"{version} has tensor cores for tf32, bf16 and fp16"
    if capability < (7, 0):
        return ("fp32",), f"fp32 only: {version} has no tensor cores, so lower precision would not be faster"
    if capability == (7, 5) and _TURING_WITHOUT_TENSOR_CORES.search(name):
        return ("fp32",), f"fp32 only: {name} has {version} but no tensor cores"
    return ("fp32", "fp16"), f"{version} has tensor cores for fp16 only; tf32 and bf16 need 8.0"


def read_gpus(nvml: Any, unread: dict[str, str], environ: Mapping[str, str] = os.environ) -> tuple[Gpu, ...]:
    """The NVIDIA GPUs that this process may use, in the order of ``CUDA_VISIBLE_DEVICES``.

    Args:
        nvml: The `pynvml` module, or an object like it; None for the installed one.
        unread: Receives reasons for values that could not be read, under keys such as ``gpus.0.power_limit_watts``.
        environ: The environment variables.
    """
    if nvml is None:
        import pynvml  # here: it takes 50 ms, and not every command needs it

        nvml = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        unread["gpus"] = f"no NVIDIA driver answers (NVML: {error})"
        return ()
    try:
        chosen = select(_cards(nvml, unread), unread, environ)
        process = psutil.Process()
        own = {process.pid, *(child.pid for child in process.children(recursive=True))}
        return tuple(_Reading(nvml, index, device, own, unread).gpu() for index, device in enumerate(chosen))
    except nvml.NVMLError as error:
        unread["gpus"] = f"the NVIDIA driver does not list its GPUs (NVML: {error})"
        return ()
    finally:
        _quietly(nvml, nvml.nvmlShutdown)


@dataclass(frozen=True)
class _Reading:
    """Asks NVML for everything about one device."""

    nvml: Any
    index: int
    device: Card | Slice
    own_pids: set[int]
    unread: dict[str, str]

    def gpu(self) -> Gpu:
        """The record of the device."""
        nvml, device = self.nvml, self.device
        # A slice has its own memory and processors; chip, power and clocks are those of the whole card.
        own, whole = device.handle, (device.card if isinstance(device, Slice) else device).handle
        name = self.ask("name", "nvmlDeviceGetName", own) or "NVIDIA GPU"
        memory = self.ask("memory_total_bytes", "nvmlDeviceGetMemoryInfo", own)
        if memory is None:
            self.miss("memory_free_bytes", self.unread[f"gpus.{self.index}.memory_total_bytes"])
        self.miss("sm_count", "torch knows it, and was not imported")
        self.miss("attention", "only torch knows it")
        capability = self.ask("compute_capability", "nvmlDeviceGetCudaComputeCapability", whole)
        capability = (int(capability[0]), int(capability[1])) if capability else None
        precisions, reason = gpu_precisions(name, capability)
        utilization = self.ask("utilization_fraction", "nvmlDeviceGetUtilizationRates", own)
        return Gpu(
            kind="cuda",
            index=self.index,
            name=name,
            uuid=self.ask("uuid", "nvmlDeviceGetUUID", own),
            memory_total_bytes=memory.total if memory else None,
            memory_free_bytes=memory.free if memory else None,
            compute_capability=capability,
            precisions=precisions,
            precision_reason=reason,
            driver=self.ask("driver", "nvmlSystemGetDriverVersion"),
            cuda=_cuda_version(self.ask("cuda", "nvmlSystemGetCudaDriverVersion_v2")),
            power_limit_watts=_watts(self.ask("power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit", whole)),
            power_watts=_watts(self.ask("power_watts", "nvmlDeviceGetPowerUsage", whole)),
            sm_clock_mhz=self.ask("sm_clock_mhz", "nvmlDeviceGetClockInfo", whole, nvml.NVML_CLOCK_SM),
            sm_clock_max_mhz=self.ask("sm_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", whole, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=self.ask("memory_clock_mhz", "nvmlDeviceGetClockInfo", whole, nvml.NVML_CLOCK_MEM),
            temperature_celsius=self.temperature(whole),
            utilization_fraction=utilization.gpu / 100 if utilization else None,
            mig=isinstance(device, Slice),
            **self.processes(),
        )

    def ask(self, field: str, call: str, *arguments: Any) -> Any | None:
        """The answer of one NVML call, or None with the reason."""
        try:
            return getattr(self.nvml, call)(*arguments)
        except self.nvml.NVMLError as error:
            self.miss(field, f"NVML: {error}")
        except AttributeError:
            self.miss(field, f"the installed nvidia-ml-py has no {call}")
        return None

    def miss(self, field: str, reason: str) -> None:
        """Notes why a field stays None."""
        self.unread[f"gpus.{self.index}.{field}"] = reason

    def temperature(self, handle: Any) -> int | None:
        """Degrees Celsius of the chip, by the older call if driver or bindings lack the newer."""
        newer, sensor = getattr(self.nvml, "nvmlDeviceGetTemperatureV", None), self.nvml.NVML_TEMPERATURE_GPU
        degrees = _quietly(self.nvml, newer, handle, sensor) if newer is not None else None
        if degrees is None:
            degrees = self.ask("temperature_celsius", "nvmlDeviceGetTemperature", handle, sensor)
        return degrees

    def processes(self) -> dict[str, Any]:
        """Other processes that hold memory of the device, for computing or for a display.

        Processes of other users are only counted: a user must not publish their names.
        """
        handle = self.device.handle
        # Slices have no displays, and answer with an error: only a missing list of computing processes counts.
        displays = _quietly(self.nvml, self.nvml.nvmlDeviceGetGraphicsRunningProcesses, handle) or ()
        computing = self.ask("processes", "nvmlDeviceGetComputeRunningProcesses", handle) or ()
        used = {process.pid: process.usedGpuMemory for process in (*displays, *computing)}
        pids = sorted(used.keys() - self.own_pids)
        names = {pid: name for pid in pids if (name := _name_of_own(pid)) is not None}
        for number, pid in enumerate(names):
            if used[pid] is None:
                self.miss(f"processes.{number}.memory_bytes", "the driver does not report it per process")
        named = tuple(GpuProcess(pid=pid, name=name, memory_bytes=used[pid]) for pid, name in names.items())
        return {"processes": named, "others_processes": len(pids) - len(named)}


def _cards(nvml: Any, unread: dict[str, str]) -> tuple[Card, ...]:
    """Every card that the driver lists, in bus order, with its slices."""
    cards = []
    for number in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
        except nvml.NVMLError as error:
            # One card that fell off the bus must not hide the others; its number stays taken.
            unread[f"gpus.bus.{number}"] = f"the card with bus number {number} does not answer (NVML: {error})"
            cards.append(Card(None, "", "", partitioned=False))
            continue
        answers = (_quietly(nvml, ask, handle) for ask in (nvml.nvmlDeviceGetUUID, nvml.nvmlDeviceGetName))
        uuid, name = (str(answer or "") for answer in answers)
        mode = _quietly(nvml, nvml.nvmlDeviceGetMigMode, handle)  # cards without MIG answer with an error
        card = Card(handle, uuid, name, partitioned=bool(mode and mode[0]))
        if card.partitioned:
            card.slices.extend(_slices(nvml, card))
        cards.append(card)
    return tuple(cards)


def _slices(nvml: Any, card: Card) -> list[Slice]:
    """The slices of a partitioned card; free places answer with an error."""
    slices = []
    for place in range(_quietly(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, card.handle) or 0):
        handle = _quietly(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, card.handle, place)
        if handle is not None:
            slices.append(Slice(handle, str(_quietly(nvml, nvml.nvmlDeviceGetUUID, handle) or ""), card))
    return slices


def _quietly(nvml: Any, call: Callable[..., Any], *arguments: Any) -> Any | None:
    """The result of a call, or None without a reason if NVML has no answer."""
    try:
        return call(*arguments)
    except nvml.NVMLError:
        return None


def _watts(milliwatts: int | None) -> float | None:
    """Converts NVML's milliwatts."""
    return None if milliwatts is None else milliwatts / 1000


def _cuda_version(number: int | None) -> str | None:
    """``12.4`` from NVML's 12040."""
    return None if number is None else f"{number // 1000}.{number % 1000 // 10}"


def _name_of_own(pid: int) -> str | None:
    """The name of this user's process; None if it is another user's, has ended, or runs outside this container."""
    try:
        process = psutil.Process(pid)
        return str(process.name()) if process.username() == psutil.Process().username() else None
    except psutil.Error:
        return None


@dataclass
class Card:
    """A whole card; its handle is None if it does not answer.

    In MIG mode it is partitioned: CUDA sees its slices, never the card itself.
    """

    handle: Any
    uuid: str  # GPU-…
    name: str
    partitioned: bool
    slices: list[Slice] = field(default_factory=list)


@dataclass(frozen=True)
class Slice:
    """A slice of a partitioned card."""

    handle: Any
    uuid: str  # MIG-…
    card: Card


def select(cards: Sequence[Card], unread: dict[str, str], environ: Mapping[str, str]) -> tuple[Card | Slice, ...]:
    """The devices that CUDA would number 0, 1, …, by the rules of ``CUDA_VISIBLE_DEVICES``.

    NVML always lists every card in bus order; CUDA lists the cards that the variable names, in its order. Without these
    rules, facts about one card would be attributed to another.

    CUDA stops at the first invalid entry, sees no device if an entry is repeated, and uses at most one slice. Where its
    numbers may mean other cards than NVML's, all are returned, the named ones first, and torch's UUIDs decide.

    Args:
        cards: Every card in bus order.
        unread: Receives the reason if no device is visible, or it is uncertain which are, or in which order.
        environ: The environment variables.
    """
    variable = environ.get("CUDA_VISIBLE_DEVICES")
    if not cards:
        unread["gpus"] = "the NVIDIA driver answers, but lists no GPU"
        return ()
    whole: list[Card | Slice] = [card for card in cards if card.handle is not None and not card.partitioned]
    slices: list[Card | Slice] = [part for card in cards for part in card.slices]
    if variable is None:
        chosen = [*whole] or slices[:1]
        if not chosen:
            unread["gpus"] = "every GPU is partitioned (MIG), and no slice has been made"
    else:
        chosen = _named(cards, variable)
        if not chosen:
            unread["gpus"] = f"CUDA_VISIBLE_DEVICES={variable!r} names none of the {len(cards)} NVIDIA GPUs"
    by_number = variable is None or re.match(r"\s*\d", variable)
    if by_number and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and len({card.name for card in cards}) > 1:
        is_certain = variable is None or len(chosen) == len(cards)  # which cards, though not in which order
        unread["gpus.order" if is_certain else ANY_OF_THESE] = (
            "CUDA numbers the fastest card first, NVML by bus; set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
        if chosen and not is_certain:
            chosen += [device for device in (*whole, *slices) if all(device is not other for other in chosen)]
    first = next((device for device in chosen if isinstance(device, Slice)), None)
    return tuple(device for device in chosen if not isinstance(device, Slice) or device is first)


def _named(cards: Sequence[Card], variable: str) -> list[Card | Slice]:
    """The devices that the variable's entries name, in their order."""
    chosen: list[Card | Slice] = []
    for entry in variable.split(","):
        device = _device(cards, entry.strip())
        if device is None:
            break
        if any(device is other for other in chosen):
            return []
        chosen.append(device)
    return chosen


def _device(cards: Sequence[Card], entry: str) -> Card | Slice | None:
    """The device that an entry names: by number, or by the start of a UUID that fits only one device."""
    kind = entry[:4].upper()
    if kind == "MIG-":
        slices = [part for card in cards for part in card.slices if part.uuid.lower().startswith(entry.lower())]
        return slices[0] if len(slices) == 1 else None
    if number := re.match(r"\d+", entry):
        whole = cards[int(number[0]) :][:1]
    else:
        whole = [card for card in cards if kind == "GPU-" and card.uuid.lower().startswith(entry.lower())]
    if len(whole) != 1:
        return None
    if whole[0].partitioned:  # naming it selects its first slice
        return whole[0].slices[0] if whole[0].slices else None
    return whole[0] if whole[0].handle is not None else None
