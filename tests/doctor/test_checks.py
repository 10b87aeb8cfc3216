"""The checks: each fault that was put into the machine, or into what it says, is named with its remedy."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.doctor import examination, features, limits, memory, searching, timing
from autotune.doctor.context import Clinic, point
from autotune.doctor.examination import examine_quickly
from autotune.doctor.findings import Examination, Finding, Status, examination_path, known_examination
from autotune.errors import WorkloadError
from autotune.hardware import UNUSABLE, DeviceKind, Hardware, probe_host
from autotune.knobs import KNOBS
from autotune.measuring.numerics import Agreement
from autotune.measuring.pairs import Pair
from autotune.measuring.records import Burst, Outcome, Point
from autotune.measuring.statistics import Interval
from autotune.measuring.telemetry_summary import TelemetrySummary
from tests.factories import make_burst, make_measurement
from tests.hardware.readings import I5_9400F, MIB, hardware_of
from tests.processes import ROOT
from tests.spaces import cpu_machine, docker_machine, gpu_machine, make_facts

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
    assert "1.00 GiB that its control group may take" in finding.found


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


def test_processes_are_checked_without_any_program_but_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may hold no other."""
    monkeypatch.setenv("PATH", "/nowhere")
    assert failures(limits.processes, cpu_machine()) == []


@pytest.mark.parametrize(
    ("program", "words"),
    [("raise SystemExit", "cannot start another one"), ("print('hello')", "no process could be started and stopped")],
)
def test_a_process_that_starts_no_other_is_named(monkeypatch: pytest.MonkeyPatch, program: str, words: str) -> None:
    """In a sentence."""
    monkeypatch.setattr(limits, "FAMILY", program)
    (finding,) = failures(limits.processes, cpu_machine())
    assert words in finding.found


def test_a_process_that_cannot_be_looked_at_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this check and in any other: each tuning runs them."""

    def hidden(_: object) -> None:
        raise psutil.AccessDenied(1)

    def check(_: Clinic) -> Iterator[Finding]:
        raise psutil.NoSuchProcess(1)
        yield

    monkeypatch.setattr(limits.psutil, "Process", hidden)
    (finding,) = failures(limits.processes, cpu_machine())
    assert finding.found.startswith("no process could be started and stopped")
    monkeypatch.setattr(examination, "QUICK", (check,))
    assert not examine_quickly(cpu_machine(), "cpu").trusted


@pytest.mark.parametrize(
    ("user", "own", "group", "words"),
    [
        ("1000 1000 1", 100, None, ["100 processes"]), ("0 0 4294967295", 100, None, []),
        ("0 0 4294967295", 100, 64, ["64 processes"]), ("0 1000 1", 100, None, ["100 processes"]),
        ("1000 1000 1", -1, None, []), ("1000 1000 1", 100_000, 100, ["100 processes"]),
    ],
)  # fmt: skip
def test_few_processes_are_named(
    monkeypatch: pytest.MonkeyPatch, user: str, own: int, group: int | None, words: list[str]
) -> None:
    """By the shell's limit, which does not count for root, if it is root outside too, or the control group's."""
    monkeypatch.setattr(os, "geteuid", lambda: int(user.partition(" ")[0]))
    monkeypatch.setattr(limits, "read_text", lambda _: user)
    monkeypatch.setattr(limits.resource, "getrlimit", lambda _: (own, own))
    monkeypatch.setattr(limits, "process_limit", lambda: group)
    assert [
        finding.found[: len(word)] for finding, word in zip(limits._room_for_processes(), words, strict=True)
    ] == words


def test_a_second_program_that_does_not_start_is_none_that_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends, or hangs before it has the GPU."""
    monkeypatch.setattr(limits, "DEADLINE_SECONDS", 2.0)
    for name, program, why in (
        ("FOREIGN", "raise SystemExit", "use the GPU"),
        ("FOREIGN", "import time; time.sleep(60)", "use the GPU"),
        ("ORPHANED", "raise SystemExit", "be started"),
    ):
        monkeypatch.setattr(limits, name, program)
        with pytest.raises(subprocess.SubprocessError, match=f"a second program could not {why}"):
            limits._foreign(Clinic(gpu_machine(), "cuda"))


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
    watched = make_burst().model_copy(update={"measurement": make_measurement(telemetry=summary)})
    monkeypatch.setattr(limits, "_watched", lambda *_: watched)
    monkeypatch.setattr(limits, "FOREIGN", "print('here', flush=True)")
    first, *_ = failures(limits.telemetry, gpu_machine(), "cuda")
    assert words in first.found


