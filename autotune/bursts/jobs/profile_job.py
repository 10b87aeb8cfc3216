"""The job of a profile, in its own process: the slowest operators, waits for the device, the cost of a sample.

Batches stay on the device, so that a slow loader does not hide operators; samples are read separately.
"""

from __future__ import annotations

import cProfile
import itertools
import math
import os
import pstats
import re
import traceback
from collections import Counter
from pathlib import Path
from time import perf_counter  # by name: the user's module may replace what `time` holds
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import IterableDataset

import autotune
from autotune.bursts.hosts.protocol import PipeReporter, Request
from autotune.bursts.jobs.feed import DeviceFeed
from autotune.bursts.jobs.prepared import prepared
from autotune.bursts.jobs.trainer import Trainer
from autotune.measuring import Operator, Profile, SampleCost, SamplePart, Synchronisation
from autotune.training.tuned import Tuned
from autotune.workload.workload import Workload, indices_of

TOP_OPERATORS = 10
WARMUP_STEPS, MOST_STEPS, STEPS_SECONDS = 3, 20, 1.0
MOST_SAMPLES, SAMPLES_SECONDS = 200, 0.8
NOTABLE_SHARE = 0.05
LEAST_HALVED = 4
"""The smallest micro-batch whose half is trained as well: BatchNorm takes two samples or more."""
ATTRIBUTED_SHARE = 0.5
"""Least share of the device's work that must be attributed to operators; else its kernels are listed."""
WHOLE_SHARE = 0.9
"""A dataset that spends this share of its time in another one's ``__getitem__`` only wraps it."""
_WAITING = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal")
_LIBRARIES = tuple(str(Path(module.__file__ or "").parent) + os.sep for module in (torch, autotune))

_METHOD = re.compile(r"<(?:built-in )?method (.+)>")
Function = tuple[str, int, str]
"""A function as cProfile names it: file, line, name."""


def run_profile(request: Request, reporter: PipeReporter) -> Profile:
    """Profiles a point."""
    with prepared(request, reporter) as setup:
        config = setup.tuned.config.replace(num_workers=0, data_placement="loader")
        tuned = Tuned(config, device=setup.tuned.device)
        reporter.phase("sample")
        sample = sample_cost(setup.workload)
        reporter.phase("operators")
        trainer = Trainer(setup.workload, tuned, DeviceFeed(setup.workload, tuned))
        figures: dict[str, Any] = {"sample": sample}
        profile = operators_of(trainer)
        if not config.is_compiled:  # compiled code cannot be watched, and another shape would be compiled anew
            figures |= {"batch_gain": batch_gain(trainer), "synchronisations": synchronisations(trainer)}
    return profile.model_copy(update=figures)


