"""The checks: each fault that was put into the machine, or into what it says, is named with its remedy."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.doctor import features, limits, memory, timing
from autotune.doctor.context import Clinic, point
from autotune.doctor.examination import examine_quickly
from autotune.doctor.findings import Examination, Finding, examination_path, known_examination
from autotune.errors import WorkloadError
from autotune.hardware import DeviceKind, Hardware, probe_host
from autotune.knobs import KNOBS
from autotune.measuring.numerics import Agreement
from autotune.measuring.records import Burst, Outcome
from autotune.measuring.telemetry_summary import TelemetrySummary
from tests.factories import make_measurement
from tests.hardware.readings import I5_9400F, MIB, hardware_of
from tests.processes import ROOT
from tests.spaces import cpu_machine, docker_machine, gpu_machine

Check = Callable[[Clinic], Iterator[Finding]]


def failures(check: Check, hardware: Hardware, device: Any = "cpu") -> list[Finding]:
    """What a check finds wrong; each of it comes with what to do."""
    clinic = Clinic(hardware, device)
    try:
        found = [finding for finding in check(clinic) if finding.status == "does not hold"]
    finally:
        clinic.close()
    assert all(finding.remedy for finding in found)
    return found


@pytest.mark.parametrize("hardware", [docker_machine(), hardware_of(dataclasses.replace(I5_9400F, shm_bytes=None))])
def test_shared_memory_that_is_small_or_absent_is_named(hardware: Hardware) -> None:
    """Docker's 64 MB, or none at all."""
    (finding,) = failures(limits.shared_memory, hardware)
    assert "--shm-size" in finding.remedy


def test_a_container_with_little_memory_is_named() -> None:
    """By its own limit."""
    machine = cpu_machine()
    small = machine.memory.model_copy(update={"available_bytes": 900 * MIB, "cgroup_limit_bytes": 1024 * MIB})
    (finding,) = failures(limits.host_memory, machine.model_copy(update={"memory": small}))
    assert "1.00 GiB that the container may take" in finding.found


