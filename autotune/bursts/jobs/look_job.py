"""Checks a workload before any burst: builds it, collates a batch, takes a step, and reports what is wrong.

Every mistake ends in one sentence with the remedy, within seconds, before the search starts.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter  # by name: the user's module may replace what `time` holds
from typing import Any, cast

import psutil
import torch
from torch.utils.data import IterableDataset, default_collate
from torch.utils.flop_counter import FlopCounterMode

from autotune.bursts.jobs.feed import Feed, copied
from autotune.bursts.jobs.longest_samples import find_largest
from autotune.bursts.jobs.trainer import evaluated
from autotune.errors import ConfigError, WorkloadError
from autotune.knobs import WorkloadFacts, with_what_is_in_force
from autotune.knobs.loader import REPEATED
from autotune.recorder.attributes import CopiedReading
from autotune.recorder.functions import Functions
from autotune.recorder.samplers import FEEDBACK, MOST_SECONDS, Feedback, own_samplers
from autotune.timing.clock import Clock, clock_of
from autotune.timing.loop import is_compiled, small_fraction, training_facts
from autotune.timing.padding import Padding, padding_of
from autotune.torch_settings.naming import bytes_of, length_of, tensors_in, weights_of
from autotune.torch_settings.process_settings import why_gradients_unfit
from autotune.torch_settings.repeated_blocks import repeated_blocks
from autotune.training.placement import look_at
from autotune.training.tuned import Tuned, torch_device
from autotune.workload.fingerprint import fingerprint
from autotune.workload.user_errors import described, wrap_user_error
from autotune.workload.workload import Workload, draw_samples, indices_of

_CONVOLUTION = re.compile(r"aten::conv(?:_transpose)?([123])d")  # the name of an operator
FETCH_SECONDS = 4.0
"""If fetching a batch takes longer, only part of it is used."""
DRAWN_INDICES = 8
"""Indices to draw from the sampler."""
PADDING_BATCHES, PADDING_SECONDS = 8, 1.0
"""Most batches whose padding is counted, and most seconds to read them. Not tuned."""
AGAIN_SECONDS = 2.0
"""A loss that takes longer is not computed a second time, to time its operators warm."""
PARTED, PARTINGS, LEAST_COUPLING = 8, 5, 0.01
"""The most samples that are halved, to see whether the loss is an average over them; how often; and the least share of
the loss that speaks against it. Twenty workloads whose loss is an average, some over tokens, showed at most 0.0003; a
contrastive one showed 0.28. If random numbers are drawn, a loss often lies beyond both halves by chance, but seldom
five times on the same side."""


def check_workload(workload: Workload, target: str, device: str, halvings: int = 0) -> WorkloadFacts:
    """Finds out what one batch and one step show about a workload.

    Args:
        workload: What is trained.
        target: The target as typed.
        device: The device kind.
        halvings: How often to halve the batch, down to one sample, since the baseline's is too large for memory.

    Raises:
        WorkloadError: Its dataset, collation, loss or optimizer does not work.
    """
    config = with_what_is_in_force(workload.baseline_config, torch_device(device))
    # Eager and in this process: only the user's code is checked, and compiling or starting workers takes long.
    tuned = Tuned(config.eager.replace(num_workers=0, data_placement="loader"), device=device)
    with _blaming(f"{target}: torch's DataLoader refuses the dataset or the sampler"):
        Feed(workload, tuned)  # for example, a sampler for an iterable dataset
    feedback = Feedback(own_samplers(workload.sampler), [MOST_SECONDS])
    reading = CopiedReading(workload.dataset, workload.collate_fn, workload.worker_init_fn)
    read_before = _bytes_read()
    looked_at = max(1, config.batch_size >> halvings)
    drawn = draw_samples(workload)
    samples, sample_seconds, sample_wait_fraction = _fetch_samples(drawn, max(2, looked_at), target)
    feedback.after_draw()
    sample_file_bytes = (_bytes_read() - read_before) // len(samples)
    batch_samples = samples[:looked_at]
    batch = _collate(workload, batch_samples, target)
    copied_reason = REPEATED if isinstance(workload.dataset, IterableDataset) else reading.why_no_copies
    optimizer = _make_optimizer(workload, target)
    held = _held(workload, optimizer)
    tuned.prepare(workload.model, optimizer)
    buffers = _buffers(workload.model)
    began = time.perf_counter()
    functions = Functions()
    end = functions.watch()
    loss, events, outside = _loss(workload, tuned, batch, target)
    end()
    quick = time.perf_counter() - began <= AGAIN_SECONDS
    if mistake := _mistake(loss):
        raise WorkloadError(f"{target}: {mistake}")
    is_recomputable = not _changes_buffers_of_blocks(workload.model, buffers)
    _update(workload, optimizer, loss, target)
    feedback.before_draw()
    may_fuse = why_gradients_unfit(optimizer) is None
    unused = sum(weight.requires_grad and weight.grad is None for weight in workload.model.parameters())
    # A copy from ordinary memory would wait for all pending work of the device.
    at_hand = tuned.to_device(copied(batch))
    pace = pace_of(lambda own: _step(workload, tuned, optimizer, own, target), tuned.device, lambda: copied(at_hand))
    flops = _flops(workload, tuned, optimizer, at_hand) if quick else None
    length = length_of(workload.dataset)
    fixed_shapes = _fixed_shapes(workload, samples, target)
    largest: tuple[int, ...] = ()
    if workload.sample_size is not None or not fixed_shapes:
        with _blaming(f"{target}: looking for the largest samples raised"):
            largest = find_largest(workload)
    small_operators_fraction, outside_fraction = _shares(
        (events, outside), lambda: _loss(workload, tuned, batch, target)[1:]
    )
    paddings, tensors = _paddings(workload, batch, looked_at, drawn, target), list(tensors_in(batch))
    placeable_bytes, unplaceable_reason = _placeable(workload, sample_seconds)
    coupling = _coupling(workload, tuned, batch_samples[:PARTED], target) if quick else 0.0
    facts = training_facts([workload.model], [optimizer], paddings, may_fuse=may_fuse)
    facts["convolves"] = sorted({*facts["convolves"], *_convolved(events)})
    if not is_recomputable:
        facts["recomputable_blocks"] = 0
    return WorkloadFacts(
        **facts,
        target=target,
        name=workload.name or target,
        fingerprint=fingerprint(workload, optimizer, samples[0]),
        samples=length,
        evaluation_samples=length_of(evaluated(workload).dataset),
        baseline=config,
        batch_bytes=round(
            sum(map(bytes_of, tensors)) * min(config.batch_size, length or config.batch_size) / len(batch_samples)
        ),
        sample_seconds=sample_seconds,
        sample_wait_fraction=sample_wait_fraction,
        sample_file_bytes=sample_file_bytes,
        flops_per_sample=flops / len(batch_samples) if flops else None,
        classes=functions.classes,
        score_bytes=functions.score_bytes // len(batch_samples),
        has_attention=any(event.name == "aten::scaled_dot_product_attention" for event in events),
        small_operators_fraction=small_operators_fraction,
        outside_fraction=outside_fraction,
        coupling=coupling,
        **pace,
        unused_parameters=unused,
        fixed_shapes=fixed_shapes,
        placeable_bytes=placeable_bytes,
        unplaceable_reason=unplaceable_reason,
        copied_reason=copied_reason,
        feedback_reason=FEEDBACK if feedback.is_seen else None,
        largest_samples=largest,
        notes=(*(f"bursts leave out {note}" for note in workload.notes), *_lost(held, workload, optimizer)),
        fork_safe=True,
    )


@contextlib.contextmanager
def _blaming(what: str, remedy: Callable[[Exception], str] = lambda _: "fix it and run again") -> Iterator[None]:
    """Reports an exception raised inside as an error of the user's code; `what` names the failed action."""
    try:
        yield
    except Exception as error:
        raise wrap_user_error(error, what, remedy(error)) from error


