"""What crosses the pipe between the parent and its children."""

from __future__ import annotations

from autotune.bursts.hosts.protocol import Request
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
