"""One burst: trains a config for a moment on real data and times it so that the figure can be believed.

The method: warm up until it is steady (compiled, at least three optimizer steps, the prefetch queue drained twice
over, two successive blocks alike), then time blocks of whole optimizer steps and synchronise only at their edges
(a synchronise at every step destroys the overlap that is to be measured).
"""

from __future__ import annotations

import itertools
import math
import signal
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from autotune.burst.protocol import BurstPlan
from autotune.measurement import Block, Measurement
from autotune.runtime import Tuned
from autotune.workload import Workload

MIN_WARMUP_STEPS = 3
QUEUE_DRAINS = 2
CACHED_BATCHES = 4
HOPELESS = 0.9
MEDIAN_ERROR_PER_MAD = 1.2533 * 1.4826
"""Standard error of a median over n normal values is 1.2533 σ/√n, and σ is 1.4826 MAD."""


class NonFiniteLossError(Exception):
    """The loss became NaN or infinite."""


class WorkerKilledError(Exception):
    """A DataLoader worker was ended by a signal."""

    def __init__(self, signal_number: int) -> None:
        name = signal.Signals(signal_number).name
        self.bus_error = name == "SIGBUS"
        full = ", so shared memory is full" if self.bus_error else ""
        super().__init__(f"a DataLoader worker was killed by {name}{full}")


class Feed:
    """Endless batches, epoch after epoch, and what waiting for them cost.

    Attributes:
        wait_seconds: Spent in the loader so far, epoch boundaries left out.
        boundary_seconds: Spent at epoch boundaries so far.
        boundaries: The seconds of each restart of the loader, the first start included.
        epoch_batches: Batches of the last whole epoch, None before its end.
        drawn: Batches drawn so far.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader
        self.wait_seconds = 0.0
        self.boundary_seconds = 0.0
        self.boundaries: list[float] = []
        self.epoch_batches: int | None = None
        self.drawn = 0

    def __iter__(self) -> Iterator[Any]:
        while True:
            drawn_before = self.drawn
            started = time.perf_counter()
            batches = iter(self.loader)
            batch = self._next(batches)
            # Starting workers and waiting for their first batch happens once an epoch: it is charged by the epoch.
            self._close_boundary(time.perf_counter() - started)
            while batch is not None:
                self.drawn += 1
                yield batch
                started = time.perf_counter()
                batch = self._next(batches)
                self.wait_seconds += time.perf_counter() - started
            if self.drawn == drawn_before:
                return
            self.epoch_batches = self.drawn - drawn_before

    def _next(self, batches: Iterator[Any]) -> Any:
        """The next batch, or None at the end; says by which signal a worker died, if one did."""
        try:
            return next(batches, None)
        except RuntimeError as error:
            # The exit status is the truth; torch's message holds only its text.
            for worker in getattr(batches, "_workers", []):
                worker.join(timeout=0.5)
                if worker.exitcode is not None and worker.exitcode < 0:
                    raise WorkerKilledError(-worker.exitcode) from error
            raise

    def _close_boundary(self, seconds: float) -> None:
        self.boundaries.append(seconds)
        self.boundary_seconds += seconds


class DeviceFeed(Feed):
    """A few batches that stay on the device, over and over: what compute alone could reach."""

    def __init__(self, loader: DataLoader[Any], tuned: Tuned) -> None:
        super().__init__(loader)
        self._batches = [tuned.to_device(batch) for batch in itertools.islice(loader, CACHED_BATCHES)]

    def __iter__(self) -> Iterator[Any]:
        for batch in itertools.cycle(self._batches):
            self.drawn += 1
            yield batch


class Trainer:
    """Trains one optimizer step at a time, with the functions that the user's own training uses."""

    def __init__(self, workload: Workload, tuned: Tuned, feed: Feed) -> None:
        self.workload = workload
        self.tuned = tuned
        self.feed = feed
        model, optimizer = tuned.prepare(workload.model, workload.make_optimizer())
        assert optimizer is not None
        self.model, self.optimizer = model, optimizer
        self.model.train()
        self.scaler = tuned.scaler()
        self.loss: torch.Tensor | None = None
        self._groups = tuned.accumulate(feed)

    def step(self) -> int:
        """One optimizer step; returns the samples that it consumed.

        Raises:
            StopIteration: The dataset yields nothing.
        """
        samples = 0
        micro_batches = next(self._groups)
        for batch in micro_batches:
            samples += count_samples(batch, self.tuned.batch_size)
            with self.tuned.autocast():
                loss = self.workload.loss(self.model, batch)
            self.scaler.scale(loss / len(micro_batches)).backward()
            self.loss = loss.detach()
        if self.workload.clip_grad_norm is not None:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.workload.clip_grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return samples

    def synchronize(self) -> None:
        """Waits for the device."""
        if self.tuned.device.type != "cpu":
            torch.accelerator.synchronize(self.tuned.device)

    def check_loss(self) -> float:
        """The last loss.

        Raises:
            NonFiniteLossError: When it is NaN or infinite.
        """
        value = float(self.loss) if self.loss is not None else math.nan
        # While the GradScaler looks for its scale, gradients overflow but the loss itself stays finite.
        if not math.isfinite(value):
            raise NonFiniteLossError(f"the loss became {value} after {self.feed.drawn} batches")
        return value


