"""One burst: trains a config for a moment on real data and times it so that the figure can be believed.

The method: take the first steps (compiling, allocating); restart the loader, whose queue has filled meanwhile and would
flatter it; go on until two successive blocks agree; then time blocks of whole optimizer steps, on the device's own
clock, and wait for the device only at their edges (`autotune.bursts.clock`). A block is whole rounds of the
workers where their batches may come in bunches, and whole epochs where epochs are short. What starting the loader
costs over ordinary waiting is taken out of the blocks and charged once an epoch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from time import perf_counter  # by name: the user's module may replace what `time` holds
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

from autotune.bursts.clock import clock_of
from autotune.bursts.epochs import Lap, boundary_of
from autotune.bursts.evaluator import Evaluator, evaluated
from autotune.bursts.feed import RESTART_LIMIT_SECONDS, DeviceFeed, Feed
from autotune.bursts.protocol import BurstPlan, Part
from autotune.bursts.ranks import Ranks
from autotune.bursts.trainer import Drain, NonFiniteLossError, Stepper, Trainer, make_loader, told_of_killed_workers
from autotune.measuring import Measurement
from autotune.recorder.effects import compiled_graphs
from autotune.recorder.gate import COMPILED_BATCHES, FILLS, WAITED_SHARE
from autotune.training.placement import placement_seconds
from autotune.training.tuned import Tuned
from autotune.workload.workload import Workload

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from autotune.bursts.telemetry import Telemetry

    Load = Callable[[Workload, Tuned], DataLoader[Any]]

MEDIAN_ERROR_PER_MAD = 1.2533 * 1.4826
"""Standard error of a median over n normal values is 1.2533 σ/√n, and σ is 1.4826 MAD."""


class Timing:
    """The warm-up and the timed laps of a burst.

    Args:
        trainer: What is timed.
        plan: The limits and targets.

    Attributes:
        opening_pace: Seconds of a sample, by the last of the first steps, which is the warmest.
    """

    def __init__(self, trainer: Stepper, plan: BurstPlan) -> None:
        self.trainer = trainer
        self.plan = plan
        self.ranks = Ranks()
        self.opening_seconds = 0.0
        self.opening_steps = 0.0
        self.opening_pace = 0.0
        self.warmup_seconds = 0.0
        self.steady = False
        self.skipped_steps = 0
        self.steps_per_lap = 1
        self.after_restart: list[Lap] = []
        self._drawn_when_filled, self._waited = 0, False
        self._trained_since_restart: float | None = None
        self._step_seconds: float | None = None
        self._updates, self._update_seconds = 0, 0.0
        self._first_update: float | None = None
        self._skipped_share = 0.0  # of the last lap that took a step of the optimizer

    def warm_up(self) -> None:
        """Runs until it is steady, or until the cap; the first step, all three when compiled, come before the cap."""
        began = perf_counter()
        feed = self.trainer.feed
        cap = self.open()
        if feed.loader.num_workers:
            self.restart()
        previous = None
        while self._before(cap):
            lap = self._lap(self.steps_per_lap)
            self.after_restart.append(lap)
            resized = self._resize(lap)
            tolerance = self.plan.steady_tolerance
            alike = previous is not None and abs(lap.rate - previous) <= tolerance * max(lap.rate, previous)
            # Ranks may draw batches of different sizes: what follows from those, all must decide alike.
            if not self.ranks.any(not alike or resized or not self.drained):
                self.steady = True
                break
            previous = None if resized else lap.rate
        self.warmup_seconds = perf_counter() - began

    def open(self) -> float:
        """Takes the first steps, which compile and allocate; returns when warming up should end at the latest.

        A whole optimizer step and a micro-batch, which is an ordinary one; else a slow workload stops after the step.
        """
        began = perf_counter()
        tuned, lead = self.trainer.tuned, self.trainer.feed.clock.lead
        compiled = tuned.config.compile_mode is not None
        last = self._lap(1)
        cap = perf_counter() + self.plan.warmup_seconds
        taken = 1 + lead / tuned.accumulation_steps
        least = max(tuned.accumulation_steps + 1, COMPILED_BATCHES if compiled else 0) / tuned.accumulation_steps
        while taken < least and (compiled or self._before(cap)):
            last = self._timed(lambda done: done == 0)
            taken += (1 + lead) / tuned.accumulation_steps
        if compiled:
            cap = perf_counter() + self.plan.warmup_seconds
        self.opening_seconds, self.opening_steps = perf_counter() - began, taken
        self.opening_pace = max(last.seconds - last.start_seconds, 1e-9) / max(1, last.consumed)
        return cap

    def restart(self, position: int = 0) -> None:
        """Restarts the loader, whose queue has filled, at a place in the stream of samples; a slow one goes on."""
        feed = self.trainer.feed
        (waited,) = self.ranks.slowest(feed.starts[0].wait_seconds if feed.starts else 0.0)
        self.queue_filled()
        if waited < RESTART_LIMIT_SECONDS:
            feed.restart(position)
            self._trained_since_restart = 0.0
        else:
            feed.position = position  # as if it did: other samples, but as many

    def queue_filled(self) -> None:
        """To be told when the loader's queue may hold what it prepared while nothing was timed."""
        self._drawn_when_filled, self._waited = self.trainer.feed.drawn, False
        self._trained_since_restart = None

    @property
    def drained(self) -> bool:
        """Whether what the loader had prepared in advance is gone: a batch was waited for, or as many were drawn.

        Or it was restarted, and could have filled its queue again since: then that is full in training too.
        """
        loader, since = self.trainer.feed.loader, self._trained_since_restart
        prefetched = loader.prefetch_factor or 0
        if self._waited or self._drawn_since_filled >= loader.num_workers * prefetched:
            return True
        return since is not None and since >= FILLS * prefetched * self.loader_seconds

    @property
    def loader_seconds(self) -> float:
        """What the slowest start of the loader took until its first batch."""
        return max((start.seconds for start in self.trainer.feed.starts), default=0.0)

    @property
    def _drawn_since_filled(self) -> int:
        return self.trainer.feed.drawn - self._drawn_when_filled

    def measure(self) -> list[Lap]:
        """Timed laps until the interval is narrow enough, or the cap is reached.

        Raises:
            NonFiniteLossError: The loss became NaN or infinite, or the scaler skipped every step.
        """
        laps: list[Lap] = []
        cap = perf_counter() + self.plan.measure_seconds
        while len(laps) < 2 or (self._before(cap) and self.ranks.any(not self._narrow(laps))):
            laps.append(self._lap(self.steps_per_lap))
            self.trainer.check_loss()
        if not any(lap.samples for lap in laps):
            raise NonFiniteLossError("the gradients overflow in fp16: the GradScaler skipped every timed step")
        return laps

    def measurement(self, laps: Sequence[Lap], part: Part = "all", first: int = 0) -> Measurement:
        """What timed laps amount to; memory, telemetry and the costs of starting are added by the caller.

        Args:
            laps: All, which together tell what an epoch's end costs.
            part: Of training, that was run.
            first: Of the laps that become blocks.
        """
        feed, tuned = self.trainer.feed, self.trainer.tuned
        boundary = boundary_of(laps, feed.starts, tuned.config, self.after_restart)
        blocks = tuple(map(boundary.block, laps[first:]))
        samples = sum(block.samples for block in blocks) or 1
        step_seconds = sum(block.seconds for block in blocks) / samples * tuned.config.effective_batch
        compiling = self.opening_seconds - self.opening_steps * step_seconds
        return Measurement(
            blocks=blocks,
            steady=self.steady,
            start_seconds=0.0,
            build_seconds=0.0,
            warmup_seconds=self.warmup_seconds,
            compile_seconds=max(0.0, compiling) if tuned.config.compile_mode and part != "loader" else None,
            placement_seconds=placement_seconds(feed.loader.dataset),
            epoch_samples=epoch_samples(feed, tuned.batch_size),
            epoch_boundary_seconds=boundary.seconds,
            skipped_steps=self.skipped_steps,
            final_loss=self.trainer.check_loss(),
        )

    def _before(self, cap: float) -> bool:
        """Whether any rank is still before the cap."""
        return self.ranks.any(perf_counter() < cap)

    def _narrow(self, laps: list[Lap]) -> bool:
        """Whether the median is known well enough; a quick estimate (from the MAD, as for normal noise) decides."""
        if len(laps) < self.plan.min_blocks:
            return False
        rates = [lap.rate for lap in laps]
        centre = statistics.median(rates)
        mad = statistics.median(abs(rate - centre) for rate in rates)
        half = 1.96 * MEDIAN_ERROR_PER_MAD * mad / math.sqrt(len(rates))
        return half <= self.plan.interval_target * centre

    def lap_until(self, position: int) -> Lap:
        """A timed lap of whole micro-batches, one at least, to a place in the stream of samples; with what led in."""
        feed = self.trainer.feed
        return self._timed(lambda taken: taken == 0 or feed.position < position).with_lead()

    def _lap(self, steps: int) -> Lap:
        """A timed lap of whole optimizer steps."""
        micro_steps = steps * self.trainer.tuned.accumulation_steps
        return self._timed(lambda taken: taken < micro_steps)

    def _timed(self, goes_on: Callable[[int], bool]) -> Lap:
        """A lap of micro-batches, until told otherwise, charged with its share of the optimizer's steps."""
        trainer, feed = self.trainer, self.trainer.feed
        clock, scale = feed.clock, trainer.scaler.get_scale()
        clock.synchronize()
        trainer.updates.clear()
        lead = sum(trainer.micro_step() for _ in range(clock.lead))
        led = len(trainer.updates)
        self.ranks.meet()
        began = clock.mark()
        feed.waits.clear()
        trainer.updates.clear()
        drawn, known, start_seconds = feed.drawn, len(feed.starts), feed.start_seconds
        compiled = compiled_graphs()
        samples = taken = 0
        while goes_on(taken):
            samples += trainer.micro_step()
            taken += 1
        ended = clock.finish()
        # Those of the lead count too: where every step ends there, one that was skipped would never be forgotten.
        if updates := led + len(trainer.updates):
            skipped = _skipped_steps(scale, trainer.scaler.get_scale(), updates)
            self.skipped_steps += skipped
            self._skipped_share = skipped / updates
        seconds = clock.seconds(began, ended) + self._missing_updates(taken)
        start_seconds = feed.start_seconds - start_seconds
        # All went as fast as the slowest rank.
        seconds, wait_seconds, start_seconds = self.ranks.slowest(seconds, feed.take_wait_seconds(), start_seconds)
        # The first batch of each worker may be waited for, however fast they are: they begin at the same time.
        if self._drawn_since_filled > feed.loader.num_workers and wait_seconds > WAITED_SHARE * seconds:
            self._waited = True
        if self._trained_since_restart is not None:
            self._trained_since_restart += seconds - start_seconds
        starts = feed.starts[known:]
        restarts = [start.seconds for start in starts if not start.after_epoch]
        return Lap(
            # A step that the scaler skipped taught the model nothing: its samples do not count.
            samples=round(samples * (1 - self._skipped_share)),
            consumed=samples,
            seconds=max(seconds, 1e-9),
            wait_seconds=wait_seconds,
            batches=feed.drawn - drawn,
            starts=len(starts),
            start_seconds=start_seconds,
            restarts=len(restarts),
            restart_seconds=sum(restarts),
            compiled=self.ranks.any(compiled_graphs() > compiled),
            lead=lead,
        )

    def _missing_updates(self, micro_steps: int) -> float:
        """What the optimizer's steps would take that belong to so many micro-batches, over what those seen took."""
        clock, seen = self.trainer.feed.clock, len(self.trainer.updates)
        took = [clock.seconds(began, ended) for began, ended in self.trainer.updates]
        if took and self._first_update is None:  # it makes the optimizer's state, and stands for others until one came
            self._first_update = took.pop(0)
        self._updates += len(took)
        self._update_seconds += sum(took)
        usual = self._update_seconds / self._updates if self._updates else self._first_update or 0.0
        return (micro_steps / self.trainer.tuned.accumulation_steps - seen) * usual

    def _resize(self, lap: Lap) -> bool:
        """Sizes the laps by what a step takes; returns whether the size changed."""
        feed = self.trainer.feed
        step_seconds = (lap.seconds - lap.start_seconds) / self.steps_per_lap
        if self._step_seconds is None and (workers := feed.loader.num_workers):
            # Too early to have waited: what the loader allows.
            batch_seconds = self.ranks.slowest(feed.starts[-1].wait_seconds)[0] / workers
            step_seconds = max(step_seconds, batch_seconds * self.trainer.tuned.accumulation_steps)
        # The faster of two, so that one lap that was disturbed does not shrink those that count.
        usual = min(step_seconds, self._step_seconds or step_seconds)
        self._step_seconds = step_seconds
        wanted = max(1, round(self.plan.block_seconds / max(usual, 1e-9)))
        unit = self._unit(lap, wanted)
        wanted = unit * max(1, round(wanted / unit))
        near = wanted / 1.5 <= self.steps_per_lap <= wanted * 1.5
        if near and self.steps_per_lap % unit == 0:
            return False
        self.steps_per_lap = wanted
        return True

    def _unit(self, lap: Lap, wanted: int) -> int:
        """The steps that a lap must be a multiple of: those of whole epochs, of whole rounds of the workers, or 1."""
        feed, accumulation = self.trainer.feed, self.trainer.tuned.accumulation_steps
        (epoch_batches,) = self.ranks.slowest(feed.expected_epoch_batches or 0)
        epoch, workers = int(epoch_batches), feed.loader.num_workers
        if epoch:
            steps = epoch // math.gcd(epoch, accumulation)
            if steps <= 2 * wanted:
                return steps
        compute_seconds = (lap.seconds - lap.start_seconds - lap.wait_seconds) / max(lap.batches, 1)
        # Each worker needs so long for a batch: if training needs less for a round of them, they come in bunches.
        if workers and self.ranks.slowest(feed.starts[-1].wait_seconds)[0] > 0.5 * workers * compute_seconds:
            return workers // math.gcd(workers, accumulation)
        return 1


