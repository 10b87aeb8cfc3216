"""Recorded surfaces: what every config of a reduced grid really did on one machine, to replay searches on.

``<name>.jsonl.gz``: the first line is a `Header`, every other one a `Record`. Made by `benchmarks.record`.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from pydantic import BaseModel

from autotune.bursts.hosts.protocol import Part
from autotune.hardware.model import Hardware
from autotune.knobs.config import Scalar, TrainConfig
from autotune.knobs.facts import WorkloadFacts
from autotune.knobs.registry import affecting, going_with
from autotune.measuring.records import Burst, Measurement

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Grid:
    """What is recorded of a workload.

    Attributes:
        target: The workload.
        knobs: The values of each knob that varies; others stay as in the baseline.
        keep: Which of all combinations belong to the grid: some cost much and differ little.
    """

    target: str
    knobs: Mapping[str, tuple[Scalar, ...]]
    keep: Callable[[TrainConfig], bool] = lambda _: True

    def configs(self, baseline: TrainConfig) -> list[TrainConfig]:
        """All configs of the grid, the baseline first; the effective batch is the baseline's."""
        found = {baseline: None}
        for values in product(*self.knobs.values()):
            changes = dict(zip(self.knobs, values, strict=True))
            batch = changes.get("batch_size", baseline.batch_size)
            changes["accumulation_steps"] = baseline.effective_batch // int(batch or 1)
            config = baseline.replace(**changes)
            if self.keep(config):
                found[config] = None
        return list(found)


def _persists(config: TrainConfig) -> bool:
    return config.persistent_workers == (config.num_workers > 0)


_PRECISIONS = ("fp32", "bf16")
_ALLOCATORS = ("default", "tuned")
GRIDS = {
    "digits": Grid(
        "benchmarks.digits:build",
        {
            "precision": _PRECISIONS, "memory_format": ("contiguous", "channels_last"), "allocator": _ALLOCATORS,
            "batch_size": (64, 32, 16), "num_threads": (None, 1), "num_workers": (0, 1),
            "persistent_workers": (False, True), "compile_mode": (None, "default"),
        },
        lambda c: _persists(c) and (c.compile_mode is None or (c.allocator == "tuned" and c.num_workers == 0)),
    ),
    "landmarks": Grid(
        "benchmarks.guides.landmarks_finetune:build",
        {
            "num_workers": (4, 2, 1, 0), "prefetch_factor": (2, 4), "persistent_workers": (False, True),
            "precision": _PRECISIONS, "memory_format": ("contiguous", "channels_last"), "allocator": _ALLOCATORS,
            "num_threads": (None, 1),
        },
        lambda c: _persists(c) or (c.num_workers in {2, 4} and c.prefetch_factor == 2),
    ),
    "gates": Grid(
        "benchmarks.gates:build",
        {
            "precision": _PRECISIONS, "allocator": _ALLOCATORS, "batch_size": (32, 16, 8), "num_threads": (None, 1),
            "optimizer_impl": ("default", "foreach", "fused"), "num_workers": (0, 1),
            "persistent_workers": (False, True), "compile_mode": (None, "default"),
        },
        lambda c: _persists(c)
        and (c.num_workers == 0 or (c.optimizer_impl == "default" and c.compile_mode is None))
        and (c.compile_mode is None or (c.allocator == "default" and c.optimizer_impl != "foreach")),
    ),
    "charlm": Grid(
        "benchmarks.charlm:build",
        {
            "precision": _PRECISIONS, "allocator": _ALLOCATORS, "batch_size": (32, 16, 8), "num_threads": (None, 1),
            "optimizer_impl": ("default", "fused"), "num_workers": (0, 1), "persistent_workers": (False, True),
            "compile_mode": (None, "default"),
        },
        lambda c: _persists(c) and (c.compile_mode is None or (c.allocator == "tuned" and c.num_workers == 0)),
    ),
    "lines": Grid(
        "benchmarks.guides.ctc_tips:build",
        {
            "precision": _PRECISIONS, "memory_format": ("contiguous", "channels_last"), "allocator": _ALLOCATORS,
            "batch_size": (16, 8), "num_threads": (None, 1), "optimizer_impl": ("default", "fused"),
            "num_workers": (0, 1, 2), "persistent_workers": (False, True),
        },
        lambda c: _persists(c) and (c.batch_size == 16 or c.allocator == "tuned"),
    ),
}  # fmt: skip
"""Bound by computing (a convolutional network), by its loader (photographs), by overhead (tiny operations), a language
model, and lines of text that are decoded and read by a recurrent network."""


class Header(BaseModel):
    """The first line of a surface.

    Attributes:
        name: Of its grid.
        created: When the recording began.
        code: Hash of the workload's source and of what runs bursts.
        hardware: The machine.
        facts: The workload; its fingerprint tells the data.
    """

    name: str
    created: str
    code: str
    hardware: Hardware
    facts: WorkloadFacts


class Record(BaseModel):
    """A burst of a surface.

    Attributes:
        part: What of training ran.
        process: Number of this burst among those of the same config and part.
        cold: Whether it was the first to compile its graph.
        burst: What it did, failures and costs included.
        baseline: What the baseline did in turn with it, block by block; None of a part, and where it failed.
    """

    part: Part
    process: int
    cold: bool
    burst: Burst
    baseline: Measurement | None = None

    def levels(self) -> list[float]:
        """The logarithm of the speed over the baseline's, in each block; empty where one of them failed."""
        measured = self.burst.measurement
        if measured is None or self.baseline is None:
            return []
        pairs = zip(self.baseline.block_seconds, measured.block_seconds, strict=True)
        return [math.log(theirs / own) for theirs, own in pairs]


@dataclass(frozen=True)
class Surface:
    """A recorded surface."""

    header: Header
    records: tuple[Record, ...]


def surface_path(name: str) -> Path:
    """Where a surface lies."""
    return FOLDER / f"{name}.jsonl.gz"


def read_surface(path: Path) -> Surface:
    """A surface, from its file or from an unfinished recording."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        lines = iter(file)
        header = Header.model_validate_json(next(lines))
        return Surface(header, tuple(_records(lines)))


def _records(lines: Iterator[str]) -> Iterator[Record]:
    for line in lines:
        if line.endswith("\n"):  # a recording that was killed may end in half a line
            yield Record.model_validate(json.loads(line))


def loader_part(config: TrainConfig, baseline: TrainConfig) -> TrainConfig:
    """The config whose loader alone does what this config's loader does."""
    knobs = {*affecting("waiting batches"), *going_with("num_workers")}
    return baseline.replace(**{knob: getattr(config, knob) for knob in knobs})


def compute_part(config: TrainConfig) -> TrainConfig:
    """The config whose computing alone does what this config's does."""
    return config.replace(num_workers=0)


def graph_of(config: TrainConfig) -> tuple[Scalar, ...] | None:
    """What decides which code the compiler writes; None when nothing is compiled."""
    if config.compile_mode is None:
        return None
    return config.pick(affecting("compiled code"))
