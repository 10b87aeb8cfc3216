"""The messages between processes: one request to a child, and its answer in lines of JSON.

A child writes lines ``{"event": ...}``: ``phase`` for its progress, and in the end one of ``result``, ``failure``
(an outcome other than ok) or ``error`` (the workload itself is wrong). A host, which trains on command, also writes
``ready``, ``block``, ``report`` and ``out``, each about one of its players. The forkserver writes ``torch``, ``ready``,
``started`` and ``exit``. Neither side imports torch for this.
"""

from __future__ import annotations

import math
import os
from json import dumps, loads  # by name: the user's module may replace what `json` holds
from typing import Any, BinaryIO, Literal

from pydantic import BaseModel, ConfigDict, Field

from autotune.errors import AutotuneError, ConfigError, TargetError, WorkloadError
from autotune.hardware import DeviceKind
from autotune.knobs import Scalar, TrainConfig
from autotune.measuring import Outcome, Point
from autotune.timing.wire import Reporter

PIPE_LOST_STATUS = 86
"""Exit status of a child whose pipe to the parent was closed by the user's code."""
REPORTED_ERRORS: dict[str, type[AutotuneError]] = {
    error.__name__: error for error in (ConfigError, TargetError, WorkloadError)
}


Part = Literal["all", "compute", "loader", "evaluation"]
"""Training as it is; on a few batches that stay on the device; only the loader, without training; or forward passes
alone, as in an evaluation."""


GOLDEN = (math.sqrt(5) - 1) / 2


class BurstPlan(BaseModel):
    """How long a burst may take, and when its figures are good enough."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    measure_seconds: float = Field(default=3.0, gt=0, description="cap on the timed blocks")
    turn_seconds: float | None = Field(
        default=None, gt=0, description="approximate length of a player's turn; what suits the device when None"
    )
    fastest_wins: bool = Field(
        default=True, description="whether the faster config is the better one: only then may a duet end early"
    )
    part: Part = Field(default="all", description="the part of training that runs; for a ceiling, one part alone")
    frees: bool = Field(
        default=False, description="whether a player frees the device memory that it does not use before others play"
    )
    epoch_share: float = Field(
        default=0.0, ge=0, lt=1, description="share of an epoch before the timed part; 0 where epochs are short"
    )

    def of_round(self, number: int) -> BurstPlan:
        """The plan of one of several rounds, which begin at places all over an epoch.

        So a claim covers the whole epoch even if the work is not uniform, as when data have their own order. The
        fractional parts of the golden section's multiples are spread evenly from the first few on (Weyl, 1916). This
        has no effect where the place cannot be chosen: in iterable data, and with a script's own batches or iterator.
        """
        return self.model_copy(update={"epoch_share": number * GOLDEN % 1})


class Request(BaseModel):
    """One job for a child process."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    job: Literal["probe", "check", "host", "numerics", "profile", "communication"]
    number: int = Field(default=0, description="number of the job, which its events carry")
    target: str = ""
    import_as: str = Field(default="", description="the target with its path made absolute")
    device: DeviceKind | None = None
    point: Point = Point(config=TrainConfig())
    explored: dict[str, tuple[Scalar, ...]] = Field(default={}, description="values that build() must accept")
    plan: BurstPlan = BurstPlan()
    halvings: int = Field(default=0, ge=0, description="how often a check halves its batch, for want of memory")
    steps: int = Field(default=20, ge=1, description="optimizer steps of a numerics check")
    losses_alone: bool = Field(default=False, description="for a script: one run, to compare losses bit by bit")
    peak_seconds: float = Field(default=0.0, description="time for measuring the machine's peaks; 0 measures none")
    seed: int = 0
    asked_at: float = Field(default=0.0, description="time.time() of the request, to time the start")
    device_uuid: str | None = Field(default=None, description="UUID of the NVIDIA GPU to watch, as NVML writes it")
    sample_wait_fraction: float = Field(
        default=1.0, ge=0, le=1, description="share of reading a sample that is waiting"
    )
    largest_samples: tuple[int, ...] = Field(default=(), description="indices for the worst batch, largest first")
    memory_limit_bytes: int | None = Field(default=None, description="using more ends the burst as oom")
    memory_fraction: float | None = Field(default=None, description="cap, as a share of the GPU's memory")
    steady_malloc: bool = Field(
        default=False,
        description="whether glibc keeps freed memory, whatever the config says: players then do not "
        "change each other's page faults (benchmarks.host_history)",
    )

    def to_line(self) -> str:
        """The request as a line: a path may hold bytes that are no UTF-8, which only ``dumps`` keeps as they are."""
        return dumps(self.model_dump(mode="json"))

    @classmethod
    def from_line(cls, line: str | bytes) -> Request:
        """Reads a line that `to_line` made."""
        return cls.model_validate(loads(line))

    @property
    def ranks(self) -> int:
        """How many processes run the job together."""
        return self.point.config.ranks if self.job in {"host", "communication", "numerics"} else 1

    @property
    def out_of_memory(self) -> Outcome:
        """The outcome where host memory runs out: beside a GPU, it is not the GPU's memory that is short."""
        return Outcome.OOM if self.device in {None, "cpu"} else Outcome.HOST_OOM

    @property
    def importable(self) -> str:
        """The target as it is found from any working directory."""
        return self.import_as or self.target


class PipeLostError(Exception):
    """The user's code closed the pipe to the parent."""


class PipeReporter(Reporter):
    """The child's end of the pipe.

    Args:
        number: Of the job.
        out_of_memory: The outcome where host memory runs out.
    """

    def __init__(self, stream: BinaryIO, number: int = 0, out_of_memory: Outcome = Outcome.OOM) -> None:
        def write(line: bytes) -> None:
            try:
                stream.write(line)
                stream.flush()
            except (OSError, ValueError) as error:
                raise PipeLostError from error

        super().__init__(write, number)
        # Made in advance: when memory has run out, none may be left to make it.
        self._out_of_memory = self._line("failure", outcome=out_of_memory.value, reason="MemoryError: nothing was left")

    def out_of_memory(self) -> None:
        """Reports that host memory has run out, without taking any."""
        self.pass_on(self._out_of_memory)

    def error(self, error: AutotuneError, *, out_of_memory: bool = False) -> None:
        """Reports that the workload itself is wrong, or that checking it ran out of memory."""
        trace = getattr(error, "trace", None)
        self.send("error", kind=type(error).__name__, message=str(error), trace=trace, out_of_memory=out_of_memory)


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
