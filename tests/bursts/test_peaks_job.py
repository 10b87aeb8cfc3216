"""What torch reports of this machine, and the rates that it measures: in form and order, never in speed."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.bursts.jobs import peaks_job as peaks
from autotune.errors import ConfigError
from autotune.hardware import UNUSABLE, merge, probe_host
from autotune.hardware.host import read_cpu
from autotune.hardware.model import Gpu, Peaks

SHORT = 0.05


@pytest.fixture(scope="module")
def cpu_report() -> dict[str, Any]:
    """A short report of the CPU, as it comes out of the pipe."""
    decoded: dict[str, Any] = json.loads(json.dumps(peaks.report("cpu", SHORT)))
    return decoded


def test_every_precision_of_the_cpu_is_measured(cpu_report: dict[str, Any]) -> None:
    """Just those worth using, each with a rate."""
    measured = cpu_report["peaks"]["matmul_flops_per_second"]
    assert tuple(measured) == read_cpu({}).precisions
    assert all(rate > 0 for rate in measured.values())


def test_memory_bandwidth_is_measured(cpu_report: dict[str, Any]) -> None:
    """A copy takes time, so the rate is finite and positive."""
    assert 0 < cpu_report["peaks"]["memory_bytes_per_second"] < float("inf")


def test_copies_to_the_device_are_measured_on_gpus_only(cpu_report: dict[str, Any]) -> None:
    """On the CPU that is null, with a reason."""
    assert cpu_report["peaks"]["host_to_device_bytes_per_second"] is None
    assert cpu_report["unread"]["peaks.host_to_device_bytes_per_second"]


def test_versions_are_those_of_torch(cpu_report: dict[str, Any]) -> None:
    """They come from torch itself."""
    assert (cpu_report["torch"], cpu_report["cuda"]) == (torch.__version__, torch.version.cuda)


def test_report_fits_into_the_record(cpu_report: dict[str, Any]) -> None:
    """Merged into the host's facts, the peaks and the version are there."""
    merged = merge(probe_host(), cpu_report)
    assert merged.peaks == Peaks.model_validate(cpu_report["peaks"])
    assert merged.software.torch == torch.__version__


class Clock:
    """A clock that only work moves: each unit of size takes a hundredth of a second.

    Args:
        loading: Seconds in which the first work of each size loads its kernels, and the first preparation its own.
    """

    def __init__(self, loading: float = 0.0) -> None:
        self.now = 0.0
        self.prepared: list[int] = []
        self._loading = loading
        self._loaded = {0}

    def prepare(self, size: int) -> Callable[[], object]:
        """Notes the size, and gives the work."""
        self.now += 0.0 if self.prepared else self._loading
        self.prepared.append(size)
        return lambda: self.work(size)

    def work(self, size: int) -> None:
        """Takes its time."""
        self.now += size / 100 + (self._loading if size not in self._loaded else 0.0)
        self._loaded.add(size)


@pytest.mark.parametrize(
    ("seconds", "sizes"), [(0.001, [1]), (0.04, [1]), (0.1, [1, 2]), (1.0, [1, 2, 4, 8]), (9.0, [1, 2, 4, 8])]
)
def test_size_grows_as_far_as_the_time_allows(
    monkeypatch: pytest.MonkeyPatch, seconds: float, sizes: list[int]
) -> None:
    """The next size is tried only when it fits, and the smallest one always."""
    clock = Clock()
    monkeypatch.setattr(peaks.time, "perf_counter", lambda: clock.now)
    meter = peaks._Meter("cpu", torch.device("cpu"))
    rate = meter._rate(clock.prepare, float, [1, 2, 4, 8], seconds)
    assert clock.prepared == [1, *sizes]  # the first call of all opens libraries
    assert rate == pytest.approx(100.0)
    assert clock.now <= max(seconds, 0.02) + 0.02


def test_loading_kernels_takes_none_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an H100 whose disk was cold, bf16 was measured in its smallest products only, at a sixth of its rate."""
    clock = Clock(loading=5.0)
    monkeypatch.setattr(peaks.time, "perf_counter", lambda: clock.now)
    peaks._Meter("cpu", torch.device("cpu"))._rate(clock.prepare, float, [1, 2, 4, 8], 1.0)
    assert clock.prepared == [1, 1, 2, 4, 8]


def test_work_is_counted_as_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of n × n takes 2 n³ operations; a copy reads and writes, one to a device only arrives."""
    monkeypatch.setattr(peaks._Meter, "_rate", lambda self, prepare, work, sizes, seconds: work(10))  # noqa: ARG005
    meter = peaks._Meter("cpu", torch.device("cpu"))
    assert meter.matmul("fp32", 1.0) == 2000
    assert meter.memory_copy(1.0) == 20
    assert meter.host_to_device(1.0) == 10


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_device_that_is_not_there_is_refused() -> None:
    """The message says what there is, and how to ask for it."""
    with pytest.raises(ConfigError, match=r"'cuda' was asked for, but torch .* finds only .*use --device"):
        peaks.report("cuda", SHORT)


