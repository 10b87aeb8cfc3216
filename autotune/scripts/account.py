"""What a script's runner tells, as the events of a runner: laps become blocks, and blocks a measurement."""

from __future__ import annotations

from typing import Any

from autotune.bursts.epochs import Boundary, Lap, Start, boundary_of
from autotune.knobs import TrainConfig
from autotune.measuring import Measurement, TelemetrySummary


class Account:
    """Of one player of a job.

    Args:
        config: What it trains with.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._config = config
        self._laps: list[Lap] = []
        self._starts: list[Start] = []
        self._taken: list[float] = []
        self._reported = 0
        self._ready: dict[str, Any] = {}

    def translated(self, event: dict[str, Any]) -> dict[str, Any]:
        """An event of the recorder's as one of a runner's."""
        if event["event"] == "ready":
            self._ready = event
        elif event["event"] == "block":
            return {**event, **self._block(event)}
        elif event["event"] == "report":
            return {**event, "value": self._measurement(event["value"])}
        return event

    def _measurement(self, figures: dict[str, Any]) -> dict[str, Any] | None:
        """All that was measured since the last report; None where nothing was.

        Args:
            figures: What the recorder knows besides the blocks.
        """
        if self._reported == len(self._laps):
            return None
        boundary = self._boundary()
        first, self._reported = self._reported, len(self._laps)
        ready, laps = self._ready, self._laps[first:]
        blocks = tuple(map(boundary.block, laps))
        per_sample = sum(block.seconds for block in blocks) / max(1, sum(lap.samples for lap in laps))
        step_seconds = per_sample * self._config.effective_batch
        compiling = ready["opening_seconds"] - ready["opening_steps"] * step_seconds
        seconds = sum(lap.seconds for lap in laps)
        taken = sum(share * lap.seconds for share, lap in zip(self._taken[first:], laps, strict=True)) / seconds
        host = figures["host_memory_bytes"]
        return Measurement(
            blocks=blocks,
            start_seconds=ready["start_seconds"],
            build_seconds=0.0,
            warmup_seconds=ready["opening_seconds"],
            compile_seconds=max(0.0, compiling) if self._config.compile_mode is not None else None,
            device_memory_bytes=figures.get("device_memory_bytes", host),
            host_memory_bytes=host,
            epoch_samples=ready["epoch_samples"],
            epoch_boundary_seconds=boundary.seconds,
            final_loss=figures["loss"],
            telemetry=TelemetrySummary(seconds=seconds, foreign_cpu_fraction=taken),
        ).model_dump(mode="json")

    def _block(self, event: dict[str, Any]) -> dict[str, Any]:
        lap = event["lap"]
        starts = [Start(*start) for start in lap["starts"]]
        self._starts += starts
        restarts = [start.seconds for start in starts if not start.after_epoch]
        self._laps.append(
            Lap(
                samples=lap["samples"],
                consumed=max(1, lap["samples"]),
                seconds=lap["seconds"],
                wait_seconds=lap.get("wait_seconds", 0.0),
                batches=lap.get("batches", 1),
                starts=len(starts),
                start_seconds=lap["start_seconds"],
                restarts=len(restarts),
                restart_seconds=sum(restarts),
                compiled=lap["compiled"],
                lead=lap["lead"],
            ).with_lead()
        )
        self._taken.append(event["taken"])
        boundary = self._boundary()
        if event["leads_in"]:
            self._reported = len(self._laps)
        return {
            "block": boundary.block(self._laps[-1]).model_dump(),
            "crossed": bool(starts),
            "compiled": lap["compiled"],
            "boundary_seconds": boundary.seconds,
        }

    def _boundary(self) -> Boundary:
        return boundary_of(self._laps, self._starts, self._config)
