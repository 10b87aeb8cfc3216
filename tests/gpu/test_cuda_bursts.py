"""Bursts on a real GPU: every knob runs, memory that runs out is an outcome, and nothing is held afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.runner import ProcessRunner
from autotune.hardware import probe_host
from autotune.hardware.model import Gpu
from autotune.knobs.config import TrainConfig
from autotune.measuring.numerics import judge_agreement
from autotune.measuring.records import Burst, Outcome, Point
from tests.processes import ROOT

PLAN = BurstPlan(measure_seconds=2.0)
DEADLINE_SECONDS = 240.0
MIB = 2**20


@pytest.fixture(scope="module")
def isolation() -> Iterator[Isolation]:
    """A forkserver with the CNN."""
    with Isolation("tests.workloads.gpu:build") as isolation:
        isolation.start(120)
        yield isolation


def gpu() -> Gpu:
    """The first GPU, as NVML sees it now."""
    return next(gpu for gpu in probe_host().gpus if gpu.kind == "cuda")


def runner(isolation: Isolation, **caps: float) -> ProcessRunner:
    """Bursts on the first GPU."""
    return ProcessRunner(isolation, "cuda", device_uuid=gpu().uuid, **caps)  # type: ignore[arg-type]


def run(isolation: Isolation, **knobs: object) -> Burst:
    """One burst with these knobs."""
    config = TrainConfig(batch_size=64).replace(**knobs)
    return runner(isolation).run(Point(config=config), PLAN, DEADLINE_SECONDS)


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"precision": "tf32"},
        {"precision": "bf16"},
        {"precision": "fp16"},
        {"memory_format": "channels_last", "precision": "bf16"},
        {"cudnn_benchmark": True},
        {"optimizer_impl": "fused"},
        {"optimizer_impl": "foreach"},
        {"num_workers": 2, "pin_memory": True, "non_blocking": True, "persistent_workers": True},
        {"allocator": "tuned"},
        {"compile_mode": "default"},
        {"compile_mode": "reduce-overhead"},
        {"compile_mode": "max-autotune-no-cudagraphs"},
        {"compile_mode": "max-autotune"},
        {"compile_mode": "cudagraphs"},
        {"compile_mode": "reduce-overhead", "precision": "bf16", "accumulation_steps": 2},
    ],
    ids=str,
)
def test_every_knob_trains(isolation: Isolation, knobs: dict[str, object]) -> None:
    """Each value of each knob ends well on a GPU, CUDA graphs and GradScaler included."""
    burst = run(isolation, **knobs)
    assert burst.outcome is Outcome.OK, burst.reason


def test_the_forkserver_leaves_cuda_alone(isolation: Isolation) -> None:
    """Forking is safe: the driver is untouched before the fork."""
    assert isolation.fork_unsafe_reason is None


@pytest.mark.parametrize("part", ["forward", "backward", "optimizer"])
def test_a_real_out_of_memory_is_oom(part: str) -> None:
    """Wherever in a step the GPU's memory runs out, it is an oom, and the next burst is told the same."""
    with Isolation("autotune.doctor.workloads:out_of_memory") as isolation:
        isolation.start(120)
        point = Point(config=TrainConfig(batch_size=64), parameters={"part": part})
        bursts = [runner(isolation).run(point, PLAN, DEADLINE_SECONDS) for _ in range(2)]
    assert [burst.outcome for burst in bursts] == [Outcome.OOM, Outcome.OOM]


def test_the_memory_cap_holds(isolation: Isolation) -> None:
    """With a cap far below the need, a burst ends as oom though the card has memory left."""
    config = TrainConfig(batch_size=2048)
    burst = runner(isolation, memory_fraction=0.002).run(Point(config=config), PLAN, DEADLINE_SECONDS)
    assert burst.outcome is Outcome.OOM


def test_players_of_one_process_have_peaks_of_their_own(isolation: Isolation) -> None:
    """Whatever the others take between their blocks."""
    plan = BurstPlan(measure_seconds=1.0, fastest_wins=False)
    first, large, small = (Point(config=TrainConfig(batch_size=size)) for size in (64, 512, 32))
    playing = runner(isolation)
    try:
        playing.challenge(None, [first], plan, DEADLINE_SECONDS, lambda *_: None)
        played = playing.challenge(first, [small, large], plan, DEADLINE_SECONDS, lambda *_: None)
    finally:
        playing.close()
    of_small, of_large = (burst.measurement for burst, _ in played)
    assert of_small is not None
    assert of_large is not None
    assert (of_small.device_memory_bytes or 0) < (of_large.device_memory_bytes or 0)


def test_no_memory_is_held_after_a_burst(isolation: Isolation) -> None:
    """When a burst has ended, the GPU has as much free memory as before."""
    before = gpu().memory_free_bytes or 0
    assert run(isolation, batch_size=512).ok
    deadline = time.monotonic() + 5
    while (gpu().memory_free_bytes or 0) < before - 32 * MIB and time.monotonic() < deadline:
        time.sleep(0.1)
    assert (gpu().memory_free_bytes or 0) >= before - 32 * MIB


