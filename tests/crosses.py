"""Results of several machines, and what one's config did on another, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Outcome
from autotune.measuring.speedup import Speedup
from autotune.measuring.statistics import Interval
from autotune.results.compare import Comparison, compare
from autotune.results.cross_file import Cross, OwnSide, origin_of
from autotune.results.gather import Gathered
from autotune.results.result import Result, Side
from tests.factories import make_gpu, make_hardware, make_measurement, make_result, make_software


def on_gpu(rate: float = 3000.0, name: str = "NVIDIA GeForce RTX 4070", **changes: Any) -> Result:
    """A result of a GPU that reached a rate; `hostname` is its host's."""
    hostname = changes.pop("hostname", "workstation")
    fields: dict[str, Any] = {
        "hardware": make_hardware(make_gpu(name=name), hostname=hostname),
        "constraints": make_result().constraints.model_copy(update={"device": "cuda"}),
        "best": Side(config=TrainConfig(precision="bf16"), measurement=make_measurement(rate)),
    }
    return make_result(**fields | changes)


def make_cross(source: Result | None = None, own: Result | None = None, **changes: Any) -> Cross:
    """A GPU's config on a CPU, where it runs at 0.83 of that machine's own."""
    source, own = source or on_gpu(), own or make_result()
    fields: dict[str, Any] = {
        "created": datetime(2026, 11, 21, 9, 0, tzinfo=timezone.utc),
        "workload": source.workload,
        "machine": own.machine,
        "hardware": own.hardware,
        "software": make_software(),
        "device": own.constraints.device,
        "config_of": origin_of(source),
        "theirs": source.best,
        "baseline": source.baseline,
        "own": OwnSide(path="own.json", created=own.created, **dict(own.best)),
        "outcome": Outcome.OK,
        "over_own": Speedup(ratio=0.83, ci95=Interval(0.79, 0.87), pairs=4),
        "over_baseline": Speedup(ratio=1.2, ci95=Interval(1.1, 1.3), pairs=4),
        "rounds": 4,
    }
    return Cross(**fields | changes)


def compared(
    *results: Result, crosses: Sequence[Cross] = (), problems: Sequence[str] = (), warnings: Sequence[str] = ()
) -> Comparison:
    """Results side by side, as if their files were called 0.json, 1.json and so on, and the crosses' cross-0.json."""
    return compare(
        Gathered(
            results=[(f"{number}.json", result) for number, result in enumerate(results)],
            crosses=[(f"cross-{number}.json", cross) for number, cross in enumerate(crosses)],
            problems=list(problems),
            warnings=list(warnings),
        )
    )
