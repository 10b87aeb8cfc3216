"""Telemetry of a burst: its memory and the processors, with the GPU and energy, and who else uses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil

from autotune.bursts.telemetry.gpu_telemetry import GpuWatch
from autotune.hardware import CpuEnergy
from autotune.timing.usage import UsageWatch, increase


class Telemetry(UsageWatch):
    """Watches while it is open, from its own thread.

    Args:
        limit_bytes: Host memory of the process tree above which `exceeded` is called, from the watching thread.
        exceeded: Receives the bytes in use; it is expected to end the process.
        gpu: Watches the GPU, if there is one.
        energy: Energy counter of the processors, if they do the training.
        retries: Returns how often the device's allocator has had to try again so far; None if that is not counted.
        top: The process whose tree is watched; this one when None.
    """

    def __init__(
        self,
        limit_bytes: int | None,
        exceeded: Callable[[int], None],
        *,
        gpu: GpuWatch | None = None,
        energy: CpuEnergy | None = None,
        retries: Callable[[], int | None] = lambda: None,
        top: int | None = None,
    ) -> None:
        # The forkserver and the command are ours too: their work is no foreign load.
        helpers = [process.pid for process in psutil.Process(top).parents()[:2]]
        super().__init__(limit_bytes, exceeded, top=top, helpers=helpers, retries=retries, peaks=True)
        self._gpu, self._energy = gpu, energy
        self._joules_before: float | None = None

    def __enter__(self) -> Telemetry:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._gpu is not None:
            self._gpu.close()
        self._thread.join(timeout=1.0)

    def begin(self) -> None:
        """Begins the timed part of the burst: what was spent before does not count."""
        if self._gpu is not None:
            self._gpu.begin()
        self._joules_before = self._joules()
        super().begin()

    def end(self) -> dict[str, Any]:
        """Ends the timed part; returns its figures, by the names of `TelemetrySummary`."""
        figures = super().end() | {"energy_joules": increase(self._joules_before, self._joules())}
        return figures | (self._gpu.end() if self._gpu is not None else {})

    def _joules(self) -> float | None:
        return self._energy.joules() if self._energy is not None else None
