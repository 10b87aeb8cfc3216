"""Times a player: its first steps, then blocks of micro-batches, whose figures are those of a long training.

Blocks are timed on the device's own clock, which is waited for at their edges only (`autotune.bursts.clock`). In a
process that others have just used, a micro-batch leads in, untimed. What starting the loader costs over ordinary
waiting is taken out of the blocks and charged once an epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import perf_counter  # by name: the user's module may replace what `time` holds
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

from autotune.bursts.clock import clock_of
from autotune.bursts.epochs import Lap, boundary_of
from autotune.bursts.evaluator import Evaluator, evaluated
from autotune.bursts.feed import RESTART_LIMIT_SECONDS, DeviceFeed, Feed
from autotune.bursts.protocol import Part
from autotune.bursts.ranks import Ranks
from autotune.bursts.trainer import Drain, Stepper, Trainer
from autotune.measuring import Measurement
from autotune.recorder.effects import compiled_graphs
from autotune.recorder.player import COMPILED_BATCHES, FILLS, WAITED_SHARE
from autotune.training.placement import placement_seconds
from autotune.training.tuned import Tuned
from autotune.workload.workload import Workload

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from autotune.bursts.learner import Learner

    Load = Callable[[Workload, Tuned], DataLoader[Any]]

OPENING_SECONDS = 2.0
"""The first steps stop after a whole one when they take longer, unless they compile. Chosen."""


class Timing:
    """The first steps and the timed laps of a player.

    Args:
        trainer: What is timed.

    Attributes:
        opening_pace: Seconds of a sample, by the last of the first steps, which is the warmest.
    """

    def __init__(self, trainer: Stepper) -> None:
        self.trainer = trainer
        self.ranks = Ranks()
        self.opening_seconds = 0.0
        self.opening_steps = 0.0
        self.opening_pace = 0.0
        self.warmup_seconds = 0.0
        self.skipped_steps = 0
        self._drawn_when_filled, self._waited = 0, False
        self._trained_since_restart: float | None = None
        self._updates, self._update_seconds = 0, 0.0
        self._first_update: float | None = None
        self._skipped_share = 0.0  # of the last lap that took a step of the optimizer

    def open(self, *, leads: bool = False) -> None:
        """Takes the first steps, which compile and allocate.

        A whole optimizer step and a micro-batch, which is an ordinary one; else a slow workload stops after the step.

        Args:
            leads: Whether a micro-batch leads each block in, so that the step is enough.
        """
        began = perf_counter()
        tuned, lead = self.trainer.tuned, self.trainer.feed.clock.lead
        accumulation = tuned.accumulation_steps
        compiled = tuned.config.compile_mode is not None
        last = self._timed(lambda taken: taken < accumulation, lead)
        taken = 1 + lead / accumulation
        least = max(accumulation + (0 if leads else 1), COMPILED_BATCHES if compiled else 0) / accumulation
        # Ranks must decide alike, or some would wait for ever.
        while taken < least and (compiled or self.ranks.any(perf_counter() < began + OPENING_SECONDS)):
            last = self._timed(lambda done: done == 0, lead)
            taken += (1 + lead) / accumulation
        self.opening_seconds, self.opening_steps = perf_counter() - began, taken
        self.opening_pace = max(last.seconds - last.start_seconds, 1e-9) / max(1, last.consumed)

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
        """Notes that the loader's queue may hold what it prepared while nothing was timed."""
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

    def measurement(self, laps: Sequence[Lap], first: int = 0) -> Measurement:
        """What timed laps amount to; memory, telemetry and the costs of starting are added by the caller.

        Args:
            laps: All, which together tell what an epoch's end costs.
            first: Of the laps that become blocks.
        """
        feed, tuned = self.trainer.feed, self.trainer.tuned
        boundary = boundary_of(laps, feed.starts, tuned.config)
        blocks = tuple(map(boundary.block, laps[first:]))
        samples = sum(block.samples for block in blocks) or 1
        step_seconds = sum(block.seconds for block in blocks) / samples * tuned.config.effective_batch
        compiling = self.opening_seconds - self.opening_steps * step_seconds
        return Measurement(
            blocks=blocks,
            start_seconds=0.0,
            build_seconds=0.0,
            warmup_seconds=self.warmup_seconds,
            compile_seconds=max(0.0, compiling) if tuned.config.compile_mode else None,
            placement_seconds=placement_seconds(feed.loader.dataset),
            epoch_samples=epoch_samples(feed, tuned.batch_size),
            epoch_boundary_seconds=boundary.seconds,
            skipped_steps=self.skipped_steps,
            final_loss=self.trainer.check_loss(),
        )

    def lap_until(self, position: int, *, leads: bool = False) -> Lap:
        """A timed lap of whole micro-batches, one at least, to a place in the stream of samples; with what led in.

        Args:
            position: That place.
            leads: Whether a micro-batch leads in, as another player has used the process since; not into an epoch,
                whose start must be timed.
        """
        feed = self.trainer.feed
        lead = max(feed.clock.lead, 1 if leads and not feed.is_between_epochs else 0)
        return self._timed(lambda taken: taken == 0 or feed.position < position, lead).with_lead()

    def _timed(self, goes_on: Callable[[int], bool], lead_steps: int) -> Lap:
        """A lap of as many micro-batches as `goes_on` says, charged with its share of the optimizer's steps."""
        trainer, feed = self.trainer, self.trainer.feed
        clock, scale = feed.clock, trainer.scaler.get_scale()
        clock.synchronize()
        trainer.updates.clear()
        lead = sum(trainer.micro_step() for _ in range(lead_steps))
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


def stepper_of(workload: Workload, tuned: Tuned, part: Part, load: Load, learner: Learner | None) -> Stepper:
    """What a player times, for a part of training.

    Args:
        workload: What is trained.
        tuned: The config at work.
        part: Of training.
        load: Makes the loader of a workload under a config; called again where the loader is restarted.
        learner: What trains, or is evaluated; the loader alone needs none.
    """
    if learner is None:
        return Drain(tuned, Feed(lambda: load(workload, tuned)))
    if part == "compute":  # a few batches: workers would go on preparing others, and the whole set is not needed
        here = Tuned(tuned.config.replace(num_workers=0, data_placement="loader"), device=tuned.device)
        return Trainer(workload, tuned, DeviceFeed(lambda: load(workload, here), tuned), learner)
    data = evaluated(workload) if part == "evaluation" else workload
    feed = Feed(lambda: load(data, tuned), clock=clock_of(tuned.device))
    make = Evaluator if part == "evaluation" else Trainer
    return make(workload, tuned, feed, learner)


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
