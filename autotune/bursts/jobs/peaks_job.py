"""Child side of probing: what only torch knows about the machine, and the rates that bound every config.

The rates are the best of a few repeats within a second or two. They are no benchmark, but good enough to say "this is a
tenth of the card's peak".
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from autotune.errors import ConfigError
from autotune.hardware import DeviceKind
from autotune.hardware.host import read_cpu, read_memory
from autotune.hardware.nvidia import gpu_precisions
from autotune.hardware.probe import UNUSABLE
from autotune.knobs import torch_dtype
from autotune.torch_settings.precision import products_in

Call = Callable[[], object]
_MATRIX_SIZES = {"cpu": (512, 1024, 2048, 4096), "gpu": (1024, 2048, 4096, 8192)}
_COPY_BYTES = tuple(2**power for power in range(24, 31))  # 16 MiB to 1 GiB
_MEMORY_SHARE = 8  # buffers take at most an eighth of the free memory
_MOST_REPEATS = 50
_SHORTEST_TIMING = 0.002  # seconds; shorter calls are timed several at once
# Shares of the time for all matrix products together, and for each copy; the rest is slack.
_MATMUL_SHARE, _COPY_SHARE = 0.6, 0.15


def report(device: DeviceKind | None, seconds: float = 2.0) -> dict[str, object]:
    """What torch finds on this machine, JSON-serialisable; `autotune.hardware.merge` reads it.

    Args:
        device: The kind of device to measure; the best one when None.
        seconds: The time that measuring may take; opening the device comes on top. With 0 nothing is measured.

    Returns:
        ``torch`` and ``cuda``: versions; ``gpus``: those that torch can use, in its order, and ``peaks``, as
        `autotune.hardware.model` has them; ``unread``: why some values stayed None.

    Raises:
        ConfigError: When torch has no such device here.
    """
    unread: dict[str, str] = {}
    gpus = _gpus(unread)
    kind = _device_kind(device, [gpu["kind"] for gpu in gpus])
    peaks = None
    if seconds:
        precisions = next((gpu["precisions"] for gpu in gpus if gpu["kind"] == kind), None) or read_cpu({}).precisions
        peaks = _peaks(_Meter(kind, torch.device("cuda" if kind == "rocm" else kind)), precisions, seconds, unread)
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    return {**versions, "gpus": gpus, "peaks": peaks, "unread": unread}


def _peaks(meter: _Meter, precisions: Sequence[str], seconds: float, unread: dict[str, str]) -> dict[str, object]:
    """A record of `autotune.hardware.model.Peaks`."""

    def rate(field: str, measure: Callable[..., float], *arguments: object) -> float | None:
        """A rate, or None with the reason: a rate that cannot be measured must not cost the others."""
        try:
            return measure(*arguments)
        except RuntimeError as error:  # torch's out-of-memory is one as well
            unread[f"peaks.{field}"] = str(error).strip().split("\n")[0][:200] or type(error).__name__
            return None

    meter.synchronize()
    begun = time.perf_counter()
    window, field = seconds * _MATMUL_SHARE / len(precisions), "matmul_flops_per_second"
    matmul = {each: rate(f"{field}.{each}", meter.matmul, each, window) for each in precisions}
    window, field, to_device = seconds * _COPY_SHARE, "host_to_device_bytes_per_second", None
    memory = rate("memory_bytes_per_second", meter.memory_copy, window)
    if meter.device.type == "cuda":
        to_device = rate(field, meter.host_to_device, window)
    else:
        unread[f"peaks.{field}"] = f"the {meter.kind} device computes in the host's own memory"
    return {
        "matmul_flops_per_second": matmul,
        "memory_bytes_per_second": memory,
        "host_to_device_bytes_per_second": to_device,
        "seconds": time.perf_counter() - begun,
    }


def _device_kind(requested: DeviceKind | None, gpus: Sequence[DeviceKind]) -> DeviceKind:
    """The kind of device to use, given the kinds of usable GPUs; ``cuda`` in a build for ROCm means ``rocm``."""
    cuda: DeviceKind = "rocm" if torch.version.hip else "cuda"
    available: list[DeviceKind] = [*dict.fromkeys(gpus), "cpu"]
    kind = available[0] if requested is None else cuda if requested == "cuda" else requested
    if kind not in available:
        raise ConfigError(
            f"the device {requested!r} was asked for, but torch {torch.__version__} finds only "
            f"{', '.join(available)} here; use --device {available[0]}"
        )
    return kind


def _gpus(unread: dict[str, str]) -> list[dict[str, Any]]:
    """The GPUs that this torch can use, in its order, as records of `autotune.hardware.model.Gpu`.

    Args:
        unread: Receives the reason if this torch finds a GPU that it has no kernels for.
    """
    if not torch.cuda.is_available():
        return [_mps_gpu()] if torch.backends.mps.is_available() else []
    gpus = [_cuda_gpu(index) for index in range(torch.cuda.device_count())]
    built = torch.cuda.get_arch_list() if torch.version.hip is None else []
    usable = [gpu for gpu in gpus if not built or has_kernels(gpu["compute_capability"], built)]
    if lacking := [gpu["name"] for gpu in gpus if gpu not in usable]:
        unread[UNUSABLE] = (
            f"torch {torch.__version__} is not built for {', '.join(lacking)} (it has {', '.join(built)})"
        )
    kernels: dict[tuple[str, tuple[int, int]], str | None] = {}
    for gpu in usable if torch.version.hip is None else ():
        model = gpu["name"], gpu["compute_capability"]
        if model not in kernels:  # asking opens the GPU
            kernels[model] = _attention(gpu["index"])
        gpu["attention"] = kernels[model]
    return usable


def has_kernels(capability: tuple[int, int], built: Sequence[str]) -> bool:
    """Whether a build of torch runs on a compute capability.

    Machine code (``sm_86``) runs on the same major version from its own minor version on, and PTX (``compute_90``) is
    compiled for any later one.

    Args:
        capability: Major and minor version.
        built: From ``torch.cuda.get_arch_list()``.
    """
    for architecture in built:
        form, _, number = architecture.partition("_")
        digits = re.match(r"\d+", number)
        if digits is None:
            continue
        major, minor = divmod(int(digits[0]), 10)
        only_here = number[digits.end() :] == "a"  # sm_90a: of this very version
        if form == "compute" and not only_here and (major, minor) <= capability:
            return True
        if (
            form == "sm"
            and major == capability[0]
            and (minor == capability[1] if only_here else minor <= capability[1])
        ):
            return True
    return False


def _cuda_gpu(index: int) -> dict[str, Any]:
    """An NVIDIA or AMD GPU."""
    properties: Any = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    if torch.version.hip is None:
        capability = (properties.major, properties.minor)
        precisions, reason = gpu_precisions(properties.name, capability)
        own: dict[str, Any] = {"kind": "cuda", "compute_capability": capability}
    else:
        precisions, reason = _amd_precisions(getattr(properties, "gcnArchName", ""))
        own = {"kind": "rocm", "memory_free_bytes": torch.cuda.mem_get_info(index)[0]}
    return {
        **own,
        "index": index,
        "name": properties.name,
        "uuid": None if uuid is None else f"GPU-{uuid}",
        "memory_total_bytes": properties.total_memory,
        "sm_count": properties.multi_processor_count,
        "precisions": precisions,
        "precision_reason": reason,
    }


def _attention(index: int) -> str | None:
    """The kernel that torch takes for attention in half precision; None if this torch or the GPU does not say."""
    try:
        heads = torch.empty(1, 1, 64, 64, device=f"cuda:{index}", dtype=torch.float16)
        chosen = torch._fused_sdp_choice(heads, heads, heads)
    except (AssertionError, AttributeError, RuntimeError):  # the first is a torch without CUDA
        return None
    kernels: Mapping[str, Any] = SDPBackend.__members__
    return next((name.lower() for name, kernel in kernels.items() if int(kernel) == chosen), None)


def _amd_precisions(architecture: str) -> tuple[tuple[str, ...], str]:
    """The precisions worth trying on an AMD GPU, by its architecture (``gfx90a:sramecc+``)."""
    name = architecture.partition(":")[0]
    if name in {"gfx908", "gfx90a"} or name.startswith(("gfx94", "gfx95", "gfx11", "gfx12")):
        return ("fp32", "bf16", "fp16"), f"{name} has matrix instructions for bf16 and fp16"
    return ("fp32",), f"fp32 only: {name or 'this architecture'} is not known to have matrix instructions"


def _mps_gpu() -> dict[str, Any]:
    """The GPU of an Apple chip; it shares the host's memory."""
    total = torch.mps.recommended_max_memory()
    new_enough = bool(torch.backends.mps.is_macos_or_newer(14, 0))
    return {
        "kind": "mps",
        "index": 0,
        "name": read_cpu({}).model or "Apple GPU",
        "memory_total_bytes": total,
        "memory_free_bytes": max(0, total - torch.mps.driver_allocated_memory()),
        "precisions": ("fp32", "bf16", "fp16") if new_enough else ("fp32", "fp16"),
        "precision_reason": f"Metal computes in fp16{', and since macOS 14 in bf16' if new_enough else ''}",
    }