def measure_burst(
    workload: Workload,
    tuned: Tuned,
    plan: BurstPlan,
    *,
    start_seconds: float,
    build_seconds: float,
    telemetry: Telemetry | None = None,
    largest_samples: Sequence[int] = (),
) -> Measurement:
    """Runs one burst in this process; memory is added by the caller, who watches it.

    Args:
        workload: What is trained.
        tuned: The config at work.
        plan: Caps and targets.
        start_seconds: What starting the process took.
        build_seconds: What `build()` took.
        telemetry: Watches the timed part.
        largest_samples: Indices of the samples for the worst batch, which two untimed steps are taken on.

    Raises:
        NonFiniteLossError: The loss became NaN or infinite.
        NoBatchError: The dataset yields no batch.
        WorkerKilledError: A DataLoader worker was ended by a signal.
    """
    timing = Timing(stepper_of(workload, tuned, plan.part), plan)
    with told_of_killed_workers(timing.trainer.feed):
        timing.warm_up()
        timing.trainer.check_loss()
        if telemetry is not None:
            telemetry.begin()
        laps = timing.measure()
        timing.trainer.check_weights()
        summary = telemetry.end() if telemetry is not None else None
        timing.trainer.train_on_worst(largest_samples)
    measured = timing.measurement(laps, plan.part)
    return measured.model_copy(
        update={"start_seconds": start_seconds, "build_seconds": build_seconds, "telemetry": summary}
    )