def test_best_device_is_chosen_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU goes before the CPU, and AMD's is told apart from NVIDIA's."""
    monkeypatch.setattr(torch.version, "hip", None)
    assert peaks._device_kind(None, ["cuda"]) == "cuda"
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert peaks._device_kind(None, ["rocm"]) == "rocm"
    assert peaks._device_kind("cuda", ["rocm"]) == "rocm"
    assert peaks._device_kind("cpu", ["rocm"]) == "cpu"


@pytest.mark.parametrize(
    ("capability", "built", "runs"),
    [
        ((8, 9), ["sm_75", "sm_80", "sm_86", "sm_90"], True),
        ((7, 0), ["sm_75", "sm_80"], False),
        ((6, 1), ["sm_50", "sm_60", "sm_70"], True),
        ((12, 0), ["sm_80", "sm_90", "compute_90"], True),
        ((12, 0), ["sm_80", "sm_90a", "compute_90a"], False),
        ((9, 0), ["sm_90a"], True),
        ((10, 3), ["sm_100"], True),
    ],
)
def test_a_build_of_torch_has_kernels_for_a_card_or_not(
    capability: tuple[int, int], built: list[str], runs: bool
) -> None:
    """Machine code serves its major version from its minor version on, PTX all that came later."""
    assert peaks.has_kernels(capability, built) == runs


def test_a_card_that_torch_is_not_built_for_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch itself lists it, and fails with its first kernel."""
    volta = SimpleNamespace(
        name="Tesla V100", major=7, minor=0, uuid="70000000-0000", total_memory=2**34, multi_processor_count=80
    )
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: volta)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80"])
    report = json.loads(json.dumps(peaks.report(None, 0.0)))
    merged = merge(probe_host(), report)
    assert merged.default_device == "cpu"
    assert "is not built for Tesla V100 (it has sm_75, sm_80)" in merged.unread[UNUSABLE]


def test_rate_that_cannot_be_measured_does_not_cost_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is null with torch's reason."""

    def full(*arguments: object, **options: object) -> None:
        raise torch.OutOfMemoryError("no memory is left\nwith details")

    monkeypatch.setattr(torch, "zeros_like", full)
    report: Any = peaks.report("cpu", SHORT)
    assert report["peaks"]["memory_bytes_per_second"] is None
    assert report["unread"]["peaks.memory_bytes_per_second"] == "no memory is left"
    assert report["peaks"]["matmul_flops_per_second"]["fp32"] > 0


@pytest.mark.parametrize(
    ("architecture", "precisions"),
    [
        ("gfx90a:sramecc+:xnack-", ("fp32", "bf16", "fp16")),
        ("gfx942", ("fp32", "bf16", "fp16")),
        ("gfx1100", ("fp32", "bf16", "fp16")),
        ("gfx1030", ("fp32",)),
        ("gfx906", ("fp32",)),
        ("", ("fp32",)),
    ],
)
def test_precisions_of_amd_gpus(architecture: str, precisions: tuple[str, ...]) -> None:
    """Only architectures with matrix instructions get more than fp32."""
    found, reason = peaks._amd_precisions(architecture)
    assert found == precisions
    assert reason


def test_nvidia_gpu_as_torch_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """UUID, capability and multiprocessors make a valid record."""
    properties = SimpleNamespace(
        name="NVIDIA GeForce RTX 2070",
        uuid="20700000-0000",
        total_memory=2**33,
        multi_processor_count=36,
        major=7,
        minor=5,
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.version, "hip", None)
    gpu = Gpu.model_validate(peaks._cuda_gpu(0))
    assert (gpu.kind, gpu.uuid, gpu.compute_capability) == ("cuda", "GPU-20700000-0000", (7, 5))
    assert gpu.precisions == ("fp32", "fp16")


def test_amd_gpu_as_torch_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no NVML for it, so torch tells the free memory too."""
    properties = SimpleNamespace(
        name="AMD Instinct MI210", total_memory=2**36, multi_processor_count=104, gcnArchName="gfx90a"
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2**35, 2**36))
    monkeypatch.setattr(torch.version, "hip", "6.4")
    gpu = Gpu.model_validate(peaks._cuda_gpu(0))
    assert (gpu.kind, gpu.memory_free_bytes, gpu.compute_capability) == ("rocm", 2**35, None)
    assert "bf16" in gpu.precisions


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_is_measured() -> None:
    """Every precision of the card, its memory, and the copy to it."""
    report: Any = peaks.report(None, 1.0)
    assert report["gpus"][0]["precisions"][0] == "fp32"
    assert all(rate for rate in report["peaks"]["matmul_flops_per_second"].values())
    assert report["peaks"]["host_to_device_bytes_per_second"] > 0
    assert "attention" in report["gpus"][0]["attention"]
