"""How long a step's launches and its kernels take, on a simulated device: no kernel that sleeps is a long one."""

from __future__ import annotations

import pytest
import torch

from autotune.bursts.jobs import look_job
from tests.simulated_device import Device


class Queued:
    """An event that is recorded later, as CUDA's are."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def record(self) -> None:
        """Behind all that was launched."""
        self._event = self._device.event()

    def synchronize(self) -> None:
        """Waits for all of it."""
        self._device.synchronize()

    def elapsed_time(self, later: Queued) -> float:
        """In milliseconds."""
        return self._event.elapsed_time(later._event)


def test_a_long_sleep_is_several_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watchdog ends kernels of two seconds; slow steps need a sleep as long."""
    device, slept = Device(), list[float]()

    def sleep(cycles: int) -> None:
        slept.append(cycles / look_job.CYCLES_PER_SECOND)
        device.launch(slept[-1])

    def step(_: None) -> None:
        device.host(0.3)
        device.launch(0.6)

    monkeypatch.setattr(torch.cuda, "_sleep", sleep, raising=False)
    monkeypatch.setattr(torch.cuda, "synchronize", device.synchronize)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: Queued(device))
    monkeypatch.setattr(look_job, "perf_counter", lambda: device.now)
    pace = look_job.pace_of(step, torch.device("cuda"), lambda: device.host(0.4))
    assert pace["step_seconds"] == pytest.approx(0.6, rel=0.2)
    assert pace["device_busy_fraction"] == 1.0
    assert max(slept) <= 0.1
    assert sum(slept) / look_job.REPEATS > 1.0
