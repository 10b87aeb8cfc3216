"""The context that all checks share: the machine, and runners of the doctor's workloads, all in one forkserver."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.runner import ProcessRunner
from autotune.hardware import DeviceKind, Gpu, Hardware
from autotune.knobs import Parameters, TrainConfig
from autotune.measuring import Point

START_SECONDS, DEADLINE_SECONDS = 90.0, 90.0
SHORT = BurstPlan(measure_seconds=0.5)


@dataclass
class Clinic:
    """A machine and one of its devices.

    Attributes:
        hardware: The machine.
        device: The device to examine.
    """

    hardware: Hardware
    device: DeviceKind
    _isolation: Isolation | None = field(default=None, init=False)

    @property
    def gpu(self) -> Gpu | None:
        """The device's record, if it is a GPU."""
        record = self.hardware.device(self.device)
        return record if isinstance(record, Gpu) else None

    def runner(self, **caps: Any) -> ProcessRunner:
        """A runner of the workload that a `point` names; its forkserver stays until `close`."""
        if self._isolation is None:
            self._isolation = Isolation("autotune.doctor.workloads:any_of")
            self._isolation.start(START_SECONDS)
        uuid = self.gpu.uuid if self.gpu is not None else None
        return ProcessRunner(self._isolation, self.device, device_uuid=uuid, **caps)

    def close(self) -> None:
        """Ends all processes."""
        isolation, self._isolation = self._isolation, None
        if isolation is not None:
            isolation.close()


def point(workload: str, parameters: Parameters | None = None, **knobs: object) -> Point:
    """A config for one of `workloads`, with arguments of its function."""
    config = TrainConfig.model_validate({"batch_size": 4, **knobs})
    return Point(config=config, parameters={"workload": workload, **(parameters or {})})