def _fetch_samples(drawn: Iterator[Any], count: int, target: str) -> tuple[list[Any], float, float]:
    """Samples as the loader would draw them, the seconds of each, and the share of these spent waiting.

    Returns fewer samples when they take long.
    """
    samples: list[Any] = []
    started, computed = time.perf_counter(), time.process_time()
    with _blaming(f"{target}: reading a sample of the dataset raised"):
        for sample in itertools.islice(drawn, count):
            samples.append(sample)
            if len(samples) > 1 and time.perf_counter() - started > FETCH_SECONDS:
                break
    if not samples:
        raise WorkloadError(f"{target}: the dataset yields no sample; check its path or its filter")
    seconds = time.perf_counter() - started
    waited = max(0.0, 1 - (time.process_time() - computed) / max(seconds, 1e-9))
    return samples, seconds / len(samples), waited


def _placeable(workload: Workload, sample_seconds: float) -> tuple[int | None, str | None]:
    """The bytes of the whole data set, collated once; or None, and why that is impossible."""
    if isinstance(workload.dataset, IterableDataset):
        return None, "it has no length by which all its samples could be read"
    drawn = list(itertools.islice(indices_of(workload), DRAWN_INDICES))
    try:
        return look_at(workload.dataset, workload.collate_fn or default_collate, drawn, sample_seconds), None
    except (ConfigError, MemoryError) as error:
        return None, str(error) or "there is no memory for a few of its samples"