def make_loader(workload: Workload, tuned: Tuned) -> DataLoader[Any]:
    """The workload's loader under a config: its own sampler, else shuffled."""
    shuffle = workload.sampler is None and not isinstance(workload.dataset, IterableDataset)
    return tuned.dataloader(
        workload.dataset,
        sampler=workload.sampler,
        shuffle=shuffle or None,
        collate_fn=workload.collate_fn,
        worker_init_fn=workload.worker_init_fn,
    )


def count_samples(batch: Any, default: int) -> int:
    """Samples in a batch: the first dimension of its first tensor; `default` when it holds none."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.dim() else default
    values = batch.values() if hasattr(batch, "values") else batch if isinstance(batch, (list, tuple)) else ()
    first = next((value for value in values if isinstance(value, torch.Tensor) and value.dim()), None)
    return first.shape[0] if first is not None else default


class Timing:
    """The warm-up and the timed blocks of a burst.

    Args:
        trainer: What is timed.
        plan: The caps and targets.
    """

    def __init__(self, trainer: Trainer, plan: BurstPlan) -> None:
        self.trainer = trainer
        self.plan = plan
        self.first_step_seconds = 0.0
        self.warmup_seconds = 0.0
        self.steady = False
        self.skipped_steps = 0
        self.steps_per_block = 1

    def warm_up(self) -> None:
        """Runs until it is steady, or until the cap; the first step, in which compiling happens, is not capped."""
        started = time.perf_counter()
        self._timed_block(1)
        self.first_step_seconds = time.perf_counter() - started
        config = self.trainer.tuned.config
        queue = QUEUE_DRAINS * config.num_workers * (config.prefetch_factor or 0)
        steps, previous = 1, None
        cap = time.perf_counter() + self.plan.warmup_seconds
        while time.perf_counter() < cap:
            block = self._timed_block(self.steps_per_block)
            steps += self.steps_per_block
            rate = block.samples / block.seconds
            grown = self._adapt_block(block)
            drained = steps >= MIN_WARMUP_STEPS and self.trainer.feed.drawn >= queue
            if drained and not grown and previous is not None:
                if abs(rate - previous) <= self.plan.steady_tolerance * max(rate, previous):
                    self.steady = True
                    break
            previous = None if grown else rate
        self.warmup_seconds = time.perf_counter() - started

    def measure(self) -> list[Block]:
        """Timed blocks until the interval is narrow enough, hope is lost, or the cap is reached."""
        blocks: list[Block] = []
        cap = time.perf_counter() + self.plan.measure_seconds
        while len(blocks) < 2 or (time.perf_counter() < cap and not self._settled(blocks)):
            scale = self.trainer.scaler.get_scale()
            block = self._timed_block(self.steps_per_block)
            skipped = min(self.steps_per_block, _skipped_steps(scale, self.trainer.scaler.get_scale()))
            self.skipped_steps += skipped
            # A step that the scaler skipped taught the model nothing: its samples do not count.
            kept = round(block.samples * (1 - skipped / self.steps_per_block))
            blocks.append(block.model_copy(update={"samples": kept}))
            self.trainer.check_loss()
        return blocks

    def _settled(self, blocks: list[Block]) -> bool:
        return self._narrow(blocks) or self._hopeless(blocks)

    def _hopeless(self, blocks: list[Block]) -> bool:
        """Whether even the fastest of three blocks or more is far from what was reached before."""
        incumbent = self.plan.incumbent_rate
        if incumbent is None or len(blocks) < 3:
            return False
        return max(block.samples / block.seconds for block in blocks) < HOPELESS * incumbent

    def _narrow(self, blocks: list[Block]) -> bool:
        """Whether the median is known well enough; a quick estimate (from the MAD, as for normal noise) decides."""
        if len(blocks) < self.plan.min_blocks:
            return False
        rates = [block.samples / block.seconds for block in blocks]
        centre = statistics.median(rates)
        mad = statistics.median(abs(rate - centre) for rate in rates)
        half = 1.96 * MEDIAN_ERROR_PER_MAD * mad / math.sqrt(len(rates))
        return half <= self.plan.interval_target * centre

    def _timed_block(self, steps: int) -> Block:
        """Whole optimizer steps between two synchronisations, epoch boundaries left out."""
        feed = self.trainer.feed
        waited, at_boundaries = feed.wait_seconds, feed.boundary_seconds
        self.trainer.synchronize()
        started = time.perf_counter()
        samples = sum(self.trainer.step() for _ in range(steps))
        self.trainer.synchronize()
        seconds = time.perf_counter() - started - (feed.boundary_seconds - at_boundaries)
        return Block(
            samples=samples, seconds=max(seconds, 1e-9), data_wait_seconds=feed.wait_seconds - waited
        )

    def _adapt_block(self, block: Block) -> bool:
        """Sizes the blocks by what a step takes; returns whether the size changed much."""
        step_seconds = block.seconds / self.steps_per_block
        wanted = max(1, round(self.plan.block_seconds / step_seconds))
        changed = wanted > 1.5 * self.steps_per_block or wanted < self.steps_per_block / 1.5
        if changed:
            self.steps_per_block = wanted
        return changed


def measure_burst(
    workload: Workload, tuned: Tuned, plan: BurstPlan, *, start_seconds: float, build_seconds: float
) -> Measurement:
    """Runs one burst in this process; memory is added by the caller, who watches it.

    Raises:
        NonFiniteLossError: The loss became NaN or infinite.
        StopIteration: The dataset yields no batch.
    """
    loader = make_loader(workload, tuned)
    feed = Feed(loader) if plan.feed == "loader" else DeviceFeed(loader, tuned)
    trainer = Trainer(workload, tuned, feed)
    timing = Timing(trainer, plan)
    timing.warm_up()
    trainer.check_loss()
    blocks = timing.measure()
    step_seconds = statistics.median(block.seconds for block in blocks) / timing.steps_per_block
    return Measurement(
        blocks=tuple(blocks),
        steady=timing.steady,
        start_seconds=start_seconds,
        build_seconds=build_seconds,
        warmup_seconds=timing.warmup_seconds,
        compile_seconds=max(0.0, timing.first_step_seconds - step_seconds) if tuned.config.compile_mode else None,
        epoch_samples=_epoch_samples(feed, loader, tuned.batch_size),
        epoch_boundary_seconds=_boundary_seconds(feed, tuned),
        skipped_steps=timing.skipped_steps,
        final_loss=trainer.check_loss(),
    )


def _epoch_samples(feed: Feed, loader: DataLoader[Any], batch_size: int) -> int | None:
    """Samples of an epoch, from the loader's length or from an epoch that ended."""
    try:
        return min(len(loader) * batch_size, len(loader.dataset)) or None  # type: ignore[arg-type]
    except TypeError:
        return feed.epoch_batches * batch_size if feed.epoch_batches else None


def _boundary_seconds(feed: Feed, tuned: Tuned) -> float:
    """What one epoch boundary costs: the median restart; the first start stands in where none was seen."""
    later = feed.boundaries[1:]
    if later:
        return statistics.median(later)
    persistent = tuned.config.persistent_workers or tuned.config.num_workers == 0
    return 0.0 if persistent or not feed.boundaries else feed.boundaries[0]


def _skipped_steps(scale_before: float, scale_after: float) -> int:
    """Optimizer steps that the GradScaler skipped: each one halved the scale."""
    return round(math.log2(scale_before / scale_after)) if 0 < scale_after < scale_before else 0
