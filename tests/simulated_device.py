"""A simulated device that works through a queue; its clock and the host's move only by what a test has them do."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset


class Device:
    """Launching returns at once; work waits for all that was launched before; waiting moves the host's clock."""

    def __init__(self) -> None:
        self.now = self.free_at = 0.0

    def host(self, seconds: float) -> None:
        """The host does something."""
        self.now += seconds

    def launch(self, seconds: float) -> None:
        """Work for the device."""
        self.free_at = max(self.free_at, self.now) + seconds

    def synchronize(self) -> None:
        """The host waits for all of it."""
        self.now = max(self.now, self.free_at)

    def event(self) -> Event:
        """One behind all that was launched."""
        return Event(max(self.now, self.free_at))


class Event:
    """Keeps the time at which the device passes it, as CUDA's do."""

    def __init__(self, at: float) -> None:
        self._at = at

    def elapsed_time(self, later: Event) -> float:
        """In milliseconds."""
        return 1e3 * (later._at - self._at)


class Samples(Dataset[Any]):
    """Reading a batch takes the host's time."""

    def __init__(self, device: Device, seconds: float) -> None:
        self._device = device
        self._seconds = seconds

    def __len__(self) -> int:
        return 100_000

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        self._device.host(self._seconds)
        return [torch.ones(1) for _ in indices]
