"""A result that has something for every section of the report, and names that would break a careless page."""

from __future__ import annotations

from typing import Any

from autotune.knobs.config import TrainConfig
from autotune.measuring.numerics import Gate, Numerics
from autotune.measuring.records import Headroom, Operator, Outcome, Profile, SampleCost, SamplePart
from autotune.measuring.speedup import Speedup
from autotune.measuring.statistics import Interval
from autotune.measuring.telemetry_summary import TelemetrySummary
from autotune.results.result import AblationRow, Diagnosis, Result, Side, TrialRecord
from tests.factories import GIB, make_gpu, make_hardware, make_measurement, make_result

HOSTILE = "<script>alert(1)</script>"
BEST = {"batch_size": 192, "precision": "bf16"}


def trial(rate: float | None = 1000.0, memory_gib: float | None = 2.0, **fields: Any) -> TrialRecord:
    """A burst that ended well; without a rate it ran out of memory."""
    made: dict[str, Any] = {
        "stage": "suggestions", "reason": "all at once", "samples_per_second": rate, "seconds": 9.0,
        "outcome": Outcome.OK if rate is not None else Outcome.OOM,
        "failure": None if rate is not None else "12 GiB were wanted",
        "memory_bytes": round(memory_gib * GIB) if memory_gib is not None else None,
    }  # fmt: skip
    return TrialRecord(**{**made, **fields})


def full_result(**changes: Any) -> Result:
    """A GPU's result with trials, failures, ablation, ceilings, profiles and telemetry on both sides."""
    busy = {"seconds": 10.0, "cpu_fraction": 0.5, "gpu_utilization_fraction": 0.97, "power_watts": 180.0}
    profile = Profile(
        operators=(Operator(name="aten::mm", seconds=2e-6, calls=12.0),),
        sample=SampleCost(seconds=1e-3, parts=(SamplePart(name="decode", where="data.py:7", seconds=9e-4),)),
    )
    fields: dict[str, Any] = {
        "hardware": make_hardware(make_gpu()),
        "constraints": make_result().constraints.model_copy(update={"device": "cuda"}),
        "baseline": Side(
            config=TrainConfig(batch_size=64),
            measurement=make_measurement(1000, seed=1, telemetry=TelemetrySummary(**busy)),
        ),
        "best": Side(
            config=TrainConfig(**BEST, compile_mode="default"),
            measurement=make_measurement(2500, seed=2, compile_seconds=40.0, telemetry=TelemetrySummary(**busy)),
        ),
        "speedup": Speedup(ratio=2.5, ci95=Interval(2.4, 2.6), pairs=5, blocks=(2, 2, 2, 1, 1)),
        "ablation": (
            AblationRow(knob="precision", before="fp32", after="bf16", ratio=1.6, ci95=Interval(1.5, 1.7)),
            AblationRow(knob="compile_mode", before="none", after="default", ratio=1.25, ci95=Interval(1.2, 1.3)),
        ),
        "trials": (
            trial(1000, 3.0, stage="baseline"),
            trial(1300, 3.5, changes={"batch_size": 64, "precision": "bf16", "compile_mode": "default"}),
            trial(
                1400, 6.0, changes={"batch_size": 128, "precision": "bf16", "compile_mode": "default"},
                partner={"precision": "bf16"}, ratio=1.12, ci95=Interval(1.08, 1.16),
            ),
            trial(None, None, changes={"batch_size": 512, "precision": "bf16", "compile_mode": "default"}),
            trial(2500, 8.5, changes={**BEST, "compile_mode": "default"}, stage="confirm", disturbance="other load"),
        ),
        "numerics": Numerics(
            outcome="agrees", reason="as eager fp32", steps=14, notes=("the model has BatchNorm",),
            gates=(Gate(name="cosine of the first step's gradients", value=0.99, limit=0.95, passed=True),),
        ),
        "diagnosis": Diagnosis(
            headroom=Headroom(ratio=1.4, ci95=Interval(1.35, 1.45), cached_samples_per_second=2380.0),
            ceilings={"compute": 2600.0, "loader": 9000.0, "copy": None},
            data_wait_fraction=0.02, advice=("mind the cooling",), before=profile, after=profile,
        ),
    }  # fmt: skip
    return make_result(**{**fields, **changes})


def beside_other_load(foreign: float) -> Result:
    """A confirmed gain that was measured while other programs took a share of the CPUs."""
    beside = TelemetrySummary(seconds=10.0, foreign_cpu_fraction=foreign, idle_cpu_fraction=0.0)
    return make_result(best=Side(config=TrainConfig(), measurement=make_measurement(1500.0, telemetry=beside)))
