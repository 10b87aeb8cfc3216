"""The GPUs that this process uses: one, or several as with `DataParallel` or a model that is split among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def cuda_devices() -> list[int]:
    """Torch's numbers of the GPUs on which this process holds memory; the current one if it holds none yet.

    Asking does not open CUDA, nor a context on a further GPU, which would take its memory: before CUDA is opened there
    is no such GPU.
    """
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    held = [number for number in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(number)]
    return held or [torch.cuda.current_device()]


def devices_like(device: torch.device) -> list[torch.device]:
    """All devices of a kind that this process uses; for a device with a number, that one alone."""
    import torch

    if device.type != "cuda" or device.index is not None:
        return [device]
    return [torch.device("cuda", number) for number in cuda_devices()]


def uuids() -> list[str]:
    """UUIDs of the NVIDIA GPUs that this process uses, as NVML writes them; empty if it uses none."""
    import torch

    if torch.version.hip is not None:
        return []
    return [f"GPU-{torch.cuda.get_device_properties(number).uuid}" for number in cuda_devices()]