def _bytes_read() -> int:
    """Bytes read from files so far, page cache included; 0 where the system does not count."""
    try:
        counters = psutil.Process().io_counters()
    except (AttributeError, psutil.Error, OSError):
        return 0
    return int(getattr(counters, "read_chars", counters.read_bytes))


def _collate(workload: Workload, samples: list[Any], target: str) -> Any:
    """A batch of copies of the samples: a collate_fn may change what it is given, and they are collated again."""
    if workload.collate_fn is not None:
        own = copied(samples)
        with _blaming(f"{target}: collate_fn raised"):
            return workload.collate_fn(own)
    try:
        return default_collate(samples)
    except Exception as error:
        summary = " ".join(str(error).split())[:300] or type(error).__name__
        raise WorkloadError(
            f"{target}: {len(samples)} samples of type {type(samples[0]).__name__} cannot be collated into a batch "
            f"({summary}); return tensors of one shape, or give a collate_fn"
        ) from error


def _paddings(workload: Workload, batch: Any, size: int, drawn: Iterator[Any], target: str) -> list[Padding]:
    """The padding of the first batch, and of some that are drawn after it; none if the first does not show any."""
    paddings: list[Padding] = []
    deadline = time.monotonic() + PADDING_SECONDS
    while (padding := padding_of(batch)) is not None:
        paddings.append(padding)
        more = PADDING_BATCHES - len(paddings)
        with _blaming(f"{target}: reading a sample of the dataset raised"):
            in_time = itertools.takewhile(lambda _: time.monotonic() < deadline, itertools.islice(drawn, more and size))
            samples = list(in_time)
        if len(samples) < size:
            break
        batch = _collate(workload, samples, target)
    return paddings


def _convolved(events: list[Any]) -> Iterator[int]:
    """The dimensions of all convolutions, also by functions and compiled modules."""
    called = (_CONVOLUTION.fullmatch(event.name) for event in events)
    return (int(seen[1]) for seen in called if seen is not None)


def _make_optimizer(workload: Workload, target: str) -> torch.optim.Optimizer:
    with _blaming(f"{target}: making the optimizer raised"):
        optimizer = workload.make_optimizer()
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise WorkloadError(
            f"{target}: optimizer: expected a torch.optim.Optimizer, got {described(optimizer)}; "
            "write optimizer=lambda params: torch.optim.AdamW(params)"
        )
    if not _held(workload, optimizer):
        raise WorkloadError(
            f"{target}: the optimizer holds no parameter of the model; make it from the params that it is called with"
        )
    return optimizer


