"""The energy of a script's blocks, read by its parent: the script may lack NVML, or the right to read a counter."""

from __future__ import annotations

from typing import Any

from autotune.hardware import CpuEnergy, GpuEnergy


class BlockEnergy:
    """Adds the energy of each block to the event that reports it, without that of evaluations in the block."""

    def __init__(self, counter: CpuEnergy | GpuEnergy) -> None:
        self._counter = counter
        self._began: float | None = None  # joules at the block's begin, raised by those of its evaluations
        self._evaluates: float | None = None  # joules at the begin of an evaluation

    def note(self, event: dict[str, Any]) -> None:
        """Notes an event of the script as soon as it arrives."""
        now, phase = self._counter.joules(), event.get("phase")
        if phase == "evaluate":
            self._evaluates = now
        elif phase == "train":
            resumes = self._began is not None and self._evaluates is not None and now is not None
            self._began = self._began + now - self._evaluates if resumes else now  # type: ignore[operator]
            self._evaluates = None
        elif event["event"] != "phase":
            if event["event"] == "block" and self._began is not None and now is not None:
                event["seen"]["energy_joules"] = now - self._began
            self._began = self._evaluates = None
