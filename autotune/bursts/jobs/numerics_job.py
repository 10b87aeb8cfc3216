"""The job of a numerics check, in its own process: eager fp32 twice, then the config, from one state.

A step trains on one micro-batch, or on two if the config accumulates: errors between micro-batches show in the second.
Samples are read and augmented once, so that all runs see the same batches. If eager fp32 has no memory for the config's
batch, all runs train on smaller ones.
"""

from __future__ import annotations

import copy
import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from autotune.bursts.hosts.protocol import PipeReporter, Request
from autotune.bursts.jobs.feed import Feed, copied
from autotune.bursts.jobs.prepared import cap_memory, end_over_limit
from autotune.knobs import TrainConfig
from autotune.measuring import Agreement, Point, Trace
from autotune.recorder.gradients import cosine, gradient_of
from autotune.recorder.order import seed_all
from autotune.timing.failing import causes_of, exhausted
from autotune.timing.usage import UsageWatch
from autotune.torch_settings.precision import is_half, products_in
from autotune.training.sharding import whole
from autotune.training.tuned import Tuned
from autotune.workload.target import load_workload
from autotune.workload.workload import Workload

SMALLEST_SCALE = 1.0
"""A GradScaler below this scale will not find one that makes gradients finite."""
MOST_PARTS = 2
"""Micro-batches of a step: a second one is where accumulation can go wrong."""


class _ReferenceTooLargeError(Exception):
    """Eager fp32 ran out of memory."""


def run_agreement(request: Request, reporter: PipeReporter) -> Agreement:
    """Trains a few steps under eager fp32, twice, and under the config."""
    point = request.point
    cap_memory(request)
    with UsageWatch(request.memory_limit_bytes, end_over_limit(request, reporter), peaks=True):
        while True:
            try:
                return _agreement(request, reporter, point)
            except _ReferenceTooLargeError as error:
                if point.config.batch_size == 1:
                    raise error.__cause__ or error from None
                halved = point.config.replace(batch_size=point.config.batch_size // 2)
                point = point.model_copy(update={"config": halved})
            torch.cuda.empty_cache()


def _agreement(request: Request, reporter: PipeReporter, point: Point) -> Agreement:
    """The agreement at a point's own batch size.

    Raises:
        _ReferenceTooLargeError: Eager fp32 has no memory for it.
    """
    device = request.device or "cpu"
    exact = Tuned(TrainConfig(batch_size=point.config.batch_size, num_threads=point.config.num_threads), device=device)
    parts = min(MOST_PARTS, point.config.accumulation_steps)
    reporter.phase("build")
    torch.manual_seed(request.seed)
    workload = load_workload(request.importable, point.parameters)
    model = workload.model
    loading = Tuned(point.config.replace(data_placement="loader"), device=device)
    batches = _batches(workload, loading, max(parts, request.steps // parts * parts))
    _silence_dropout(model)
    state = copy.deepcopy(model.state_dict())
    reporter.phase("eager fp32")
    try:
        with products_in("fp32"):
            reference, gradient = _train(workload, exact, batches, parts, request.seed)
            model.load_state_dict(state)
            rest = random.Random(request.seed).sample(batches[parts:], k=len(batches) - parts)
            control, _ = _train(workload, exact, [*batches[:parts], *rest], parts, request.seed + 1, gradient)
    except Exception as error:
        if not any(exhausted(cause, device) == "oom" for cause in causes_of(error)):
            raise
        raise _ReferenceTooLargeError from error
    model.load_state_dict(state)
    reporter.phase("config")
    candidate, _ = _train(workload, Tuned(point.config, device=device), batches, parts, request.seed, gradient)
    return Agreement(
        reference=reference,
        control=control,
        candidate=candidate,
        has_batch_norm=any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()),
    )


def _batches(workload: Workload, tuned: Tuned, count: int) -> list[Any]:
    """Batches as training draws them, by as many workers, read once; epoch after epoch where there are few."""
    return [batch for _, batch in itertools.islice(Feed(workload, tuned), count)]


def _train(
    workload: Workload,
    tuned: Tuned,
    batches: Sequence[Any],
    parts: int,
    seed: int,
    reference: torch.Tensor | None = None,
) -> tuple[Trace, torch.Tensor]:
    """Takes a step for every `parts` batches; compares the first step's gradient with a reference, and returns it."""
    seed_all(seed)
    workload.model.zero_grad(set_to_none=True)
    optimizer = workload.make_optimizer()
    model, _ = tuned.prepare(workload.model, optimizer)
    model.train()
    loss_of = tuned.compiled_loss(workload.loss)
    scaler = tuned.scaler()
    half = any(is_half(weight.dtype) for weight in model.parameters())
    losses: list[float] = []
    skipped, norm = 0, math.inf
    gradient = torch.empty(0)  # the first that is finite
    for first in range(0, len(batches), parts):
        step = batches[first : first + parts]
        step_losses = _backward(loss_of, model, tuned, scaler, step)
        losses += map(float, step_losses)  # after all of them, so that no micro-batch waits for the previous one
        half |= any(is_half(loss.dtype) for loss in step_losses)
        scaler.unscale_(optimizer)
        while not math.isfinite(norm):
            gradient, norm = gradient_of(model.parameters(), whole)
            if math.isfinite(norm) or scaler.get_scale() <= SMALLEST_SCALE:
                break
            # The scaler starts too high on purpose: it steps down, on the first step, until the gradients are finite.
            _step(scaler, optimizer)
            seed_all(seed)
            _backward(loss_of, model, tuned, scaler, step)
            scaler.unscale_(optimizer)
        if workload.clip_grad_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), workload.clip_grad_norm)
        skipped += _step(scaler, optimizer)
    likeness = 1.0 if reference is None else cosine(gradient, reference)
    trace = Trace(losses=tuple(losses), gradient_norm=norm, skipped_steps=skipped, cosine=likeness, half=half)
    return trace, gradient


def _backward(
    loss_of: Callable[..., torch.Tensor],
    model: nn.Module,
    tuned: Tuned,
    scaler: torch.amp.GradScaler,
    step: Sequence[Any],
) -> list[torch.Tensor]:
    """The losses of a step's micro-batches; their gradients add up."""
    losses = []
    for batch in step:
        with tuned.autocast():
            loss = loss_of(model, tuned.to_device(copied(batch)))
        scaler.scale(loss / len(step)).backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach().clone())  # a CUDA graph's next replay overwrites it
    return losses


def _step(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> bool:
    """An optimizer step; returns whether the scaler skipped it."""
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    return scaler.get_scale() < before


def _silence_dropout(model: nn.Module) -> None:
    """Switches off dropout in torch's modules: each precision draws other masks, which would hide other differences."""
    for part in model.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        elif isinstance(part, (nn.RNNBase, nn.MultiheadAttention)):
            part.dropout = 0.0
