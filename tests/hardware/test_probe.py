"""The whole machine: the four of the guides, this one, and what torch adds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.hardware import Hardware, merge, probe_host
from autotune.hardware.model import Cpu
from tests.hardware.readings import GUIDES, I5_9400F, MIB, machine, partitioned_a100, rtx_3060, rtx_4070


def nulls(value: Any, path: str = "") -> Iterator[str]:
    """The dotted paths of all fields that are None."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from nulls(part, f"{path}.{key}" if path else key)
    elif isinstance(value, (list, tuple)):
        for number, part in enumerate(value):
            yield from nulls(part, f"{path}.{number}")
    elif value is None:
        yield path


def unexplained(hardware: Hardware) -> set[str]:
    """Fields that are None without a reason."""
    return set(nulls(hardware.model_dump())) - hardware.unread.keys()


def report(**changes: Any) -> dict[str, Any]:
    """What a child with torch for the CPU reports."""
    return {"torch": "2.13.0+cpu", "cuda": None, "hip": None, "device": "cpu", "gpus": [], "unread": {}, **changes}


def seen_by_torch(name: str, uuid: str | None, index: int = 0, **changes: Any) -> dict[str, Any]:
    """A GPU as torch reports it."""
    return {"kind": "cuda", "index": index, "name": name, "uuid": uuid, "sm_count": 46, **changes}


