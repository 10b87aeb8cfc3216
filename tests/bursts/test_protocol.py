"""What crosses the pipe between the parent and its children."""

from __future__ import annotations

import io
import json

import pytest

from autotune.bursts.hosts.protocol import PipeReporter, Request
from autotune.hardware import DeviceKind
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Point


def test_a_path_that_is_no_unicode_arrives_as_it_is() -> None:
    """A folder named in Latin-1 holds workloads too; the line itself is ASCII."""
    target = "/caf\udce9/train.py:build"
    point = Point(config=TrainConfig(batch_size=8), parameters={"data": target})
    request = Request(job="host", target=target, import_as=target, point=point, largest_samples=(1, 2))
    line = request.to_line()
    assert line.isascii()
    assert Request.from_line(line) == request
    assert Request.from_line(line.encode()) == request


@pytest.mark.parametrize(("device", "outcome"), [("cpu", "oom"), (None, "oom"), ("cuda", "host_oom")])
def test_host_memory_that_runs_out_beside_a_gpu_is_not_the_gpus(device: DeviceKind | None, outcome: str) -> None:
    """The line that says so is made before, when there is memory for it."""
    request, written = Request(job="host", device=device), io.BytesIO()
    PipeReporter(written, request.number, request.out_of_memory).out_of_memory()
    assert json.loads(written.getvalue())["outcome"] == outcome