def _held(workload: Workload, optimizer: torch.optim.Optimizer) -> set[str]:
    """The names of the model's parameters that the optimizer holds."""
    trained = {id(parameter) for parameter in weights_of(optimizer)}
    return {name for name, parameter in workload.model.named_parameters() if id(parameter) in trained}


def _lost(held: set[str], workload: Workload, optimizer: torch.optim.Optimizer) -> Iterator[str]:
    """Yields a note if a step replaced parameters, as by assignment in forward(): the new ones are not trained."""
    lost = sorted(held - _held(workload, optimizer))
    if lost:
        yield (
            f"the loss replaces {len(lost)} of {len(held)} parameters of the model ({lost[0]}, …), so that the "
            "optimizer no longer trains them: change their values in place, as by parameter.data.copy_()"
        )


def _loss(workload: Workload, tuned: Tuned, batch: Any, target: str) -> tuple[torch.Tensor, list[Any], float]:
    """The loss of one batch, the operators that ran, as profiler events, and the share of time outside the model."""
    workload.model.train()
    on_device = tuned.to_device(copied(batch))
    profile, clock = torch.autograd.profiler.profile(), clock_of(tuned.device)
    calling = _marked_calls(workload.model, clock)
    with _blaming(f"{target}: loss(model, batch) raised", _remedy), profile, tuned.autocast(), calling as calls:
        clock.synchronize()
        began = clock.mark()
        loss: object = workload.loss(workload.model, on_device)
        whole = clock.seconds(began, clock.finish())
    inside = sum(clock.seconds(*call) for call in calls) if calls is not None else whole
    outside = min(1.0, max(0.0, 1 - inside / max(whole, 1e-9)))
    return cast("torch.Tensor", loss), list(profile.function_events or ()), outside


def _buffers(model: torch.nn.Module) -> dict[tuple[int, str], torch.Tensor]:
    """The bytes of a model's buffers, by the part that holds each and by their names."""
    return {
        (id(part), name): buffer.detach().to("cpu", copy=True).reshape(-1).view(torch.uint8)
        for part in model.modules()
        for name, buffer in part.named_buffers(recurse=False)
        if type(buffer) is torch.Tensor and buffer.layout is torch.strided
    }


def _changes_buffers_of_blocks(model: torch.nn.Module, before: Mapping[tuple[int, str], torch.Tensor]) -> bool:
    """Whether a forward pass has changed buffers of repeated blocks, as spectral norms, codebooks and counters do.

    Computing such a block twice changes them twice. A table that has grown, as of rotary positions, is no such buffer.
    """
    blocks = [block for group in repeated_blocks(model, recomputable=True) for block in group]
    held = [(before.get(key), now) for block in blocks for key, now in _buffers(block).items()]
    return any(was is not None and was.shape == now.shape and not torch.equal(was, now) for was, now in held)


def _coupling(workload: Workload, tuned: Tuned, samples: Sequence[Any], target: str) -> float:
    """By how much the loss of a batch lies beyond those of its halves, relative to it; 0 for an average.

    An average over samples, or over their tokens, lies between those of the halves. A loss that compares the samples of
    a batch with each other, or adds them up, lies beyond. 0 also if the loss cannot be computed for halves.
    """
    half = len(samples) // 2
    if not half or is_compiled(workload.model):
        return 0.0
    parts = [samples[: 2 * half], samples[:half], samples[half : 2 * half]]
    seen: list[float] = []
    try:
        with _without_chance(workload.model), torch.no_grad(), tuned.autocast():
            while len(seen) < PARTINGS:
                batches = (tuned.to_device(_collate(workload, list(part), target)) for part in parts)
                whole, *halves = (float(workload.loss(workload.model, batch)) for batch in batches)
                beyond = (whole - min(max(whole, min(halves)), max(halves))) / abs(whole)
                if not abs(beyond) > LEAST_COUPLING or (seen and beyond * seen[0] < 0):
                    return 0.0
                if beyond in seen:
                    break  # it has no random numbers
                seen.append(beyond)
    except Exception:  # noqa: BLE001 - a loss may need gradients, or more samples than a half holds
        return 0.0
    return min(map(abs, seen))


