"""Turns the events of a player's process into blocks and measurements."""

from __future__ import annotations

import dataclasses
from typing import Any

from autotune.bursts.hosts.epochs import Boundary, boundary_of
from autotune.knobs import TrainConfig
from autotune.measuring import Measurement, TelemetrySummary, merged
from autotune.timing.protocol import Lap, Start


class Account:
    """Keeps the laps of one player, which together show what an epoch's end costs.

    Args:
        config: The player's config.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._config = config
        self._laps: list[Lap] = []
        self._starts: list[Start] = []  # the loader's
        self._seen: list[TelemetrySummary] = []
        self._reported = 0
        self._ready_event: dict[str, Any] = {}
        self._epoch_samples: int | None = None

    def translated(self, event: dict[str, Any]) -> dict[str, Any]:
        """An event of a gate, with the block or the measurement that it completes."""
        if event["event"] in {"ready", "block"}:
            self._starts += [Start(*start) for start in event["starts"]]
            self._epoch_samples = event["epoch_samples"]
        if event["event"] == "ready":
            self._ready_event = event
        elif event["event"] == "block":
            return {**event, **self._block(event)}
        elif event["event"] == "report":
            measured = self._measurement(event["value"]) if self._reported < len(self._laps) else None
            return {**event, "value": measured.model_dump(mode="json") if measured is not None else None}
        return event

    def _block(self, event: dict[str, Any]) -> dict[str, Any]:
        """A lap's block, whether an epoch ended in it, what that costs as far as known, and what others took."""
        lap = Lap(**event["lap"]).with_lead()
        seen = TelemetrySummary.model_validate({"seconds": lap.seconds, **event["seen"]})
        self._laps.append(dataclasses.replace(lap, joules=seen.energy_joules))
        self._seen.append(seen)
        if event["leads_in"]:  # no measurement includes this lap or earlier ones
            self._reported = len(self._laps)
        boundary = self._boundary
        return {
            "block": boundary.block(self._laps[-1]).model_dump(),
            "crossed": lap.starts > 0,
            "compiled": lap.compiled,
            "boundary_seconds": boundary.seconds,
            "taken": seen.taken_fraction,
        }

    def _measurement(self, figures: dict[str, Any]) -> Measurement:
        """A measurement of all laps since the last one.

        Args:
            figures: Other fields of the measurement and of its telemetry.
        """
        first, self._reported = self._reported, len(self._laps)
        boundary, ready_event = self._boundary, self._ready_event
        blocks = tuple(map(boundary.block, self._laps[first:]))
        per_sample = sum(block.seconds for block in blocks) / max(1, sum(block.samples for block in blocks))
        opening = ready_event["opening_seconds"]
        compiling = opening - ready_event["opening_steps"] * per_sample * self._config.effective_batch
        telemetry = merged(self._seen[first:])
        of_telemetry = {name: figures[name] for name in figures.keys() & TelemetrySummary.model_fields.keys()}
        return Measurement(
            blocks=blocks,
            start_seconds=ready_event["start_seconds"],
            build_seconds=ready_event["build_seconds"],
            warmup_seconds=opening,
            compile_seconds=max(0.0, compiling) if self._config.is_compiled else None,
            epoch_boundary_seconds=boundary.seconds,
            epoch_samples=self._epoch_samples,
            telemetry=telemetry.model_copy(update=of_telemetry) if telemetry is not None else None,
            **{
                "device_memory_bytes": figures["host_memory_bytes"],  # on a CPU
                **{name: value for name, value in figures.items() if name not in of_telemetry},
            },
        )

    @property
    def _boundary(self) -> Boundary:
        return boundary_of(self._laps, self._starts, self._config, forks_workers=self._ready_event["forks_workers"])
