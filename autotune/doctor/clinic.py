"""What checks share: the machine, and runners of the workloads that are examined."""

from __future__ import annotations

from dataclasses import dataclass, field

from autotune.bursts.isolation import Isolation
from autotune.bursts.protocol import BurstPlan
from autotune.bursts.runner import ProcessRunner
from autotune.hardware import DeviceKind, Gpu, Hardware
from autotune.knobs import Parameters, TrainConfig
from autotune.measuring import Point

START_SECONDS, DEADLINE_SECONDS = 90.0, 90.0
SHORT = BurstPlan(warmup_seconds=0.5, measure_seconds=0.5)


@dataclass
class Clinic:
    """A machine and one of its devices.

    Attributes:
        hardware: The machine.
        device: The device that is examined.
    """

    hardware: Hardware
    device: DeviceKind
    _open: dict[str, Isolation] = field(default_factory=dict, init=False)

    @property
    def gpu(self) -> Gpu | None:
        """Its record, if it is a GPU."""
        record = self.hardware.device(self.device)
        return record if isinstance(record, Gpu) else None

    def runner(self, workload: str, **caps: float) -> ProcessRunner:
        """Runs one of `autotune.doctor.patient`; its processes stay until `close`."""
        if workload not in self._open:
            isolation = Isolation(f"autotune.doctor.patient:{workload}")
            self._open[workload] = isolation
            isolation.start(START_SECONDS)
        uuid = self.gpu.uuid if self.gpu is not None else None
        return ProcessRunner(self._open[workload], self.device, device_uuid=uuid, **caps)  # type: ignore[arg-type]

    def close(self) -> None:
        """Ends all processes."""
        while self._open:
            _, isolation = self._open.popitem()
            isolation.close()


def point(parameters: Parameters | None = None, **knobs: object) -> Point:
    """A config of a workload of `patient`, with arguments of its function."""
    return Point(config=TrainConfig.model_validate({"batch_size": 4, **knobs}), parameters=parameters or {})