@contextlib.contextmanager
def _without_chance(model: torch.nn.Module) -> Iterator[None]:
    """While open, dropout drops nothing, and BatchNorm takes its running averages."""
    nn = torch.nn
    chance = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm, nn.RNNBase, nn.MultiheadAttention)
    for part in model.modules():
        part.training = not isinstance(part, chance)
    try:
        yield
    finally:
        model.train()


def _mistake(loss: object) -> str | None:
    """Why a training step cannot start from this loss, and what to do."""
    if not isinstance(loss, torch.Tensor):
        got = described(loss)
        return f"loss: expected a scalar tensor, got {got}; return the tensor itself, such as output.loss, no .item()"
    if loss.numel() != 1:
        return f"loss: expected a scalar, got a tensor of shape {tuple(loss.shape)}; take its .mean()"
    if not loss.requires_grad:
        return "the loss has no gradient; compute it from the model's output, without .detach(), .item() or no_grad"
    if not torch.isfinite(loss):
        return f"the loss of the first batch is {loss.item()}; check the data and the model's initial weights"
    return None


def _shares(first: tuple[list[Any], float], again: Callable[[], tuple[list[Any], float]]) -> tuple[float, float]:
    """The share of the operators' time that small ones take, and the share of time outside the model.

    Takes the faster of two runs: the first step of a process chooses algorithms and starts threads, and on a busy
    machine one operator in a thousand is interrupted for milliseconds.
    """
    events, outside = first
    times = [event.self_cpu_time_total for event in events]
    if sum(times) <= AGAIN_SECONDS * 1e6:
        events, once_more = again()
        outside = min(outside, once_more)
        warm = [event.self_cpu_time_total for event in events]
        times = [min(pair) for pair in zip(times, warm, strict=True)] if len(warm) == len(times) else warm
    return small_fraction(times), outside


def _update(workload: Workload, optimizer: torch.optim.Optimizer, loss: torch.Tensor, target: str) -> None:
    """The rest of a training step."""
    with _blaming(f"{target}: the backward pass or the optimizer step raised", _remedy):
        loss.backward()  # type: ignore[no-untyped-call]
        if workload.clip_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(workload.model.parameters(), workload.clip_grad_norm)
        optimizer.step()
    if all(parameter.grad is None for parameter in workload.model.parameters()):
        raise WorkloadError(
            f"{target}: no parameter of the model got a gradient; compute the loss with the model that it is given"
        )


def _step(workload: Workload, tuned: Tuned, optimizer: torch.optim.Optimizer, batch: Any, target: str) -> None:
    """A whole step on one batch, as training takes it."""
    with tuned.autocast():
        loss = workload.loss(workload.model, batch)
    _update(workload, optimizer, loss, target)
    optimizer.zero_grad(set_to_none=True)


def _flops(workload: Workload, tuned: Tuned, optimizer: torch.optim.Optimizer, batch: Any) -> int | None:
    """Floating-point operations of a step's forward and backward pass, as torch counts them; None if it cannot."""
    counter = FlopCounterMode(display=False)
    try:
        with counter, tuned.autocast():
            workload.loss(workload.model, batch).backward()  # type: ignore[no-untyped-call]
        return counter.get_total_flops()
    except Exception:  # noqa: BLE001 - a model may do things with its tensors that a counting mode does not support
        return None
    finally:
        optimizer.zero_grad(set_to_none=True)


