"""A script on a machine of four made-up GPUs uses those that it asks for, and its result names them."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from autotune.errors import UsageError
from autotune.hardware.model import Peaks
from autotune.measuring.progress import Progress
from autotune.scripts import ScriptIsolation
from autotune.scripts.facts import as_trained, facts_of, record_of
from autotune.scripts.seen import SeenScript
from autotune.search.stopping import Budget
from autotune.sessions.options import Options
from autotune.sessions.tuning import Tuning
from autotune.sessions.tuning_result import Setting
from autotune.stored import DeviceKind
from tests.bursts.test_telemetry import FakeNvml as FakeDriver
from tests.example_scripts import EXAMPLES, START_SECONDS, alone, script
from tests.hardware.readings import FakeNvml, HostSpec, hardware_of, rtx_2070, rtx_4070
from tests.processes import slowness

ALL = tuple(f"GPU-40700000-000{number}" for number in range(4))
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4")


@pytest.mark.parametrize(
    ("command", "gpus"),
    [
        pytest.param(
            (*TORCHRUN, str(EXAMPLES / "on_four_gpus.py")),
            tuple((uuid,) for uuid in ALL),
            id="torchrun",
            marks=pytest.mark.slow,
        ),
        pytest.param((sys.executable, str(EXAMPLES / "on_four_gpus.py"), "spread"), (ALL,), id="one process for all"),
    ],
)
def test_a_script_gets_the_gpus_that_it_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], gpus: tuple[tuple[str, ...], ...]
) -> None:
    """No GPU is hidden from it; each rank's UUIDs are in the result."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    cards = [rtx_4070() for _ in ALL]
    for card, uuid in zip(cards, ALL, strict=True):
        card.uuid = uuid
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(*cards))
    options = Options(target="on four GPUs", script=command)
    with Tuning(options, Progress(), Budget(400 * slowness()))._opened() as isolation:
        assert "CUDA_VISIBLE_DEVICES" not in os.environ
        assert isinstance(isolation, ScriptIsolation)
        seen = isolation.seen
    facts = facts_of(seen, script("on_four_gpus"))
    setting = Setting(options, hardware_of(HostSpec()), "cuda", facts, seen=seen, script=record_of(command, seen))
    assert setting.script is not None
    assert setting.script.gpus == gpus


def test_the_gpus_that_train_stand_for_the_machine() -> None:
    """A script on the second card is not judged by the memory of the first; what could not be read moves along."""
    machine = hardware_of(HostSpec(), rtx_4070(), rtx_2070())
    machine = machine.model_copy(update={"unread": {"gpus.1.power_watts": "unknown", "peaks": "not measured"}})
    led = machine.led_by([rtx_2070().uuid])
    assert [gpu.name for gpu in led.gpus] == [rtx_2070().name, rtx_4070().name]
    assert led.device("cuda") == machine.gpus[1]
    assert led.unread == {"gpus.0.power_watts": "unknown", "peaks": "not measured"}


@pytest.mark.parametrize(("devices", "device"), [(("cuda", "cpu"), "cuda"), (("rocm", "cpu"), "rocm")])
def test_a_machine_is_taken_as_the_script_uses_it(
    devices: tuple[str, ...], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its GPUs, its torch and its device; another device is refused."""
    machine = hardware_of(HostSpec(), rtx_4070(), rtx_2070())
    monkeypatch.setattr(type(machine), "devices", devices)
    machine = machine.model_copy(update={"peaks": Peaks(memory_bytes_per_second=1e11)})
    own = SimpleNamespace(device="cuda", used_gpus=[rtx_2070().uuid], source={"here": {"torch": "2.9.0+cu126"}})
    seen = cast("SeenScript", own)
    found, kind = as_trained(machine, seen, None)
    assert (kind, found.gpus[0].name, found.software.torch) == (device, rtx_2070().name, "2.9.0+cu126")
    assert found.peaks is None
    assert "measured on NVIDIA GeForce RTX 4070" in found.unread["peaks"]
    own.used_gpus = [rtx_4070().uuid]
    assert as_trained(machine, seen, cast("DeviceKind", device))[0].peaks == machine.peaks
    with pytest.raises(UsageError, match="--device: the script trains on cuda, got cpu; leave it out"):
        as_trained(machine, seen, "cpu")


@pytest.mark.slow
def test_all_gpus_of_a_script_are_watched_while_it_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From outside its processes, block by block: what held a clock down counts, and power adds up."""
    monkeypatch.chdir(tmp_path)
    nvml = FakeDriver()
    nvml.clocks = itertools.cycle([1800, 1900])
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    with ScriptIsolation(script("on_four_gpus", "spread")) as isolation:
        isolation.start(START_SECONDS)
        burst = alone(isolation)
    assert burst.measurement is not None, burst.reason
    telemetry = burst.measurement.telemetry
    assert telemetry is not None
    assert (telemetry.temperature_celsius, telemetry.power_watts) == (71, 4 * 250)
    assert telemetry.clock_limits == ("hw_thermal_slowdown", "sw_power_cap")
