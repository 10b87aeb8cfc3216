"""What the proof has seen besides rates: when something runs out, and how much of the machine's peaks is reached."""

from __future__ import annotations

import pytest

from autotune.hardware.model import Peaks
from autotune.knobs.config import TrainConfig
from autotune.measuring.growth import Growth, Look
from autotune.measuring.records import Measurement
from autotune.measuring.telemetry_summary import TelemetrySummary
from autotune.results.result import Side
from autotune.search.watched import growths, peak_shares
from tests.factories import GIB, make_gpu, make_hardware, make_measurement
from tests.search.surface import make_facts

RATE = 1000.0


def watched(host: float = 0.0, files: float = 0.0, clock: float = 0.0) -> Measurement:
    """Five processes that grow by so many bytes and files a second, and whose card clocks so many MHz less."""
    looks = tuple(
        Look(
            process=process, samples=round(RATE * at), seconds=at, host_bytes=round(GIB + host * at),
            open_files=round(100 + files * at), shm_bytes=0, clock_mhz=1800 - clock * at,
        )
        for process in range(5) for at in range(1, 9)
    )  # fmt: skip
    telemetry = TelemetrySummary(seconds=8.0, sm_clock_mhz=1800)
    return make_measurement(RATE, spread=0, looks=looks, telemetry=telemetry)


def found(measured: Measurement | None, samples: int | None = 50_000) -> list[Growth]:
    """On a machine with 7 GiB free, of which training has taken 2."""
    return list(growths("best", measured, make_hardware(), "cpu", samples))


def test_what_runs_out_first_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three megabytes a second fill five gigabytes in half an hour; ten files a second reach the limit before."""
    monkeypatch.setattr("autotune.search.watched.open_files_limit", lambda: (1024, 4096))
    files, memory = found(watched(host=3e6, files=10))
    assert (files.what, memory.what) == ("open files", "host memory")
    assert memory.full_seconds == pytest.approx(5 * GIB / 3e6, rel=0.01)
    assert memory.per_epoch == pytest.approx(3e6 * 50)
    assert memory.per_day == pytest.approx(3e6 * 86_400)
    assert memory.within_epoch


def test_what_lasts_for_a_day_is_no_news() -> None:
    """A slope that is certain, but small beside what is free, is left out; a longer epoch brings it back."""
    large = make_hardware().model_copy(
        update={"memory": make_hardware().memory.model_copy(update={"available_bytes": 10**12})}
    )
    slow = watched(host=3e6)
    assert list(growths("best", slow, large, "cpu", 50_000)) == []
    assert [one.what for one in growths("best", slow, large, "cpu", 10**9)] == ["host memory"]


def test_a_clock_that_falls_notably_is_told() -> None:
    """By a hundredth a minute: less is within what any card does."""
    assert [one.what for one in found(watched(clock=0.5))] == ["GPU clock"]
    assert found(watched(clock=0.1)) == []


def test_without_looks_nothing_grows() -> None:
    """As where one process plays all, or nothing was measured."""
    assert found(make_measurement(RATE)) == []
    assert found(None) == []


def shares(peaks: Peaks | None, **changes: object) -> dict[str, float]:
    """Of a training of 1,000 samples/s in bf16, on a card whose loader alone reaches 4,000."""
    facts = make_facts(flops_per_sample=1e9, batch_bytes=6_400, pass_bytes=10**6, update_bytes=2 * 10**6, **changes)
    side = Side(
        config=TrainConfig(batch_size=32, accumulation_steps=2, precision="bf16"),
        measurement=make_measurement(RATE, spread=0),
    )
    hardware = make_hardware(make_gpu(), peaks=peaks)
    found = peak_shares("best", side, hardware, "cuda", facts, {"loader": 4000.0, "compute": None})
    return {one.part: one.share for one in found}


def test_the_share_of_each_peak() -> None:
    """FLOP/s by the product of its own precision; memory by a step's update, two passes and its samples."""
    peaks = Peaks(matmul_flops_per_second={"fp32": 1e12, "bf16": 4e12}, memory_bytes_per_second=1e9)
    assert shares(peaks) == {
        "compute": pytest.approx(1e12 / 4e12),
        "memory": pytest.approx(1000 * ((2e6 + 2 * 1e6) / 64 + 100) / 1e9),
        "loading": pytest.approx(0.25),
    }


def test_what_was_not_measured_has_no_line() -> None:
    """Without peaks, without that of its precision, or where operations cannot be counted."""
    assert list(shares(None)) == ["loading"]
    assert list(shares(Peaks(matmul_flops_per_second={"fp32": 1e12, "bf16": None}))) == ["loading"]