@contextlib.contextmanager
def _marked_calls(model: torch.nn.Module, clock: Clock) -> Iterator[list[tuple[Any, Any]] | None]:
    """While open, collects marks of the beginning and the end of each call of a model.

    None for a model that the user has compiled, since a hook would make it compile again.
    """
    if is_compiled(model):
        yield None
        return
    entered: list[Any] = []
    calls: list[tuple[Any, Any]] = []
    hooks = [
        model.register_forward_pre_hook(lambda *_: entered.append(clock.mark())),
        model.register_forward_hook(lambda *_: calls.append((entered.pop(), clock.mark()))),
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _remedy(error: Exception) -> str:
    """What to do about an error of the user's step."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return "state a baseline that fits, with a smaller batch_size and more accumulation_steps"
    return "fix it and run again"


def _fixed_shapes(workload: Workload, samples: list[Any], target: str) -> bool:
    """Whether two halves of the samples collate to equal shapes."""
    half = len(samples) // 2
    halves = (_collate(workload, part, target) for part in (samples[:half], samples[half : 2 * half]) if part)
    shapes = [[tensor.shape for tensor in tensors_in(batch)] for batch in halves]
    return bool(shapes) and shapes[0] == shapes[1]


REPEATS = 3
SLEEP_FACTOR, LEAST_SLEEP_SECONDS, MOST_SLEEP_SECONDS = 2.0, 0.02, 2.0
"""The device sleeps this many times as long as a whole step takes: longer than launching it can take."""
LONGEST_KERNEL_SECONDS = 0.1
"""Windows resets a display's GPU after a kernel of two seconds, under WSL 2 too, so a long sleep is several kernels."""
CYCLES_PER_SECOND = 2e9
"""Approximate clock rate of a GPU; how long it really sleeps is measured."""


def pace_of(step: Callable[[Any], object], device: torch.device, make: Callable[[], Any]) -> dict[str, Any]:
    """Times a step that has run before, on host and device without each other, to find out whether a GPU waits.

    Nothing is timed on a device that cannot be put to sleep. It sleeps first, so that all kernels of a step wait in its
    queue. Then the host's time is the cost of launching, and the device's time is that of the kernels. The longer of
    the two decides what may help: CUDA graphs for the host, fewer bits for the device.

    Args:
        step: Launches one step on a batch; time that it waits itself counts as launching.
        device: The device that runs it.
        make: Makes the batch of a step, untimed.

    Returns:
        By the names of `WorkloadFacts`: seconds of a step on host and device together, and the share of the longer one
        in which the device computes.
    """
    if device.type != "cuda" or not hasattr(torch.cuda, "_sleep"):
        return {}
    seconds = _together(step, make)
    sleep = min(MOST_SLEEP_SECONDS, max(LEAST_SLEEP_SECONDS, SLEEP_FACTOR * seconds))
    launched, computed = zip(*(_apart(step, make, sleep) for _ in range(REPEATS)), strict=True)
    device_seconds = statistics.median(computed)
    longest = max(device_seconds, statistics.median(launched))
    return {"step_seconds": seconds, "device_busy_fraction": min(1.0, device_seconds / max(longest, 1e-9))}


def _together(step: Callable[[Any], object], make: Callable[[], Any]) -> float:
    """Seconds of a step as in training, queued behind others."""
    batches = [make() for _ in range(REPEATS)]
    torch.cuda.synchronize()
    began = perf_counter()
    for batch in batches:
        step(batch)
    torch.cuda.synchronize()
    return (perf_counter() - began) / REPEATS


def _apart(step: Callable[[Any], object], make: Callable[[], Any], sleep_seconds: float) -> tuple[float, float]:
    """Seconds that the host takes to launch, and the device to compute."""
    batch = make()
    asleep, first, last = (torch.cuda.Event(enable_timing=True) for _ in range(3))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    asleep.record()
    for _ in range(math.ceil(sleep_seconds / LONGEST_KERNEL_SECONDS)):
        seconds = min(sleep_seconds, LONGEST_KERNEL_SECONDS)
        torch.cuda._sleep(int(seconds * CYCLES_PER_SECOND))  # type: ignore[no-untyped-call]
    first.record()
    began = perf_counter()
    step(batch)
    launched = perf_counter() - began
    last.record()
    last.synchronize()
    computed, slept = first.elapsed_time(last) / 1e3, asleep.elapsed_time(first) / 1e3
    # Where the host waited, as for a loss's value, it waited for the sleep as well.
    return (launched if launched < slept else launched - slept), computed
