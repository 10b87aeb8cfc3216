"""Real-looking measurements, bursts, machines and results for tests: figures of a plausible order."""

from __future__ import annotations

import json
import platform
import random
from datetime import datetime, timezone
from typing import Any

from autotune.hardware.model import Cpu, Gpu, Hardware, Memory, Peaks, Software
from autotune.knobs.config import TrainConfig
from autotune.measuring.pairs import Pair
from autotune.measuring.records import Block, Burst, Measurement, Outcome, Point
from autotune.measuring.speedup import Speedup
from autotune.measuring.statistics import Interval
from autotune.results.result import AblationRow, Constraints, Diagnosis, Result, SearchRecord, Side, WorkloadRecord

GIB = 2**30


def make_measurement(
    rate: float = 1000.0, *, blocks: int = 8, spread: float = 0.01, seed: int = 0, **changes: Any
) -> Measurement:
    """A measurement whose blocks of about a second scatter around a rate.

    Args:
        rate: Samples per second.
        blocks: How many.
        spread: Standard deviation of a block's rate, relative to the rate.
        seed: Of the scatter.
        changes: Other fields of `Measurement`.
    """
    rng = random.Random(seed)
    samples = max(1, round(rate))
    made = tuple(
        Block(samples=samples, seconds=samples / (rate * max(0.1, rng.gauss(1, spread))), data_wait_seconds=0.1)
        for _ in range(blocks)
    )
    fields: dict[str, Any] = {
        "blocks": made,
        "start_seconds": 0.4,
        "build_seconds": 0.2,
        "warmup_seconds": 1.5,
        "device_memory_bytes": 3 * GIB,
        "host_memory_bytes": 2 * GIB,
        "final_loss": 0.7,
    }
    return Measurement(**{**fields, **changes})


def make_pair(partner: Burst, ratio: float, half: float = 0.02) -> Pair:
    """A candidate that played beside a burst's point, with half the width of the interval."""
    return Pair(partner=partner.point, ratio=ratio, ci95=Interval(ratio - half, ratio + half), blocks=9)


def make_burst(
    rate: float | None = 1000.0,
    *,
    outcome: Outcome = Outcome.OK,
    reason: str | None = None,
    parameters: dict[str, Any] | None = None,
    seed: int = 0,
    **knobs: Any,
) -> Burst:
    """A burst of the default config with some knobs changed; without a rate it has no measurement."""
    ended_well = outcome is Outcome.OK and rate is not None
    return Burst(
        point=Point(config=TrainConfig(**knobs), parameters=parameters or {}),
        outcome=outcome,
        measurement=make_measurement(rate, seed=seed) if ended_well and rate is not None else None,
        reason=reason,
        phase="done" if ended_well else "warmup",
        seconds=9.5,
    )


def make_gpu(**changes: Any) -> Gpu:
    """A desktop card with all that its driver reports."""
    fields: dict[str, Any] = {
        "kind": "cuda",
        "index": 0,
        "name": "NVIDIA GeForce RTX 4070",
        "uuid": "GPU-5e3ad3a5-9c4f-4e2b-8a3e-0d6a1b6f0c11",
        "memory_total_bytes": 12 * GIB,
        "memory_free_bytes": 11 * GIB,
        "compute_capability": (8, 9),
        "sm_count": 46,
        "attention": "flash_attention",
        "precisions": ("fp32", "tf32", "bf16", "fp16"),
        "precision_reason": "compute capability 8.9 has tensor cores for them",
        "driver": "570.86",
        "cuda": "12.8",
        "power_limit_watts": 200.0,
        "power_watts": 12.0,
        "sm_clock_mhz": 210,
        "sm_clock_max_mhz": 3105,
        "memory_clock_mhz": 405,
        "temperature_celsius": 38,
        "utilization_fraction": 0.02,
        "mig": False,
    }
    return Gpu(**{**fields, **changes})