@pytest.mark.parametrize(
    ("limit", "words"),
    [("RLIMIT_NOFILE, (256, 4096)", "ulimit -n 4096"), ("RLIMIT_AS, (2**40, 2**40)", "ulimit -v unlimited")],
)
def test_a_low_limit_of_the_shell_is_named(limit: str, words: str) -> None:
    """In a process that really has it."""
    code = (
        f"import resource; resource.setrlimit(resource.{limit})\n"
        "from autotune.doctor import limits\n"
        "print([f.remedy for f in limits.open_files(None) if f.status == 'does not hold'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert words in done.stdout


def test_processes_of_this_machine_stop_and_go_on() -> None:
    """Real ones, a child's child too; nothing is left of them."""
    (finding,) = limits.processes(Clinic(cpu_machine(), "cpu"))
    assert (finding.status, finding.decisive) == ("ok", True)


def test_a_system_that_forbids_signals_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a seccomp profile does: figures cannot be trusted without."""

    def forbidden(pid: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "kill", forbidden)
    (finding,) = failures(limits.processes, cpu_machine())
    assert finding.decisive
    assert "seccomp" in finding.remedy


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (None, "NVML does not answer"),
        ({"gpu_utilization_fraction": 0.0, "power_watts": 300.0, "energy_joules": 150.0}, "utilisation reads 0%"),
        ({"gpu_utilization_fraction": 0.9, "power_watts": 300.0, "energy_joules": 0.0}, "counter stands still"),
    ],
)
def test_a_driver_that_is_silent_or_lies_is_named(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, float] | None, words: str
) -> None:
    """Beside matrix products, on a GPU that is recorded."""
    summary = TelemetrySummary(seconds=0.5, foreign_gpu_processes=1, **told) if told is not None else None
    monkeypatch.setattr(limits, "_watched", lambda *_: summary)
    monkeypatch.setattr(limits, "FOREIGN", "print('here', flush=True)")
    first, *_ = failures(limits.telemetry, gpu_machine(), "cuda")
    assert words in first.found


class FakeRunner:
    """Ends as it is told; what the checks make of it is looked at."""

    def __init__(self, burst: Burst | None = None, refused: str = "") -> None:
        self.burst = burst
        self.refused = refused

    def run(self, *_: object) -> Burst:
        """The same each time."""
        assert self.burst is not None
        return self.burst

    def agreement(self, candidate: Any, *_: object) -> Any:
        """Crashes where a knob has the refused value, else agrees with itself."""
        if self.refused in {str(value) for value in candidate.config.model_dump().values()}:
            raise WorkloadError(f"the numerics check failed: no kernel image for {self.refused}")
        trace = {"losses": (1.0, 0.9), "gradient_norm": 1.0}
        return Agreement.model_validate(
            {"reference": trace, "control": trace, "candidate": trace, "cosine": 1, "control_cosine": 1,
             "has_batch_norm": False}
        )  # fmt: skip


def with_runner(monkeypatch: pytest.MonkeyPatch, runner: FakeRunner) -> None:
    """All checks get this one."""
    monkeypatch.setattr(Clinic, "runner", lambda *_, **__: runner)


def test_memory_that_runs_out_otherwise_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that ends the process instead of refusing."""
    killed = Burst(point=point("small"), outcome=Outcome.CRASHED, reason="SIGKILL", seconds=1)
    with_runner(monkeypatch, FakeRunner(killed))
    (finding,) = failures(memory.running_out, cpu_machine())
    assert "in the forward reported as crashed: SIGKILL" in finding.found


def test_a_cap_that_does_not_hold_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that should have been refused ended well."""
    trained = Burst(point=point("small"), outcome=Outcome.OK, measurement=make_measurement(10), seconds=1)
    with_runner(monkeypatch, FakeRunner(trained))
    (finding,) = failures(memory.cap, cpu_machine())
    assert "ended as ok" in finding.found


@pytest.mark.parametrize(
    ("refused", "drops"),
    [
        ("fp16", [("precision", "fp16"), ("fp16_accumulation", True)]),
        ("cudnn_attention", [("sdpa_backend", "cudnn_attention")]),
    ],
)
def test_what_does_not_work_is_left_out_by_value(
    monkeypatch: pytest.MonkeyPatch, refused: str, drops: list[tuple[str, Any]]
) -> None:
    """One value of one knob, and what goes with nothing else, but none that was tried beside it."""
    with_runner(monkeypatch, FakeRunner(refused=refused))
    found = failures(features.arithmetic, gpu_machine(), "cuda")
    assert [(drop.knob, drop.value) for finding in found for drop in finding.drops] == drops


@pytest.mark.parametrize(("machine", "device"), [(cpu_machine, "cpu"), (gpu_machine, "cuda")])
def test_each_value_that_a_knob_names_for_trial_is_tried(
    monkeypatch: pytest.MonkeyPatch, machine: Callable[[], Hardware], device: DeviceKind
) -> None:
    """Several at a time, as far as they go together; the CPU here has no precision but fp32."""
    tried: list[set[tuple[str, object]]] = []
    monkeypatch.setattr(features, "_reason", lambda _, case: tried.append(set(case.items())))
    list(features.arithmetic(Clinic(machine(), device)))
    expected = {
        (name, value)
        for name, knob in KNOBS.items()
        for value, devices in knob.trials.items()
        if device in devices and name != "compile_mode" and (device == "cuda" or name != "precision")
    }
    assert set.union(*tried) == expected
    assert len(tried) < len(expected)


def test_rates_that_are_off_three_times_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bursts of 10 samples a second where a plain loop has 8."""
    measured = Burst(point=point("small"), outcome=Outcome.OK, measurement=make_measurement(10), seconds=1)
    with_runner(monkeypatch, FakeRunner(measured))
    monkeypatch.setattr(timing, "_plain_rates", lambda _, cases: [8.0] * len(cases))
    (finding,) = failures(timing.truth, cpu_machine())
    assert finding.decisive
    assert finding.found.startswith("+2")


@pytest.mark.slow
def test_a_broken_compiler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """For real: torch.compile calls a compiler that does nothing."""
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    (finding,) = failures(features.compiling, probe_host())
    assert "g++" in finding.remedy
    assert [(drop.knob, drop.value) for drop in finding.drops] == [("compile_mode", "default")]


def test_what_was_found_holds_for_one_driver_and_one_torch(tmp_path: Path) -> None:
    """After an update nobody has looked."""
    machine = gpu_machine()
    found = examine_quickly(machine, "cuda")
    place = examination_path(tmp_path, "cuda")
    found.write(place)
    assert json.loads(place.read_text())["device"] == "cuda"
    assert known_examination(tmp_path, machine, "cuda") == found
    newer = machine.model_copy(update={"gpus": (machine.gpus[0].model_copy(update={"driver": "999.1"}),)})
    assert known_examination(tmp_path, newer, "cuda") is None
    assert known_examination(tmp_path, machine, "cpu") is None


def test_a_file_that_is_none_is_not_believed(tmp_path: Path) -> None:
    """Broken, or not there."""
    assert known_examination(tmp_path, cpu_machine(), "cpu") is None
    (tmp_path / "doctor-cpu.json").write_text('{"device": "abacus"}')
    assert known_examination(tmp_path, cpu_machine(), "cpu") is None


def test_only_what_is_decisive_costs_trust() -> None:
    """A knob that does not work is left out, and the rest can be believed."""
    lost = Finding(name="precision", status="does not hold", found="fp16", remedy="left out")
    fields: dict[str, Any] = {"device": "cpu", "driver": None, "torch": None, "seconds": 1}
    assert Examination(findings=(lost,), **fields).trusted
    assert not Examination(findings=(lost.model_copy(update={"decisive": True}),), **fields).trusted


def test_a_value_is_tried_in_the_half_precision_that_it_goes_with() -> None:
    """Sums in fp16 say nothing about bf16."""
    cases = features._together({"precision": ("bf16", "fp16"), "fp16_accumulation": (True,), "allocator": ("tuned",)})
    assert {"precision": "fp16", "fp16_accumulation": True} in cases
