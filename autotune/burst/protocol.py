"""What crosses the process boundary: one request to a child, and its lines of JSON back.

A child writes lines ``{"event": ...}``: ``phase`` as it gets on, and in the end one of ``result``, ``failure``
(an outcome other than ok) or ``error`` (the workload itself is wrong). Neither side imports torch for this.
"""

from __future__ import annotations

import json
import os
from typing import Any, BinaryIO, Literal

from pydantic import BaseModel, ConfigDict, Field

from autotune.errors import AutotuneError, ConfigError, TargetError, WorkloadError
from autotune.hardware.model import DeviceKind
from autotune.measurement import Outcome, Point

REPORTED_ERRORS: dict[str, type[AutotuneError]] = {
    error.__name__: error for error in (ConfigError, TargetError, WorkloadError)
}


class BurstPlan(BaseModel):
    """How long a burst may take, and when its figures are good enough."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    warmup_seconds: float = Field(default=3.0, gt=0, description="cap on warm-up, compiling apart")
    measure_seconds: float = Field(default=3.0, gt=0, description="cap on the timed blocks")
    block_seconds: float = Field(default=0.15, gt=0, description="a block is whole steps that take about this")
    min_blocks: int = Field(default=8, ge=2)
    interval_target: float = Field(default=0.015, gt=0, description="stop at ± this share of the median")
    steady_tolerance: float = Field(default=0.03, gt=0, description="two successive blocks agree within this")
    incumbent_rate: float | None = Field(
        default=None, description="samples/s reached before: a burst that stays far below stops early"
    )
    feed: Literal["loader", "device"] = Field(
        default="loader", description="device: a few batches kept on the device, for the compute ceiling"
    )


class Request(BaseModel):
    """One job for a child process."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    job: Literal["probe", "check", "burst"]
    target: str = ""
    device: DeviceKind | None = None
    point: Point | None = None
    parameter_names: tuple[str, ...] = Field(default=(), description="arguments that build() will be asked to take")
    plan: BurstPlan = BurstPlan()
    peak_seconds: float = Field(default=1.5, description="what measuring the machine's peaks may take")
    seed: int = 0
    asked_at: float = Field(default=0.0, description="time.time() of the request, for what starting costs")
    device_uuid: str | None = Field(default=None, description="of the NVIDIA GPU to watch, as NVML writes it")
    largest_samples: tuple[int, ...] = Field(default=(), description="indices for the worst batch, largest first")
    memory_limit_bytes: int | None = Field(default=None, description="more than this ends the burst as oom")
    memory_fraction: float | None = Field(default=None, description="of the GPU's memory, as a cap")


class Reporter:
    """The child's end of the pipe: writes one line of JSON an event."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def send(self, event: str, **content: Any) -> None:
        """Writes one event and flushes it."""
        self._stream.write(json.dumps({"event": event, **content}).encode() + b"\n")
        self._stream.flush()

    def send_after_others(self, event: str, **content: Any) -> None:
        """Like `send`, where another process may have died in the middle of its line."""
        self._stream.write(b"\n")
        self.send(event, **content)

    def phase(self, name: str) -> None:
        """Tells how far the burst has come."""
        self.send("phase", phase=name)

    def failure(self, outcome: Outcome, reason: str) -> None:
        """Tells an outcome other than ok."""
        self.send("failure", outcome=outcome.value, reason=reason[:2000])

    def error(self, error: AutotuneError) -> None:
        """Tells that the workload itself is wrong."""
        self.send("error", kind=type(error).__name__, message=str(error), trace=getattr(error, "trace", None))


def claim_stdio() -> tuple[BinaryIO, BinaryIO]:
    """Takes standard input and output for the protocol: (requests, events).

    Whatever the user's code prints goes to standard error from here on, and it reads an empty standard input,
    so that it can neither break a line of the protocol nor swallow a request.
    """
    requests = os.fdopen(os.dup(0), "rb")
    events = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, events


def raise_reported(message: dict[str, Any]) -> None:
    """Raises in the parent what a child reported by `Reporter.error`."""
    kind = REPORTED_ERRORS.get(message["kind"], WorkloadError)
    if kind is WorkloadError:
        raise WorkloadError(message["message"], message.get("trace"))
    raise kind(message["message"])
