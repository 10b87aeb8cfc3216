"""NVIDIA cards through NVML: their figures, what fails one by one, who else is there, slices."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pynvml
import pytest

from autotune.hardware.model import Gpu
from autotune.hardware.nvidia import gpu_precisions, read_gpus
from tests.hardware.readings import (
    MIB,
    NO_ENVIRONMENT,
    CardSpec,
    FakeNvml,
    gtx_1070,
    gtx_1660_ti,
    partitioned_a100,
    rtx_3060,
    rtx_4070,
)


def read(*cards: CardSpec, **environ: str) -> tuple[tuple[Gpu, ...], dict[str, str]]:
    """What is read of these cards, and what is not."""
    unread: dict[str, str] = {}
    return read_gpus(FakeNvml(*cards), unread, environ=environ), unread


def test_fake_has_only_calls_that_nvml_has() -> None:
    """The stand-in cannot drift away from the real module."""
    made_up = {name for name in vars(FakeNvml) if name.lower().startswith("nvml")} - set(dir(pynvml))
    assert made_up == set()


def test_all_figures_of_a_card() -> None:
    """A desktop card tells everything, in base units."""
    (gpu,), unread = read(rtx_4070())
    assert gpu == Gpu(
        kind="cuda",
        index=0,
        name="NVIDIA GeForce RTX 4070",
        uuid="GPU-40700000-0000",
        memory_total_bytes=12282 * MIB,
        memory_free_bytes=11982 * MIB,
        compute_capability=(8, 9),
        precisions=("fp32", "tf32", "bf16", "fp16"),
        precision_reason=gpu.precision_reason,
        driver="550.54.15",
        cuda="12.4",
        power_limit_watts=200.0,
        power_watts=20.0,
        sm_clock_mhz=210,
        sm_clock_max_mhz=3105,
        memory_clock_mhz=10501,
        temperature_celsius=41,
        utilization_fraction=0.07,
        mig=False,
    )
    assert unread.keys() == {"gpus.0.sm_count", "gpus.0.attention"}


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ("nvmlDeviceGetMemoryInfo", "memory_total_bytes"),
        ("nvmlDeviceGetMemoryInfo", "memory_free_bytes"),
        ("nvmlDeviceGetCudaComputeCapability", "compute_capability"),
        ("nvmlDeviceGetEnforcedPowerLimit", "power_limit_watts"),
        ("nvmlDeviceGetPowerUsage", "power_watts"),
        ("nvmlDeviceGetClockInfo", "sm_clock_mhz"),
        ("nvmlDeviceGetClockInfo", "memory_clock_mhz"),
        ("nvmlDeviceGetMaxClockInfo", "sm_clock_max_mhz"),
        ("nvmlDeviceGetTemperature", "temperature_celsius"),
        ("nvmlDeviceGetUtilizationRates", "utilization_fraction"),
        ("nvmlDeviceGetUUID", "uuid"),
    ],
)
def test_call_that_fails_costs_its_own_figure_only(call: str, field: str) -> None:
    """It is None with NVML's reason, and the rest of the card is read."""
    card = rtx_4070()
    card.fails = {call: pynvml.NVML_ERROR_NOT_SUPPORTED}
    (gpu,), unread = read(card)
    assert getattr(gpu, field) is None
    assert unread[f"gpus.0.{field}"] == "NVML: Not Supported"
    assert gpu.name == "NVIDIA GeForce RTX 4070"


def test_older_bindings_lack_calls() -> None:
    """A call that the installed nvidia-ml-py does not have is as good as one that fails."""
    nvml = FakeNvml(rtx_4070())
    without = {name: getattr(nvml, name) for name in dir(nvml) if name.startswith(("nvml", "NVML"))}
    del without["nvmlSystemGetCudaDriverVersion_v2"]
    unread: dict[str, str] = {}
    (gpu,) = read_gpus(SimpleNamespace(**without), unread, environ=NO_ENVIRONMENT)
    assert gpu.cuda is None
    assert "nvmlSystemGetCudaDriverVersion_v2" in unread["gpus.0.cuda"]