def test_a_burst_that_fails_is_no_fault_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own reason is told, and no second program is started."""
    failed = make_burst(None, outcome=Outcome.CRASHED, reason="SIGSEGV")
    monkeypatch.setattr(limits, "_watched", lambda *_: failed)
    (finding,) = limits.telemetry(Clinic(gpu_machine(), "cuda"))
    assert (finding.status, finding.found) == ("does not hold", "the burst to watch ended as crashed: SIGSEGV")


@pytest.mark.parametrize(
    ("outcome", "reason", "status"),
    [
        (Outcome.CRASHED, "CUDA error: all CUDA-capable devices are busy or unavailable", "not here"),
        (Outcome.CRASHED, "CUDA error: CUDA-capable device(s) is/are busy or unavailable", "not here"),
        (Outcome.CRASHED, "SIGSEGV", "does not hold"),
        (Outcome.TIMEOUT, "it was still in its phase 'train' after 90.0 s", "does not hold"),
    ],
)
def test_training_that_fails_beside_a_second_program_is_found(
    monkeypatch: pytest.MonkeyPatch, outcome: Outcome, reason: str, status: str
) -> None:
    """Only where the driver admits one program at a time, there is nothing to check."""
    monkeypatch.setattr(limits, "_watched", lambda *_: make_burst(None, outcome=outcome, reason=reason))
    monkeypatch.setattr(limits, "FOREIGN", "print('here', flush=True)")
    finding = limits._foreign(Clinic(gpu_machine(), "cuda"))
    assert (finding.status, bool(finding.remedy)) == (status, status == "does not hold")
    assert finding.found == f"while a second program held the GPU, training ended as {outcome.value}: {reason}"


class FakeRunner:
    """Ends as it is told; what the checks make of it is looked at."""

    def __init__(self, burst: Burst | None = None, refused: str = "", pairs: Sequence[Pair] = ()) -> None:
        self.burst = burst
        self.refused = refused
        self.pairs = pairs

    def run(self, *_: object) -> Burst:
        """The same each time."""
        assert self.burst is not None
        return self.burst

    def challenge(self, _: object, candidates: Sequence[Point], *__: object) -> list[tuple[Any, Any]]:
        """A pair for each candidate, as far as there are any."""
        pairs = iter(self.pairs)
        return [(self.burst, next(pairs, None)) for _ in candidates]

    def play(self, points: Sequence[Point], *_: object) -> list[Any]:
        """The same for all."""
        return [self.burst] * len(points)

    def check(self, _: float) -> Any:
        """A workload whose baseline is the default."""
        return make_facts()

    def close(self) -> None:
        """Nothing lives."""

    def agreement(self, candidate: Any, *_: object) -> Any:
        """Crashes where a knob has the refused value, else agrees with itself."""
        if self.refused in {str(value) for value in candidate.config.model_dump().values()}:
            raise WorkloadError(f"the numerics check failed: no kernel image for {self.refused}")
        trace = {"losses": (1.0, 0.9), "gradient_norm": 1.0}
        return Agreement.model_validate(
            {"reference": trace, "control": trace, "candidate": trace, "has_batch_norm": False}
        )


def with_runner(monkeypatch: pytest.MonkeyPatch, runner: FakeRunner) -> None:
    """All checks get this one."""
    monkeypatch.setattr(Clinic, "runner", lambda *_, **__: runner)


@pytest.mark.parametrize(
    ("rates", "words"), [({"bf16": 122e12, "fp16": 660e12}, "122 TFLOP/s in bf16, 660 in fp16"), ({}, "0 TFLOP/s")]
)
def test_a_peak_that_is_off_is_named(monkeypatch: pytest.MonkeyPatch, rates: dict[str, float], words: str) -> None:
    """The first one is what an H100 once read."""
    monkeypatch.setattr(Clinic, "peak_rates", lambda _: rates)
    (finding,) = failures(features.peak, gpu_machine(), "cuda")
    assert words in finding.found


@pytest.mark.parametrize(("machine", "found"), [(cpu_machine, ["torch is not built for it"]), (gpu_machine, [])])
def test_a_gpu_that_torch_cannot_use_is_named_where_it_is_the_only_one(
    machine: Callable[[], Hardware], found: list[str]
) -> None:
    """Beside another one, it is not what is trained on."""
    hardware = machine().model_copy(update={"unread": {UNUSABLE: "torch is not built for it"}})
    assert [finding.found for finding in failures(features.peak, hardware, "cpu")] == found


def pair(ratio: float, blocks: int = 20) -> Pair:
    """Of a candidate, known to a per cent."""
    interval = Interval(ratio * 0.99, ratio * 1.01)
    return Pair(partner=point("small"), ratio=ratio, ci95=interval, blocks=blocks)


GOOD = Burst(point=point("small"), outcome=Outcome.OK, measurement=make_measurement(10), seconds=1)


@pytest.mark.parametrize(
    ("found", "words"),
    [(pair(0.95), "0.950 (0.941–0.959) at 90%"), (pair(1.0, blocks=0), "not block by block at 90%"), (None, "at 48%")],
)
def test_a_config_that_does_not_equal_itself_where_memory_is_full_is_named(
    monkeypatch: pytest.MonkeyPatch, found: Pair | None, words: str
) -> None:
    """Or that could not be compared block by block."""
    with_runner(monkeypatch, FakeRunner(GOOD, pairs=[] if found is None else [found]))
    (finding,) = failures(memory.itself, gpu_machine(), "cuda")
    assert words in finding.found


@pytest.mark.parametrize(
    ("pairs", "step_seconds", "words"),
    [
        ([pair(3.9), pair(1.1)], 0.0, "2 of 3 decided"),
        ([pair(1.0), pair(1.1), pair(1.1)], 0.0, "one micro-batch instead of 4: 1.00×"),
        ([pair(3.9), pair(1.1), pair(1.1)], 20.0, "3 of 3 decided in 40.0 s"),
    ],
)
def test_a_search_that_decides_too_little_is_named(
    monkeypatch: pytest.MonkeyPatch, pairs: list[Pair], step_seconds: float, words: str
) -> None:
    """Too few, not the one that must be faster, or too late, by a clock that the challenge moves."""
    clock = itertools.count(0.0, 2 * step_seconds)
    monkeypatch.setattr(searching.time, "monotonic", lambda: next(clock))
    with_runner(monkeypatch, FakeRunner(GOOD, pairs=pairs))
    (finding,) = failures(searching.launches, gpu_machine(), "cuda")
    assert words in finding.found


@pytest.mark.parametrize(("rate", "clock", "holds"), [(10.0, 1980, True), (10.5, 1980, False), (10.0, 1700, False)])
def test_turns_that_change_rate_or_clock_are_named(rate: float, clock: float, holds: bool) -> None:
    """By more than a per cent."""

    def side(rate: float, clock: float) -> Any:
        watched = TelemetrySummary(seconds=1, sm_clock_mhz=clock)
        return make_measurement(rate, spread=0.0, telemetry=watched)

    alone, turns = (side(10.0, 1980),) * 2, (side(rate, clock),) * 2
    assert (timing._uninterrupted(alone, turns, noise=0.0).status == "ok") is holds


def test_kernels_that_were_chosen_otherwise_are_other_code(tmp_path: Path) -> None:
    """How long choosing them took does not count."""
    for name, warps, nanoseconds in (("a", 4, 10), ("b", 4, 99), ("c", 8, 10)):
        (tmp_path / name / "xy").mkdir(parents=True)
        chosen = {"num_warps": warps, "time_taken_ms": nanoseconds}
        (tmp_path / name / "xy" / "kernel.best_config").write_text(json.dumps(chosen))
    first, same, other = (features._generated(tmp_path / name) for name in "abc")
    assert first == same != other


def test_a_point_holds_where_all_that_was_checked_for_it_does() -> None:
    """What is not here does not count, and a point without a finding is not here."""
    examined = examine_quickly(cpu_machine(), "cpu")
    told: dict[int, tuple[Status, ...]] = {1: ("ok", "not here"), 2: ("ok", "does not hold"), 3: ("not here",)}
    findings = [Finding(name="", status=one, found="", point=n) for n, statuses in told.items() for one in statuses]
    ten = examined.model_copy(update={"findings": tuple(findings)}).ten
    assert ten[:4] == ("ok", "does not hold", "not here", "not here")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "words"),
    [
        (memory.itself, "at 90%"),
        (timing.scripts, "beside a plain loop"),
        (features.beside, "the same code"),
        (searching.launches, "3 of 3 decided"),
        (searching.scripts, "2 of 2 decided"),
        (timing.pairs, "differ by"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_points_are_checked_for_real_on_a_cpu(check: Check, words: str) -> None:
    """To a figure; other load may make it one that does not hold."""
    with contextlib.closing(Clinic(probe_host(), "cpu")) as clinic:
        first, *_ = check(clinic)
    assert words in first.found
    assert "not block by block" not in first.found


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
    """By itself; the CPU here has no precision but fp32."""
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


def test_a_device_on_which_the_host_waits_for_the_step_is_not_called_hungry(monkeypatch: pytest.MonkeyPatch) -> None:
    """As MPS: a batch that is read meanwhile would still be waited for."""
    measured = make_measurement(10, data_wait_fraction=0.3)
    with_runner(
        monkeypatch, FakeRunner(Burst(point=point("small"), outcome=Outcome.OK, measurement=measured, seconds=1))
    )
    monkeypatch.setattr(Clinic, "script_runner", Clinic.runner)
    monkeypatch.setattr(Clinic, "plain_rates", lambda _, cases, _seconds: [measured.samples_per_second] * len(cases))
    for check in (timing.truth, timing.scripts):
        assert failures(check, cpu_machine(), "mps") == []
        assert failures(check, gpu_machine(), "cuda") != []


@pytest.mark.parametrize(
    ("gib", "status", "found"),
    [
        (2, "ok", "1.000 (0.990–1.010) at 90%; not checked at 30%, 48%: only 2.00 GiB are free"),
        (1, "not here", "not checked at 30%, 48%, 90%: only 1.00 GiB are free"),
    ],
)
def test_memory_that_cannot_be_filled_is_said_and_left_out(
    gib: int, status: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a GPU that others use: a step of nothing would fill no share."""
    machine = gpu_machine()
    gpu = machine.gpus[0].model_copy(update={"memory_free_bytes": gib * 2**30})
    with_runner(monkeypatch, FakeRunner(GOOD, pairs=[pair(1.0)]))
    (finding,) = memory.itself(Clinic(machine.model_copy(update={"gpus": (gpu,)}), "cuda"))
    assert (finding.status, finding.found) == (status, found)


