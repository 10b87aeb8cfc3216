"""The laps of a player as blocks, and as a measurement."""

from __future__ import annotations

import dataclasses
from typing import Any

from autotune.bursts.epochs import Boundary, Lap, boundary_of
from autotune.knobs import TrainConfig
from autotune.measuring import Measurement, TelemetrySummary, merged
from autotune.recorder.laps import Start


class Account:
    """Keeps the laps of one player.

    Args:
        config: The config that it trains with.

    Attributes:
        laps: All laps, which together show what an epoch's end costs.
        starts: Known starts of the loader.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.laps: list[Lap] = []
        self.starts: list[Start] = []
        self._config = config
        self._seen: list[TelemetrySummary] = []
        self._reported = 0

    def block(self, lap: Lap, seen: TelemetrySummary, *, leads_in: bool) -> dict[str, Any]:
        """Takes in a lap; returns its block, whether an epoch ended in it, and what that costs as far as is known.

        Args:
            lap: The timed lap.
            seen: What telemetry saw meanwhile.
            leads_in: Whether no measurement counts this lap, nor those before.
        """
        self.laps.append(dataclasses.replace(lap, joules=seen.energy_joules))
        self._seen.append(seen)
        if leads_in:
            self._reported = len(self.laps)
        boundary = self._boundary
        return {
            "block": boundary.block(self.laps[-1]).model_dump(),
            "crossed": lap.starts > 0,
            "compiled": lap.compiled,
            "boundary_seconds": boundary.seconds,
        }

    def measurement(self, opening_seconds: float, opening_steps: float, **figures: Any) -> Measurement:
        """All laps since the last one, of which there is one at least.

        Args:
            opening_seconds: Seconds of the first steps.
            opening_steps: Their number, in steps of the optimizer.
            figures: Other fields of the measurement.
        """
        first, self._reported = self._reported, len(self.laps)
        boundary = self._boundary
        blocks = tuple(map(boundary.block, self.laps[first:]))
        per_sample = sum(block.seconds for block in blocks) / max(1, sum(block.samples for block in blocks))
        compiling = opening_seconds - opening_steps * per_sample * self._config.effective_batch
        return Measurement(
            blocks=blocks,
            compile_seconds=max(0.0, compiling) if self._config.compile_mode is not None else None,
            epoch_boundary_seconds=boundary.seconds,
            telemetry=merged(self._seen[first:]),
            **figures,
        )

    @property
    def is_reported(self) -> bool:
        """Whether nothing was timed since the last measurement."""
        return self._reported == len(self.laps)

    @property
    def _boundary(self) -> Boundary:
        return boundary_of(self.laps, self.starts, self._config)