def test_newer_temperature_call_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The older one goes away in CUDA 14."""
    monkeypatch.setattr(FakeNvml, "nvmlDeviceGetTemperatureV", lambda *_: 55)
    card = rtx_4070()
    card.fails = {"nvmlDeviceGetTemperature": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}
    (gpu,), unread = read(card)
    assert gpu.temperature_celsius == 55
    assert unread.keys() == {"gpus.0.sm_count", "gpus.0.attention"}


def test_machine_without_a_driver() -> None:
    """No GPU is no error: an empty tuple, and the driver's reason."""
    unread: dict[str, str] = {}
    nvml = FakeNvml(init_error=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    assert read_gpus(nvml, unread, environ=NO_ENVIRONMENT) == ()
    assert unread == {"gpus": "no NVIDIA driver answers (NVML: NVML Shared Library Not Found)"}


def test_nvml_is_closed_again() -> None:
    """Whatever was read, the library is released."""
    nvml = FakeNvml(rtx_4070())
    read_gpus(nvml, {}, environ=NO_ENVIRONMENT)
    assert nvml.open == 0


def test_card_that_fell_off_the_bus_does_not_hide_the_others() -> None:
    """It is named with its reason, and the next card keeps being read."""
    lost = rtx_3060()
    lost.fails = {"nvmlDeviceGetHandleByIndex": pynvml.NVML_ERROR_GPU_IS_LOST}
    gpus, unread = read(lost, rtx_4070())
    assert [gpu.name for gpu in gpus] == ["NVIDIA GeForce RTX 4070"]
    assert "GPU is lost" in unread["gpus.bus.0"]


def test_processes_of_this_user_are_listed_and_this_run_is_not() -> None:
    """Each has its name; a process that is gone is counted."""
    card = rtx_4070()
    card.computing = ((os.getpid(), 500 * MIB), (os.getppid(), None))
    card.displaying = ((999_999_999, None),)
    (gpu,), unread = read(card)
    assert [(process.pid, process.memory_bytes) for process in gpu.processes] == [(os.getppid(), None)]
    assert gpu.processes[0].name
    assert gpu.others_processes == 1
    assert set(unread) == {"gpus.0.sm_count", "gpus.0.attention", "gpus.0.processes.0.memory_bytes"}


@pytest.mark.skipif(sys.platform == "win32", reason="another user's process is started by its number")
def test_processes_of_other_users_are_counted_without_names() -> None:
    """Neither their names nor their numbers are stored."""
    pid = 1
    if os.getuid() == 0:  # then process 1 is this user's own: another user's is started, by a shell that ends
        words = ["sh", "-c", "sleep 60 >&2 & echo $!"]
        pid = int(subprocess.run(words, user=65534, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
    card = rtx_4070()
    card.computing = ((pid, MIB),)
    try:
        (gpu,), _ = read(card)
    finally:
        if pid != 1:
            os.kill(pid, signal.SIGKILL)
    assert (gpu.processes, gpu.others_processes) == ((), 1)


def test_own_process_is_left_out_by_default() -> None:
    """This process and its children do not count as others."""
    card = rtx_4070()
    card.computing = ((os.getpid(), MIB),)
    (gpu,) = read_gpus(FakeNvml(card), {}, environ=NO_ENVIRONMENT)
    assert gpu.processes == ()


def test_slice_has_its_own_memory_and_processors() -> None:
    """Power and clocks are the whole card's; utilisation is not told of a slice."""
    (gpu,), unread = read(partitioned_a100())
    assert gpu.mig is True
    assert gpu.uuid == "MIG-30000000-0000"
    assert gpu.name == "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    assert gpu.memory_total_bytes == 20096 * MIB
    assert gpu.power_limit_watts == 400.0
    assert gpu.compute_capability == (8, 0)
    assert set(unread) == {"gpus.0.sm_count", "gpus.0.attention", "gpus.0.utilization_fraction"}


@pytest.mark.parametrize("card", [gtx_1070(), gtx_1660_ti()], ids=lambda card: card.name)
def test_no_tensor_cores_no_claims(card: CardSpec) -> None:
    """Neither Pascal nor the GTX 16 series gets fp16, although the latter has the RTX 20's number."""
    (gpu,), _ = read(card)
    assert gpu.precisions == ("fp32",)
    assert "no tensor cores" in gpu.precision_reason


@pytest.mark.parametrize(
    ("name", "capability", "precisions"),
    [
        ("NVIDIA GeForce RTX 2070", (7, 5), ("fp32", "fp16")),
        ("Tesla T4", (7, 5), ("fp32", "fp16")),
        ("Tesla V100-SXM2-16GB", (7, 0), ("fp32", "fp16")),
        ("NVIDIA T1000 8GB", (7, 5), ("fp32",)),
        ("NVIDIA GeForce MX450", (7, 5), ("fp32",)),
        ("Tesla P100-PCIE-16GB", (6, 0), ("fp32",)),
        ("NVIDIA H100 80GB HBM3", (9, 0), ("fp32", "tf32", "bf16", "fp16")),
        ("NVIDIA RTX 2000 Ada Generation", (8, 9), ("fp32", "tf32", "bf16", "fp16")),
        ("a card that does not tell", None, ("fp32",)),
    ],
)
def test_precisions_by_capability(name: str, capability: tuple[int, int] | None, precisions: tuple[str, ...]) -> None:
    """tf32 and bf16 from 8.0, fp16 from 7.0 where there are tensor cores; each with a reason."""
    found, reason = gpu_precisions(name, capability)
    assert found == precisions
    assert reason
