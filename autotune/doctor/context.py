"""The context that all checks share: the machine, runners of the doctor's workloads, and a plain loop to compare with.

Most of an examination would be waiting for processes that import torch. So the forkserver that looked at the machine
serves all checks, the plain loop and the look at a script begin before they are needed, and checks whose time does not
matter run beside each other.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.runner import ProcessRunner, look_at_machine
from autotune.hardware import DeviceKind, Gpu, Hardware
from autotune.knobs import Parameters, TrainConfig
from autotune.measuring import Point
from autotune.sandbox.system import WINDOWS
from autotune.scripts import Script, ScriptIsolation

Case = tuple[float, float]
"""The time of a step and of reading a batch, in milliseconds."""
START_SECONDS, DEADLINE_SECONDS = 90.0, 90.0
SHORT = BurstPlan(measure_seconds=0.5)
SURE = 2.0
"""Standard errors that two figures may differ by besides a tolerance, since other load makes blocks scatter."""
PEAK_SECONDS, ENDLESS_SECONDS = 1.5, 1e6
WORKLOADS = "autotune.doctor.workloads"
TARGET = f"{WORKLOADS}:any_of"
SCRIPT: Case = (100.0, 40.0)
"""The step and the batch, in ms, of the loop that runs as a script."""
PLAIN_SECONDS = 120.0
"""The longest time for the plain loop's answer. Not tuned."""
MOST_BESIDE, CPUS_EACH = 6, 2
"""The most jobs beside each other, and the CPUs for each: they compile. Not tuned."""
Answer = TypeVar("Answer")


@dataclass
class Clinic:
    """A machine and the device to examine."""

    hardware: Hardware
    device: DeviceKind
    length: float = 1.0  # how long the ten points are measured, as a multiple of the doctor's own time
    isolation: Isolation | None = None  # a forkserver of `TARGET` that has started; None starts one when needed
    _ends: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False)
    _plain: subprocess.Popen[str] | None = field(default=None, init=False)
    _script: Future[ScriptIsolation] | None = field(default=None, init=False)
    _crew: ThreadPoolExecutor | None = field(default=None, init=False)
    _own: threading.local = field(default_factory=threading.local, init=False)

    @property
    def gpu(self) -> Gpu | None:
        """The device's record, if it is a GPU."""
        record = self.hardware.device(self.device)
        return record if isinstance(record, Gpu) else None

    @property
    def torch_device(self) -> str:
        """The device's name in torch, which calls an AMD GPU by NVIDIA's."""
        return "cuda" if self.device == "rocm" else self.device

    def begin(self) -> None:
        """Starts what takes long to start, beside the first checks."""
        self._plain_loop()
        if not WINDOWS:
            self._looked_at_script()

    def runner(self, **caps: Any) -> ProcessRunner:
        """A runner of the workload that a `point` names; its forkserver stays until `close`."""
        return ProcessRunner(self._forkserver(), self.device, device_uuid=self._uuid, **caps)

    def script_runner(self) -> ProcessRunner:
        """A runner of the plain loop as a script that knows nothing of autotune; it stays until `close`."""
        return ProcessRunner(self._looked_at_script().result(), self.device, device_uuid=self._uuid)

    def plain_rates(self, cases: Sequence[Case], seconds: float) -> list[float]:
        """The rates of cases in a plain loop, in a process that knows nothing of bursts, in samples per second.

        Raises:
            SubprocessError: It ended, or took too long.
        """
        process = self._plain_loop()
        assert process.stdin is not None  # noqa: S101 - both are pipes
        assert process.stdout is not None  # noqa: S101
        late = threading.Timer(PLAIN_SECONDS, process.kill)
        late.start()
        try:
            process.stdin.write(self._request(cases, seconds) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        finally:
            late.cancel()
        if not line:
            raise subprocess.SubprocessError(f"the plain loop ended with status {process.wait()}")
        rates: list[float] = json.loads(line)
        return rates

    def together(self, jobs: Sequence[Callable[[], Answer]]) -> list[Answer]:
        """Runs jobs whose time does not matter, beside each other where there are CPUs for that.

        `runner` gives each thread a forkserver of its own.
        """
        beside = min(MOST_BESIDE, len(jobs), self.hardware.cpu.budget // CPUS_EACH)
        if beside < 2:
            return [job() for job in jobs]
        if self._crew is None:  # its threads stay: a process may end with the thread that started it
            self._crew = ThreadPoolExecutor(beside)
            self._ends.callback(self._crew.shutdown)
        return list(self._crew.map(lambda job: job(), jobs))

    def peak_rates(self) -> dict[str, float | None]:
        """The device's measured rate of matrix products in each precision, in FLOP/s."""
        seconds = PEAK_SECONDS * self.length
        peaks = look_at_machine(self._forkserver(), START_SECONDS, device=self.device, peak_seconds=seconds).peaks
        return dict(peaks.matmul_flops_per_second) if peaks is not None else {}

    @property
    def _uuid(self) -> str | None:
        return self.gpu.uuid if self.gpu is not None else None

    def _forkserver(self) -> Isolation:
        if self.isolation is not None and threading.current_thread() is threading.main_thread():
            return self.isolation
        if not hasattr(self._own, "isolation"):
            isolation = self._ends.enter_context(Isolation(TARGET))
            isolation.start(START_SECONDS)
            self._own.isolation = isolation
        own: Isolation = self._own.isolation
        return own

    def _plain_loop(self) -> subprocess.Popen[str]:
        if self._plain is None:
            command = [sys.executable, "-m", WORKLOADS]
            pipe = subprocess.PIPE
            self._plain = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
            self._ends.callback(self._plain.communicate)
            self._ends.callback(self._plain.kill)
        return self._plain

    def _looked_at_script(self) -> Future[ScriptIsolation]:
        if self._script is None:
            folder = Path(self._ends.enter_context(tempfile.TemporaryDirectory(prefix="autotune-doctor-")))
            request = self._request([SCRIPT], ENDLESS_SECONDS)
            script = ScriptIsolation(Script((sys.executable, "-m", WORKLOADS, request), writable=(folder,)))
            self._ends.enter_context(script)
            looking = self._ends.enter_context(ThreadPoolExecutor(1))
            self._ends.callback(script.interrupt)
            self._script = looking.submit(self._look, script)
        return self._script

    @staticmethod
    def _look(script: ScriptIsolation) -> ScriptIsolation:
        script.start(START_SECONDS)
        return script

    def _request(self, cases: Sequence[Case], seconds: float) -> str:
        return json.dumps({"device": self.torch_device, "seconds": seconds, "cases": cases})

    def close(self) -> None:
        """Ends all processes."""
        self._plain = self._script = self._crew = None
        self._own = threading.local()
        self._ends.close()


def point(workload: str, parameters: Parameters | None = None, **knobs: object) -> Point:
    """A config for one of `workloads`, with arguments of its function."""
    config = TrainConfig.model_validate({"batch_size": 4, **knobs})
    return Point(config=config, parameters={"workload": workload, **(parameters or {})})