def test_telemetry_sees_the_gpu(isolation: Isolation) -> None:
    """Utilisation, clocks, power, energy and memory are read while it trains; SM activity from Hopper on."""
    burst = run(isolation, batch_size=512)
    assert burst.measurement is not None
    telemetry = burst.measurement.telemetry
    assert telemetry is not None
    assert (telemetry.gpu_utilization_fraction or 0) > 0
    assert (telemetry.power_watts or 0) > 10
    assert (telemetry.energy_joules or 0) > 0
    assert (telemetry.device_allocated_bytes or 0) > MIB
    assert (burst.measurement.device_memory_bytes or 0) >= (telemetry.device_allocated_bytes or 0)
    if (gpu().compute_capability or (0, 0)) >= (9, 0):
        assert telemetry.sm_activity_fraction is not None


def test_a_module_that_initialises_cuda_gets_fresh_interpreters() -> None:
    """A driver that is open in the forkserver would be broken in its forks: that is seen, told and got around."""
    with Isolation("tests.workloads.gpu_at_import:build") as isolation:
        isolation.start(120)
        assert "CUDA" in (isolation.fork_unsafe_reason or "")
        assert run(isolation).ok


def test_the_parent_opens_no_context(tmp_path: Path) -> None:
    """After a tuning on the GPU, the parent is not among the processes that hold its memory."""
    code = (
        "import os, sys\nfrom autotune.cli import app\n"
        "try:\n    app(['--model', 'tests.workloads.gpu:build', '--budget', '40s', '--quiet', '--device', 'cuda'])\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "assert 'torch' not in sys.modules\n"
        "held = [os.path.realpath(f'/proc/self/fd/{name}') for name in os.listdir('/proc/self/fd')]\n"
        "assert '/dev/nvidia-uvm' not in held, held\n"  # a context opens it, NVML does not
    )
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr


def test_the_probe_reads_the_card() -> None:
    """Name, UUID, memory, capability, driver and limits come from NVML."""
    card = gpu()
    assert card.name
    assert (card.uuid or "").startswith(("GPU-", "MIG-"))
    assert (card.memory_total_bytes or 0) > 2**30
    assert card.compute_capability is not None
    assert card.driver
    assert (card.power_limit_watts or 0) > 0


@pytest.mark.parametrize(
    "knobs",
    [
        {"precision": "tf32"},
        {"precision": "bf16", "memory_format": "channels_last"},
        {"precision": "fp16", "optimizer_impl": "fused"},
        {"compile_mode": "reduce-overhead"},
        {"compile_mode": "reduce-overhead", "accumulation_steps": 2},
        {"compile_mode": "cudagraphs"},
        {"compile_mode": "cudagraphs", "accumulation_steps": 2},
    ],
    ids=str,
)
def test_sound_arithmetic_agrees_with_eager_fp32(isolation: Isolation, knobs: dict[str, object]) -> None:
    """TF32, half precisions, layouts and CUDA graphs round otherwise, and no more than that."""
    config = TrainConfig(batch_size=64).replace(**knobs)
    measured = runner(isolation).agreement(Point(config=config), 10, DEADLINE_SECONDS)
    verdict = judge_agreement(measured, config, TrainConfig(batch_size=64))
    assert verdict.outcome == "agrees", verdict.reason


def test_a_profile_sees_the_kernels(isolation: Isolation) -> None:
    """Their time, how busy they keep the GPU, and what emptying the cache costs."""
    profile = runner(isolation).profile(Point(config=TrainConfig(batch_size=64)), DEADLINE_SECONDS)
    assert 0 < (profile.busy_fraction or 0) <= 1.05
    assert any(operator.seconds > 0 for operator in profile.operators)
    assert profile.empty_cache_seconds is not None
    assert profile.synchronisations == ()


def test_a_gpu_that_is_fed_does_not_wait_for_data() -> None:
    """Its batches cost the host 40 ms, its steps the GPU 100: together 100, and nobody waits."""
    with Isolation("autotune.doctor.workloads:timed") as isolation:
        isolation.start(120)
        config = TrainConfig(batch_size=4)
        point = Point(config=config, parameters={"step_ms": 100.0, "fetch_ms": 40.0})
        burst = runner(isolation).run(point, PLAN, DEADLINE_SECONDS)
    assert burst.measurement is not None
    assert burst.measurement.samples_per_second == pytest.approx(4 / 0.1, rel=0.05)
    assert burst.measurement.data_wait_fraction < 0.05


def test_a_launch_bound_workload_is_seen_in_the_check() -> None:
    """Its kernels take a small part of a step: CUDA graphs are worth a compile."""
    with Isolation("autotune.doctor.workloads:launching") as isolation:
        isolation.start(120)
        facts = runner(isolation).check(DEADLINE_SECONDS)
    assert 0 < (facts.device_busy_fraction or 0) < 0.5


def test_a_loss_that_waits_for_the_gpu_is_named() -> None:
    """By the user's own line."""
    with Isolation("tests.workloads.gpu:waits_for_the_device") as isolation:
        isolation.start(120)
        profile = runner(isolation).profile(Point(config=TrainConfig(batch_size=64)), DEADLINE_SECONDS)
    assert profile.synchronisations[0].where.startswith("gpu.py:")