def batch_gain(trainer: Trainer) -> float | None:
    """The rate of a step over that of a step with half of its samples; None if these would be less than two."""
    config = trainer.tuned.config
    if config.batch_size < LEAST_HALVED:
        return None
    tuned = Tuned(config.replace(batch_size=config.batch_size // 2), device=trainer.tuned.device)
    half = Trainer(trainer.workload, tuned, DeviceFeed(trainer.workload, tuned), trainer.learner)
    seconds: dict[Trainer, list[float]] = {half: [], trainer: []}
    began = perf_counter()
    while len(seconds[half]) < MOST_STEPS and perf_counter() - began < STEPS_SECONDS:
        for side, taken in seconds.items():
            _timed(side, 1)  # the other one's batch is in the caches
            taken.append(_timed(side, 1, by_sample=True))
    return min(seconds[half]) / min(seconds[trainer])


def operators_of(trainer: Trainer) -> Profile:
    """The slowest operators of some steps."""
    on_gpu = trainer.tuned.device.type == "cuda"
    _timed(trainer, WARMUP_STEPS)
    steps = max(1, min(MOST_STEPS, int(STEPS_SECONDS / _timed(trainer, 1))))
    seconds = _timed(trainer, steps)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with torch.profiler.profile(activities=activities) as profiler:
        samples = sum(trainer.step() for _ in range(steps))
        trainer.feed.clock.synchronize()
    events = profiler.key_averages()
    kernels = [event for event in events if _on_device(event)]
    busy_seconds = math.fsum(event.self_device_time_total for event in kernels) / 1e6
    called = [event for event in events if event.device_type == DeviceType.CPU]
    taken = [(event.self_device_time_total if on_gpu else event.self_cpu_time_total) / 1e6 for event in called]
    if on_gpu and math.fsum(taken) < ATTRIBUTED_SHARE * busy_seconds:  # a replayed graph: no operator was called
        called, taken = kernels, [event.self_device_time_total / 1e6 for event in kernels]
    operators = [
        Operator(name=event.key, seconds=total / samples, calls=event.count / steps)
        for event, total in zip(called, taken, strict=True)
    ]
    return Profile(
        operators=tuple(sorted(operators, key=lambda operator: -operator.seconds)[:TOP_OPERATORS]),
        operator_calls=sum(operator.calls for operator in operators if operator.name.startswith("aten::")),
        busy_fraction=busy_seconds / seconds if on_gpu else None,
        empty_cache_seconds=_empty_cache_seconds(trainer, seconds / steps) if on_gpu else None,
    )


def _on_device(event: Any) -> bool:
    """Whether a row is work of the device, such as a kernel or a copy. Annotations of the user's code only span it."""
    return event.device_type != DeviceType.CPU and not getattr(event, "is_user_annotation", False)


def _timed(trainer: Trainer, steps: int, *, by_sample: bool = False) -> float:
    """Seconds of some steps, or of one of their samples, the device's work included.

    Samples are counted: where an epoch is shorter than a batch, batches are incomplete.
    """
    began = perf_counter()
    samples = sum(trainer.step() for _ in range(steps))
    trainer.feed.clock.synchronize()
    return max(perf_counter() - began, 1e-9) / (samples if by_sample else 1)


def _empty_cache_seconds(trainer: Trainer, step_seconds: float) -> float:
    """Seconds that emptying the allocator's cache costs: the call, and the delay of the next step."""
    began = perf_counter()
    torch.cuda.empty_cache()
    emptied = perf_counter() - began
    return max(0.0, emptied + _timed(trainer, 1) - step_seconds)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the user's lines at which the host must wait for a device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waits: Counter[tuple[str, str]] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.name().partition(".")[0]
        if name in _WAITING or (name == "aten::_to_copy" and _leaves_device(args, kwargs or {})):
            self.waits[name, _users_line()] += 1
        return function(*args, **(kwargs or {}))


def synchronisations(trainer: Trainer) -> tuple[Synchronisation, ...]:
    """Where the user's loss, and the model in it, wait for the device, in one micro-step."""
    _, batch = next(iter(trainer.feed))
    with _Watch() as watch, trainer.tuned.autocast():
        trainer.workload.loss(trainer.model, batch)
    return tuple(
        Synchronisation(operator=operator, where=where, calls=calls)
        for (operator, where), calls in watch.waits.most_common()
    )


def _leaves_device(args: Any, kwargs: Any) -> bool:
    tensor = args[0] if args else None
    target = kwargs.get("device")
    return isinstance(tensor, torch.Tensor) and tensor.device.type != "cpu" and str(target) == "cpu"


def _users_line() -> str:
    """The innermost line of the stack that is neither torch's nor ours."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith((*_LIBRARIES, "<")):
            return f"{Path(frame.filename).name}:{frame.lineno}"
    return "torch"


def sample_cost(workload: Workload) -> SampleCost | None:
    """What reading one sample takes, and the functions that it calls; None for an iterable dataset."""
    dataset: Any = workload.dataset
    if isinstance(dataset, IterableDataset) or not len(dataset):
        return None
    indices = list(itertools.islice(indices_of(workload), MOST_SAMPLES))
    dataset[indices[0]]  # reads and caches what happens only once
    began = perf_counter()
    count = 0
    for index in indices:
        dataset[index]
        count += 1
        if perf_counter() - began > SAMPLES_SECONDS:
            break
    seconds = (perf_counter() - began) / count
    profiler = cProfile.Profile()
    for index in indices[:count]:
        profiler.runcall(dataset.__getitem__, index)
    return SampleCost(seconds=seconds, parts=tuple(_parts(profiler, seconds)))


def _parts(profiler: cProfile.Profile, seconds: float) -> list[SamplePart]:
    """What the function that reads a sample calls. Profiling inflates times, so their shares apply to plain seconds."""
    stats: dict[Function, Any] = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    whole = sum(own for _, _, own, _, _ in stats.values())
    root = max(stats, key=lambda function: stats[function][3], default=None)
    if root is None or not whole:
        return []
    while (inner := _wrapped(stats, root)) is not None:
        root = inner
    called = {f: callers[root][3] for f, (*_, callers) in stats.items() if root in callers and f != root}
    return [
        SamplePart(
            name=_METHOD.sub(r"\1", name),
            where=f"{Path(file).name}:{line}" if line else None,
            seconds=seconds * total / whole,
        )
        for (file, line, name), total in sorted(called.items(), key=lambda entry: -entry[1])
        if total >= NOTABLE_SHARE * whole
    ]


def _wrapped(stats: dict[Function, Any], function: Function) -> Function | None:
    """The ``__getitem__`` of another dataset in which a function spends nearly all of its time."""
    enough = WHOLE_SHARE * stats[function][3]
    called = ((inner, callers[function][3]) for inner, (*_, callers) in stats.items() if function in callers)
    readers = (inner for inner, seconds in called if seconds >= enough and inner[2] in {"__getitem__", "__getitems__"})
    return next((inner for inner in readers if inner != function), None)
