"""The context that all checks share: the machine, and runners of the doctor's workloads, all in one forkserver."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.runner import ProcessRunner, look_at_machine
from autotune.hardware import DeviceKind, Gpu, Hardware
from autotune.knobs import Parameters, TrainConfig
from autotune.measuring import Point
from autotune.scripts import Script, ScriptIsolation

Case = tuple[float, float]
"""The time of a step and of reading a batch, in milliseconds."""
START_SECONDS, DEADLINE_SECONDS = 90.0, 90.0
SHORT = BurstPlan(measure_seconds=0.5)
SURE = 2.0
"""Standard errors that two figures may differ by besides a tolerance, since other load makes blocks scatter."""
PEAK_SECONDS, ENDLESS_SECONDS = 1.5, 1e6


@dataclass
class Clinic:
    """A machine and one of its devices.

    Attributes:
        hardware: The machine.
        device: The device to examine.
        length: How long the ten points are measured, as a multiple of the doctor's own time.
    """

    hardware: Hardware
    device: DeviceKind
    length: float = 1.0
    _isolation: Isolation | None = field(default=None, init=False)
    _script: ScriptIsolation | None = field(default=None, init=False)
    _ends: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False)

    @property
    def gpu(self) -> Gpu | None:
        """The device's record, if it is a GPU."""
        record = self.hardware.device(self.device)
        return record if isinstance(record, Gpu) else None

    @property
    def torch_device(self) -> str:
        """The device's name in torch, which calls an AMD GPU by NVIDIA's."""
        return "cuda" if self.device == "rocm" else self.device

    def runner(self, **caps: Any) -> ProcessRunner:
        """A runner of the workload that a `point` names; its forkserver stays until `close`."""
        return ProcessRunner(self._forkserver(), self.device, device_uuid=self._uuid, **caps)

    def script_runner(self, case: Case) -> ProcessRunner:
        """A runner of the plain loop as a script that knows nothing of autotune; it stays until `close`."""
        if self._script is None:
            folder = Path(self._ends.enter_context(tempfile.TemporaryDirectory(prefix="autotune-doctor-")))
            request = json.dumps({"device": self.torch_device, "seconds": ENDLESS_SECONDS, "cases": [case]})
            command = (sys.executable, "-m", "autotune.doctor.workloads", request)
            script = ScriptIsolation(Script(command, writable=(folder,)))
            self._ends.enter_context(script)
            script.start(START_SECONDS)
            self._script = script
        return ProcessRunner(self._script, self.device, device_uuid=self._uuid)

    def peak_rates(self) -> dict[str, float | None]:
        """The device's measured rate of matrix products in each precision, in FLOP/s."""
        seconds = PEAK_SECONDS * self.length
        peaks = look_at_machine(self._forkserver(), START_SECONDS, device=self.device, peak_seconds=seconds).peaks
        return dict(peaks.matmul_flops_per_second) if peaks is not None else {}

    @property
    def _uuid(self) -> str | None:
        return self.gpu.uuid if self.gpu is not None else None

    def _forkserver(self) -> Isolation:
        if self._isolation is None:
            isolation = self._ends.enter_context(Isolation("autotune.doctor.workloads:any_of"))
            isolation.start(START_SECONDS)
            self._isolation = isolation
        return self._isolation

    def close(self) -> None:
        """Ends all processes."""
        self._isolation = self._script = None
        self._ends.close()


def point(workload: str, parameters: Parameters | None = None, **knobs: object) -> Point:
    """A config for one of `workloads`, with arguments of its function."""
    config = TrainConfig.model_validate({"batch_size": 4, **knobs})
    return Point(config=config, parameters={"workload": workload, **(parameters or {})})
