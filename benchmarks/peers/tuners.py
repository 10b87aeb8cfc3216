"""The tools that are nearest to ours: two tune a part each, by figures without spread, and one goes by rules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune import TrainConfig
from autotune.workload.target import load_workload
from benchmarks.peers import loadtune_workload
from benchmarks.peers.finders import device_name
from benchmarks.plain import make_loader, make_optimizer


def pytorch_autotune(target: str, seconds: float, baseline: TrainConfig, tell: Callable[[TrainConfig], None]) -> None:
    """pytorch-autotune 2.0: precision, compile mode, layout and fused optimizer, on one batch of ``(input, target)``.

    Raises:
        ValueError: From the tool itself, where a batch is something else.
    """
    from pytorch_autotune import autotune

    workload = load_workload(target)
    _, batch = next(iter(make_loader(workload, baseline.replace(num_workers=0))))

    def loss(output: Any, expected: Any) -> Any:
        return workload.loss(lambda _: output, (batch[0], expected))  # type: ignore[arg-type]

    found = autotune(
        workload.model, tuple(batch), loss, optimizer=lambda _: make_optimizer(workload, "default"),
        budget=int(seconds), device=device_name(), cache=False,
    )  # fmt: skip
    half = {"amp_bf16": "bf16", "amp_fp16": "fp16", "tf32": "tf32" if device_name() == "cuda" else "fp32"}
    tell(
        baseline.replace(
            precision=half.get(found.config.precision, "fp32"),
            cudnn_benchmark=found.config.precision != "fp32_default",
            compile_mode=None if found.config.compile == "off" else found.config.compile,
            memory_format="channels_last" if found.config.channels_last else "contiguous",
            optimizer_impl="fused" if found.config.fused_opt else "default",
        )
    )


def autotrainer(target: str, _seconds: float, baseline: TrainConfig, tell: Callable[[TrainConfig], None]) -> None:
    """What `prepare` of autotrainer 0.18 applies, by rules, all of them for GPUs; it measures nothing."""
    import torch
    from autotrainer import prepare

    workload = load_workload(target)
    model, loader = prepare(workload.model, make_loader(workload, baseline), auto_launch=False)
    on_gpu = device_name() == "cuda"
    half = "bf16" if on_gpu and torch.cuda.is_bf16_supported() else "fp16"
    tell(
        baseline.replace(
            num_workers=loader.num_workers,
            prefetch_factor=loader.prefetch_factor,
            pin_memory=loader.pin_memory,
            persistent_workers=loader.persistent_workers,
            precision=half if on_gpu else baseline.precision,
            memory_format="channels_last" if hasattr(model, "_autotrainer_channels_last") else baseline.memory_format,
            cudnn_benchmark=torch.backends.cudnn.benchmark,
        )
    )


def loadtune(
    target: str, _seconds: float, baseline: TrainConfig, tell: Callable[[TrainConfig], None], *, auto_batch: bool
) -> None:
    """The command of loadtune 0.3: workers and threads where training waits for data, else compile and AMP.

    It has no budget.
    """
    from loadtune.experiment import Trial, best_trial
    from loadtune.knobs import Knobs

    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder, "raw.json")
        command = [
            sys.executable, "-m", "loadtune.cli", "tune", loadtune_workload.__file__, "--workers",
            str(baseline.num_workers), "--batch-size", str(baseline.batch_size), "--no-plots", "--save-raw", str(raw),
            "--out", str(Path(folder, "report.md")), *(["--auto-batch"] if auto_batch else []),
        ]  # fmt: skip
        subprocess.run(command, env=os.environ | {loadtune_workload.VARIABLE: target}, check=True)
        if not raw.exists():  # it proposed no trial
            tell(baseline)
            return
        found = json.loads(raw.read_text())
    trials = [Trial(Knobs.from_dict(one["knobs"]), one["reason"], one["result"]) for one in found["trials"]]
    best = best_trial(trials)
    if best is None or best.throughput <= found["baseline"]["throughput"]:
        tell(baseline)
        return
    knobs = best.knobs
    tell(
        baseline.replace(
            batch_size=knobs.batch_size or baseline.batch_size,
            num_workers=knobs.num_workers,
            prefetch_factor=knobs.prefetch_factor if knobs.num_workers else None,
            persistent_workers=knobs.persistent_workers,
            pin_memory=knobs.pin_memory,
            non_blocking=knobs.non_blocking,
            num_threads=knobs.num_threads,
            compile_mode="default" if knobs.compile else None,
            precision=("bf16" if device_name() == "cpu" else "fp16") if knobs.amp else "fp32",
        )
    )
