"""General optimisers: what one codes with Optuna or Ray Tune in an afternoon, over the space that autotune searches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

from autotune import TrainConfig
from autotune.bursts.hosts.endings import result_of
from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan, Request
from autotune.bursts.runner import ProcessRunner
from autotune.hardware import merge, probe_host
from autotune.knobs.config import Scalar
from autotune.knobs.space import Space, build_space
from autotune.measuring.records import Point
from autotune.workload.target import load_workload
from benchmarks.peers.finders import device_name
from benchmarks.plain import Loop, set_process

MEASURED_SECONDS = 2.0
START_SECONDS = 60.0


def optuna(
    sampler: Literal["tpe", "random"], target: str, seconds: float, baseline: TrainConfig,
    tell: Callable[[TrainConfig], None],
) -> None:  # fmt: skip
    """Optuna's ``study.optimize``, its sampler as it comes; measured by autotune's bursts, the best figure wins."""
    import optuna as library

    began = time.monotonic()
    with Isolation(target) as isolation:
        isolation.start(START_SECONDS)
        runner = ProcessRunner(isolation, device_name())
        space = _space(isolation, runner, seconds)

        def objective(trial: library.Trial) -> float:
            config = space.config({k: trial.suggest_categorical(k, c.values) for k, c in space.choices.items()})
            if space.violation(config) is not None:
                raise library.TrialPruned
            trial.set_user_attr("config", config.model_dump())
            left = seconds - (time.monotonic() - began)
            rate = runner.run(Point(config=config), BurstPlan(), max(1.0, left)).rate
            if rate is None:
                raise library.TrialPruned
            return rate

        def told(study: library.Study, trial: library.trial.FrozenTrial) -> None:
            if trial.state == library.trial.TrialState.COMPLETE and study.best_trial.number == trial.number:
                tell(TrainConfig(**trial.user_attrs["config"]))

        samplers = {"tpe": library.samplers.TPESampler, "random": library.samplers.RandomSampler}
        study = library.create_study(direction="maximize", sampler=samplers[sampler](seed=0))
        # First what is trained with today; without workers any prefetch factor stands for none.
        first = {knob: getattr(baseline, knob) for knob in space.choices}
        study.enqueue_trial(
            {k: v if v in space.choices[k].values else space.choices[k].values[0] for k, v in first.items()}
        )
        study.optimize(objective, timeout=seconds - (time.monotonic() - began), callbacks=[told])


def ray(target: str, seconds: float, baseline: TrainConfig, tell: Callable[[TrainConfig], None]) -> None:
    """Ray Tune as it comes, that is random search; one trial at a time, each in an actor that trains and counts."""
    from ray import tune

    began = time.monotonic()
    with Isolation(target) as isolation:
        isolation.start(START_SECONDS)
        space = _space(isolation, ProcessRunner(isolation, device_name()), seconds)

    def trainable(values: dict[str, Scalar]) -> None:
        config = space.config(values)
        rate = 0.0
        if space.violation(config) is None:
            rate = _rate(target, config)
        tune.report({"rate": rate})

    class Told(tune.Callback):  # type: ignore[misc]
        """Tells the best so far whenever a trial has reported."""

        best = 0.0

        def on_trial_result(self, *_: Any, result: dict[str, Any], **__: Any) -> None:
            if result["rate"] > self.best:
                self.best = result["rate"]
                tell(space.config(result["config"]))

    tuner = tune.Tuner(
        tune.with_resources(trainable, {"cpu": space_cpus(), "gpu": int(device_name() == "cuda")}),
        param_space={name: tune.choice(list(choice.values)) for name, choice in space.choices.items()},
        tune_config=tune.TuneConfig(
            metric="rate", mode="max", num_samples=-1, time_budget_s=seconds - (time.monotonic() - began)
        ),
        run_config=tune.RunConfig(callbacks=[Told()], verbose=0),
    )
    tell(baseline)
    tuner.fit()


def space_cpus() -> int:
    """All CPUs of the machine, so that one trial runs at a time."""
    return probe_host().cpu.budget


def _space(isolation: Isolation, runner: ProcessRunner, seconds: float) -> Space:
    """What autotune would search here in this time."""
    request = Request(job="probe", device=device_name(), peak_seconds=0.5)
    hardware = merge(probe_host(), result_of(isolation.run(request, START_SECONDS), "probing the machine"))
    facts = runner.check(START_SECONDS)
    return build_space(
        hardware, facts, device=device_name(), effective_batch=facts.baseline.effective_batch,
        budget_seconds=seconds,
    )  # fmt: skip


def _rate(target: str, config: TrainConfig) -> float:
    """Samples per second of a few seconds of training, after as long a warm-up; compiling is not counted."""
    import torch

    set_process(config, torch.device(device_name()))
    loop = Loop(load_workload(target), config, device_name())
    began, samples = 0.0, 0
    started = time.perf_counter()
    for count in loop.steps():
        now = time.perf_counter()
        if not began:
            if now - started >= MEASURED_SECONDS / 2:
                loop.synchronize()
                began = time.perf_counter()
            continue
        samples += count
        if now - began >= MEASURED_SECONDS:
            break
    loop.synchronize()
    return samples / (time.perf_counter() - began)