def make_hardware(gpu: Gpu | None = None, **changes: Any) -> Hardware:
    """A machine with two usable CPUs in a container, and with the GPU that is given, else none."""
    fields: dict[str, Any] = {
        "hostname": "workstation",
        "gpus": (gpu,) if gpu else (),
        "cpu": Cpu(
            model="Intel(R) Xeon(R) Gold 6338",
            physical_cores=32,
            logical_cores=64,
            budget=2,
            budget_reason="cgroup v2 quota of 200 %",
            isa=("avx2", "avx512f"),
            precisions=("fp32", "bf16"),
            precision_reason="AVX-512 computes bf16 by way of fp32",
        ),
        "memory": Memory(
            total_bytes=64 * GIB, available_bytes=7 * GIB, cgroup_limit_bytes=8 * GIB, shm_bytes=GIB // 16
        ),
        "software": make_software(),
        "peaks": Peaks(
            matmul_flops_per_second={"fp32": 1.84e11, "bf16": None}, memory_bytes_per_second=1.9e10, seconds=0.9
        ),
        "unread": {"gpus": "no driver answered"} if gpu is None else {},
    }
    return Hardware(**{**fields, **changes})


def make_software(**changes: Any) -> Software:
    """Versions of a machine without CUDA."""
    fields = {"os": "Linux 6.8", "python": "3.11.7", "torch": "2.13.0", "autotune": "0.1.0"}
    return Software(**{**fields, **changes})


def make_result(**changes: Any) -> Result:
    """A complete result of a CPU: half as fast again, with what was changed and why it is believed.

    Args:
        changes: Fields of `Result`, and `name`, `target`, `fingerprint`, `samples` of its workload.
    """
    workload: dict[str, Any] = {"target": "train:build", "name": "digits", "samples": 50_000, "fingerprint": "a1b2c3"}
    workload |= {field: changes.pop(field) for field in tuple(workload) if field in changes}
    baseline = TrainConfig(batch_size=64)
    best = TrainConfig(batch_size=32, accumulation_steps=2, precision="bf16", num_workers=2)
    fields: dict[str, Any] = {
        "status": "complete",
        "created": datetime(2026, 11, 20, 12, 30, tzinfo=timezone.utc),
        "workload": WorkloadRecord(**workload),
        "hardware": make_hardware(),
        "software": make_software(),
        "baseline": Side(config=baseline, measurement=make_measurement(1000.0, seed=1)),
        "best": Side(config=best, measurement=make_measurement(1500.0, seed=2)),
        "speedup": Speedup(ratio=1.498, ci95=Interval(1.471, 1.526), pairs=5),
        "ablation": (
            AblationRow(knob="precision", before="fp32", after="bf16", ratio=1.31, ci95=Interval(1.27, 1.35)),
        ),
        "constraints": Constraints(
            budget_seconds=600.0,
            device="cpu",
            effective_batch=64,
            memory_target=0.9,
            utilization_target=0.95,
            sampler="tpe",
            seed=0,
        ),
        "stopped_by": "budget",
        "search": SearchRecord(
            seconds=596.0,
            bursts=31,
            outcomes={"ok": 27, "oom": 3, "crashed": 1},
            measuring_fraction=0.61,
            skipped_knobs={"pin_memory": "there is no GPU to copy to"},
        ),
        "diagnosis": Diagnosis(
            ceilings={"compute": 1580.0, "loader": 4210.0, "copy": None},
            data_wait_fraction=0.08,
            advice=("a larger model would hardly be slower to feed",),
        ),
    }
    return Result(**{**fields, **changes})


def note_line(of: Result, training: str = "a", ratio: float = 1.0, **changes: Any) -> str:
    """A line of a training on this machine that reaches so much of a result's claim in five minutes.

    Args:
        of: The result.
        training: The training's id.
        ratio: The rate over the claimed one.
        changes: Fields of `Note`.
    """
    assert of.best.measurement is not None
    seconds = changes.pop("seconds", 300.0)
    rate = of.best.measurement.samples_per_second
    cpu = of.hardware.cpu
    fields = {
        "schema": "autotune.realised/1", "result": of.created.isoformat(), "training": training,
        "ended": datetime.now(timezone.utc).isoformat(), "hostname": platform.node(),
        "cpu": cpu.model, "cpus": cpu.budget,
        "torch": of.software.torch, "gpu": None, "ranks": 1, "samples": round(ratio * rate * seconds),
        "seconds": seconds, "wait_seconds": 0.0, "device_memory_bytes": 3 * GIB, "host_memory_bytes": 2 * GIB,
        "taken_fraction": 0.0, "sm_clock_mhz": None, "sample_elements": None, "compiled": False,
    }  # fmt: skip
    return json.dumps(fields | changes)
