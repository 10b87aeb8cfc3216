"""The processors' energy, from counters as Linux gives them."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.hardware import CpuEnergy, why_no_energy
from tests.spaces import cpu_machine, gpu_machine

LIMIT = 262_143_328_850


def zone(root: Path, name: str, told: str, microjoules: int) -> Path:
    """A counter as the kernel shows it; returns the file that grows."""
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{told}\n")
    (folder / "max_energy_range_uj").write_text(f"{LIMIT}\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    return folder / "energy_uj"


def test_packages_and_memory_are_added_up(tmp_path: Path) -> None:
    """Cores are within their package, and the platform's counter holds the packages."""
    package = zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    memory = zone(tmp_path, "intel-rapl:0:1", "dram", 5_000_000)
    cores = zone(tmp_path, "intel-rapl:0:0", "core", 0)
    platform = zone(tmp_path, "intel-rapl:1", "psys", 0)
    energy = CpuEnergy.open(tmp_path)
    assert energy is not None
    for counter, microjoules in ((package, 3_000_000), (memory, 5_500_000), (cores, 9_000_000), (platform, 9_000_000)):
        counter.write_text(str(microjoules))
    assert energy.joules() == pytest.approx(2.5)


def test_a_counter_that_starts_again_goes_on(tmp_path: Path) -> None:
    """At its limit it begins at 0."""
    counter = zone(tmp_path, "intel-rapl:0", "package-0", LIMIT - 1_000_000)
    energy = CpuEnergy.open(tmp_path)
    assert energy is not None
    counter.write_text("2000000")
    assert energy.joules() == pytest.approx(3.0)


@pytest.mark.parametrize("counters", [0, 1])
def test_why_there_is_no_energy_is_told(counters: int, tmp_path: Path) -> None:
    """No counter; or one that only root may read, which here is one that is no number."""
    if counters:
        zone(tmp_path, "intel-rapl:0", "package-0", 0).write_text("")
    why = why_no_energy(cpu_machine().device("cpu"), tmp_path) or ""
    assert ("run as root" in why) == bool(counters)
    assert CpuEnergy.open(tmp_path) is None


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine's NVML might know the card")
def test_a_gpu_that_tells_none_is_named() -> None:
    """NVML does not answer for it."""
    gpu = gpu_machine().device("cuda")
    assert (why_no_energy(gpu) or "").startswith(gpu.name)
