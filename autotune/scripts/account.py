"""Turns the events of a script's recorder into those of a runner: laps become blocks, and blocks a measurement."""

from __future__ import annotations

from typing import Any

from autotune.bursts.account import Account
from autotune.bursts.epochs import Lap
from autotune.knobs import TrainConfig
from autotune.measuring import TelemetrySummary
from autotune.recorder.laps import Start


class ScriptAccount(Account):
    """Keeps the laps of one player of a job.

    Args:
        config: The config that it trains with.
    """

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        self._ready: dict[str, Any] = {}

    def translated(self, event: dict[str, Any]) -> dict[str, Any]:
        """An event of the recorder's as one of a runner's."""
        if event["event"] == "ready":
            self._ready = event
        elif event["event"] == "block":
            starts = [Start(*start) for start in event["lap"]["starts"]]
            self.starts += starts
            lap = Lap.of({**event["lap"], "starts": starts}).with_lead()
            seen = TelemetrySummary(seconds=lap.seconds, foreign_cpu_fraction=event["taken"])
            return {**event, **self.block(lap, seen, leads_in=event["leads_in"])}
        elif event["event"] == "report":
            return {**event, "value": self._reported_value(event["value"])}
        return event

    def _reported_value(self, figures: dict[str, Any]) -> dict[str, Any] | None:
        """A measurement, with the figures that the recorder adds to the blocks; None where nothing was measured."""
        if self.is_reported:
            return None
        ready, host = self._ready, figures["host_memory_bytes"]
        return self.measurement(
            ready["opening_seconds"],
            ready["opening_steps"],
            start_seconds=ready["start_seconds"],
            build_seconds=0.0,
            warmup_seconds=ready["opening_seconds"],
            device_memory_bytes=figures.get("device_memory_bytes", host),
            host_memory_bytes=host,
            epoch_samples=ready["epoch_samples"],
            final_loss=figures["loss"],
            looks=figures.get("looks", ()),
        ).model_dump(mode="json")