def test_rates_that_are_off_three_times_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bursts of 10 samples a second where a plain loop has 8."""
    measured = Burst(point=point("small"), outcome=Outcome.OK, measurement=make_measurement(10), seconds=1)
    with_runner(monkeypatch, FakeRunner(measured))
    monkeypatch.setattr(Clinic, "plain_rates", lambda _, cases, _seconds: [8.0] * len(cases))
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
    smaller = machine.model_copy(update={"cpu": machine.cpu.model_copy(update={"budget": 1})})
    assert smaller.machine("cuda") != machine.machine("cuda")
    assert known_examination(tmp_path, smaller, "cuda") is None
    assert known_examination(tmp_path, machine, "cpu") is None


def test_a_file_that_is_none_is_not_believed(tmp_path: Path) -> None:
    """Broken, or not there."""
    assert known_examination(tmp_path, cpu_machine(), "cpu") is None
    (tmp_path / "doctor-cpu.json").write_text('{"device": "abacus"}')
    assert known_examination(tmp_path, cpu_machine(), "cpu") is None


def test_only_what_is_decisive_costs_trust() -> None:
    """A knob that does not work is left out, and the rest can be believed."""
    lost = Finding(name="precision", status="does not hold", found="fp16", remedy="left out")
    fields: dict[str, Any] = examine_quickly(cpu_machine(), "cpu").model_dump(exclude={"findings"})
    assert Examination(findings=(lost,), **fields).trusted
    assert not Examination(findings=(lost.model_copy(update={"decisive": True}),), **fields).trusted


def test_a_value_is_tried_in_the_half_precision_that_it_goes_with() -> None:
    """Sums in fp16 say nothing about bf16."""
    case = features._case(Clinic(gpu_machine(), "cuda"), "fp16_accumulation", True)
    assert case == {"precision": "fp16", "fp16_accumulation": True}