def stepper_of(workload: Workload, tuned: Tuned, part: Part, load: Load = make_loader) -> Stepper:
    """What a burst times, for a part of training.

    Args:
        workload: What is trained.
        tuned: The config at work.
        part: Of training.
        load: Makes the loader of a workload under a config; called again where the loader is restarted.
    """
    if part == "compute":  # a few batches: workers would go on preparing others, and the whole set is not needed
        here = Tuned(tuned.config.replace(num_workers=0, data_placement="loader"), device=tuned.device)
        return Trainer(workload, tuned, DeviceFeed(lambda: load(workload, here), tuned))
    if part == "loader":
        return Drain(tuned, Feed(lambda: load(workload, tuned)))
    data = evaluated(workload) if part == "evaluation" else workload
    feed = Feed(lambda: load(data, tuned), clock=clock_of(tuned.device))
    return Evaluator(workload, tuned, feed) if part == "evaluation" else Trainer(workload, tuned, feed)


def epoch_samples(feed: Feed, batch_size: int) -> int | None:
    """Samples of an epoch: of one that ended, else from the loader's length."""
    if feed.epoch_samples is not None:
        return feed.epoch_samples
    loader = feed.loader
    try:
        source = loader.dataset if isinstance(loader.dataset, IterableDataset) else loader.sampler
        return min(len(loader) * batch_size, len(source)) * feed.ranks or None  # type: ignore[arg-type]
    except TypeError:
        return None


def _skipped_steps(scale_before: float, scale_after: float, steps: int) -> int:
    """Of so many optimizer steps, those that the GradScaler skipped: each one halved the scale, in the end to 0."""
    if scale_after == 0:
        return steps
    return min(steps, round(math.log2(scale_before / scale_after))) if scale_after < scale_before else 0