@dataclass(frozen=True)
class _Meter:
    """Measures one device."""

    kind: DeviceKind
    device: torch.device

    def synchronize(self) -> None:
        """Waits until the device has finished all its work; opens the device the first time."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        elif self.device.type == "mps":
            torch.mps.synchronize()

    def matmul(self, precision: str, seconds: float) -> float:
        """FLOP/s of a large square matrix product."""

        def prepare(size: int) -> Call:
            # Random values: a GPU computes faster with zeros, since they draw less power.
            matrix = torch.randn(size, size, device=self.device).to(torch_dtype(precision))
            out = torch.empty_like(matrix)
            return lambda: torch.matmul(matrix, matrix, out=out)

        sizes = self._fitting(_MATRIX_SIZES["cpu" if self.kind == "cpu" else "gpu"], lambda size: 3 * 4 * size**2)
        with products_in(precision):
            return self._rate(prepare, lambda size: 2.0 * size**3, sizes, seconds)

    def memory_copy(self, seconds: float) -> float:
        """Bytes per second of the device's memory, read and written, in a large copy."""

        def prepare(size: int) -> Call:
            source = torch.ones(size, dtype=torch.uint8, device=self.device)
            target = torch.zeros_like(source)
            return lambda: target.copy_(source)

        return self._rate(prepare, lambda size: 2.0 * size, self._fitting(_COPY_BYTES, lambda size: 2 * size), seconds)

    def host_to_device(self, seconds: float) -> float:
        """Bytes per second from pinned host memory to the device."""

        def prepare(size: int) -> Call:
            source = torch.ones(size, dtype=torch.uint8).pin_memory()
            target = torch.empty_like(source, device=self.device)
            return lambda: target.copy_(source, non_blocking=True)

        return self._rate(prepare, float, self._fitting(_COPY_BYTES, lambda size: 2 * size), seconds)

    def _fitting(self, sizes: Sequence[int], buffers: Callable[[int], int]) -> Sequence[int]:
        """The sizes whose buffers are small beside the free memory of the device and of the host that makes them."""
        free = read_memory({}).available_bytes
        if self.device.type == "cuda":
            free = min(free, torch.cuda.mem_get_info()[0])
        return [size for size in sizes if buffers(size) <= free / _MEMORY_SHARE] or sizes[:1]

    def _rate(
        self, prepare: Callable[[int], Call], work: Callable[[int], float], sizes: Sequence[int], seconds: float
    ) -> float:
        """The best rate at the largest size that the time allows.

        The size grows while the next one fits into the time, if its cost grows in proportion. Loading kernels, as the
        first call of each size may do, comes on top: when it counted, bf16 reached a sixth of its rate on a cold H100.
        """
        self._timed(prepare(sizes[0]), 1)  # opens the device's libraries
        end = time.perf_counter() + seconds
        for size, following in zip(sizes, [*sizes[1:], None], strict=True):
            begun = time.perf_counter()
            call = prepare(size)
            prepared = time.perf_counter() - begun
            first, once = self._timed(call, 1), self._timed(call, 1)
            end += max(0.0, first - once)
            growth = work(following) / work(size) if following is not None else math.inf
            if time.perf_counter() + (prepared + 2 * once) * growth > end:
                break
        calls = max(1, round(_SHORTEST_TIMING / once))
        for _ in range(_MOST_REPEATS):
            if time.perf_counter() + once * calls > end:
                break
            once = min(once, self._timed(call, calls))
        return work(size) / once

    def _timed(self, call: Call, calls: int) -> float:
        """Seconds of one call, the mean of several in a row."""
        self.synchronize()
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        self.synchronize()
        return max(time.perf_counter() - begun, 1e-9) / calls