@pytest.mark.parametrize("name", GUIDES)
def test_machines_of_the_guides(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is read completely: card, CPU and memory as specified."""
    spec, make_card = GUIDES[name]
    card = make_card()
    hardware = machine(monkeypatch, tmp_path, spec, card)
    (gpu,) = hardware.gpus
    assert (gpu.name, gpu.memory_total_bytes) == (card.name, card.memory_bytes)
    assert (hardware.cpu.model, hardware.cpu.physical_cores) == (spec.model, spec.cores)
    assert hardware.memory.total_bytes == spec.memory_bytes
    assert hardware.default_device == "cuda"
    assert unexplained(hardware) == set()


def test_this_machine_is_read() -> None:
    """Whatever it is, nothing raises, and every null has its reason."""
    hardware = probe_host()
    assert hardware.cpu.budget >= 1
    assert 0 < hardware.memory.available_bytes <= hardware.memory.total_bytes
    assert unexplained(hardware) == set()
    assert hardware.gpus or hardware.unread["gpus"]


def test_probing_imports_no_torch() -> None:
    """A parent that imported torch would be seconds late, and could hold GPU memory."""
    code = "import sys; from autotune.hardware import probe_host; probe_host(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_record_survives_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written into result files, and read from them."""
    hardware = machine(monkeypatch, tmp_path, I5_9400F, partitioned_a100())
    assert Hardware.model_validate_json(hardware.model_dump_json()) == hardware


def test_empty_report_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that could not be started leaves the host's facts as they are."""
    hardware = machine(monkeypatch, tmp_path, I5_9400F, rtx_4070())
    assert merge(hardware, {}) == hardware


def test_merge_adds_versions_and_peaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch measured takes the place of the reasons."""
    hardware = machine(monkeypatch, tmp_path, I5_9400F)
    peaks = {"matmul_flops_per_second": {"fp32": 1e11, "bf16": None}, "memory_bytes_per_second": 1e10, "seconds": 1.0}
    why = {
        "peaks.matmul_flops_per_second.bf16": "out of memory",
        "peaks.host_to_device_bytes_per_second": "the cpu device computes in the host's own memory",
    }
    merged = merge(hardware, report(peaks=peaks, unread=why, cuda="12.8"))
    assert merged.peaks is not None
    assert merged.peaks.matmul_flops_per_second == {"fp32": 1e11, "bf16": None}
    assert (merged.software.torch, merged.software.cuda) == ("2.13.0+cpu", "12.8")
    assert "peaks" not in merged.unread
    assert "software.cuda" not in merged.unread
    assert unexplained(merged) == set()


def test_merge_keeps_what_the_driver_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch writes the UUID without its prefix; the card is the same one."""
    hardware = machine(monkeypatch, tmp_path, I5_9400F, rtx_4070())
    torch_gpu = seen_by_torch("NVIDIA GeForce RTX 4070", "40700000-0000")
    merged = merge(hardware, report(gpus=[torch_gpu], cuda="12.8"))
    assert merged.gpus == (hardware.gpus[0].model_copy(update={"sm_count": 46}),)


def test_devices_are_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cards are one kind of device."""
    assert machine(monkeypatch, tmp_path, I5_9400F, rtx_3060(), rtx_4070()).devices == ("cpu", "cuda")


def test_merge_follows_the_order_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA numbers the fastest card first; its index is what training uses."""
    slow, fast = rtx_3060(), rtx_4070()
    slow.fails = {"nvmlDeviceGetPowerUsage": 3}
    hardware = machine(monkeypatch, tmp_path, I5_9400F, slow, fast)
    seen = [seen_by_torch(fast.name, "GPU-40700000-0000", 0), seen_by_torch(slow.name, "GPU-30600000-0000", 1)]
    merged = merge(hardware, report(gpus=seen, cuda="12.8"))
    assert [(gpu.index, gpu.name) for gpu in merged.gpus] == [(0, fast.name), (1, slow.name)]
    assert merged.unread["gpus.1.power_watts"].startswith("NVML: ")
    assert "gpus.0.power_watts" not in merged.unread
    assert "gpus.order" not in merged.unread


def test_gpu_that_torch_cannot_use_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU build of torch beside a fine card trains on the CPU, and says why."""
    merged = merge(machine(monkeypatch, tmp_path, I5_9400F, rtx_4070()), report())
    assert merged.gpus == ()
    assert merged.default_device == "cpu"
    assert "RTX 4070, but torch 2.13.0+cpu cannot use it" in merged.unread["gpus"]


def test_one_of_two_cards_that_torch_cannot_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The usable one stays, and the other is named."""
    hardware = machine(monkeypatch, tmp_path, I5_9400F, rtx_3060(), rtx_4070())
    merged = merge(hardware, report(gpus=[seen_by_torch("NVIDIA GeForce RTX 4070", "40700000-0000")]))
    assert [gpu.name for gpu in merged.gpus] == ["NVIDIA GeForce RTX 4070"]
    assert "RTX 3060" in merged.unread["gpus.unusable"]


def test_a_number_that_means_another_card_to_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's 0 is the fastest, the driver's the first: the one that trains has its values, and no other is missed."""
    cards = rtx_3060(), rtx_4070()
    hardware = machine(monkeypatch, tmp_path, I5_9400F, *cards, environ={"CUDA_VISIBLE_DEVICES": "0"})
    merged = merge(hardware, report(gpus=[seen_by_torch("NVIDIA GeForce RTX 4070", "40700000-0000")]))
    assert [(gpu.name, gpu.power_limit_watts is not None) for gpu in merged.gpus] == [("NVIDIA GeForce RTX 4070", True)]
    assert "gpus.unusable" not in merged.unread
    assert "cannot use it" in merge(hardware, report()).unread["gpus.unusable"]


def test_gpu_that_only_torch_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apple and AMD GPUs have no NVML; what torch does not tell has that as its reason."""
    hardware = machine(monkeypatch, tmp_path, I5_9400F)
    apple = {"kind": "mps", "index": 0, "name": "Apple M2", "precisions": ["fp32", "fp16"], "mig": None}
    merged = merge(hardware, report(gpus=[apple]))
    assert merged.default_device == "mps"
    assert merged.gpus[0].precisions == ("fp32", "fp16")
    assert merged.unread["gpus.0.power_limit_watts"] == "torch does not report this for the kind mps"
    assert "gpus" not in merged.unread
    assert unexplained(merged) == set()


def test_torch_fills_what_the_driver_did_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown architecture gets its multiprocessors and precisions from torch."""
    card = rtx_4070()
    card.fails = {"nvmlDeviceGetCudaComputeCapability": 3, "nvmlDeviceGetNumGpuCores": 3}
    hardware = machine(monkeypatch, tmp_path, I5_9400F, card)
    assert hardware.gpus[0].precisions == ("fp32",)
    seen = seen_by_torch(card.name, "40700000-0000", compute_capability=[8, 9], precisions=["fp32", "bf16"])
    (gpu,) = merge(hardware, report(gpus=[seen])).gpus
    assert (gpu.sm_count, gpu.compute_capability, gpu.precisions) == (46, (8, 9), ("fp32", "bf16"))


def test_slice_is_matched_by_name_where_cuda_tells_another_uuid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a slice, some versions of CUDA tell the UUID of the whole card."""
    hardware = machine(monkeypatch, tmp_path, I5_9400F, partitioned_a100())
    seen = seen_by_torch("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "a1000000-0000")
    (gpu,) = merge(hardware, report(gpus=[seen])).gpus
    assert gpu.mig is True
    assert gpu.memory_total_bytes == 20096 * MIB


def test_report_that_crossed_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuples have become lists on the way."""
    hardware = machine(monkeypatch, tmp_path, I5_9400F, rtx_4070())
    sent = report(gpus=[seen_by_torch("NVIDIA GeForce RTX 4070", "40700000-0000", compute_capability=(8, 9))])
    merged = merge(hardware, json.loads(json.dumps(sent)))
    assert merged.gpus[0].compute_capability == (8, 9)


def test_device_without_a_gpu_is_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without any GPU says so, and goes on."""
    hardware = machine(monkeypatch, tmp_path, I5_9400F)
    assert isinstance(hardware.device(hardware.default_device), Cpu)
    assert "lists no GPU" in hardware.unread["gpus"]
