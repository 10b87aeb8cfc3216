"""Times a player: its first steps, then blocks of micro-batches, whose figures are those of a long training.

Blocks are timed on the device's own clock, which is waited for at their edges only (`autotune.recorder.clock`). In a
process that others have just used, a micro-batch leads in, untimed. What starting the loader costs over ordinary
waiting is taken out of the blocks and charged once an epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter  # by name: the user's module may replace what `time` holds
from typing import TYPE_CHECKING

from autotune.bursts.epochs import Lap
from autotune.bursts.evaluator import Evaluator, evaluated
from autotune.bursts.feed import DeviceFeed, Feed
from autotune.bursts.protocol import Part
from autotune.bursts.ranks import Ranks
from autotune.bursts.trainer import Drain, Trainer
from autotune.recorder.clock import clock_of
from autotune.recorder.laps import COMPILED_BATCHES, Laps
from autotune.training.tuned import Tuned
from autotune.workload.workload import Workload

if TYPE_CHECKING:
    from autotune.bursts.learner import Learner

OPENING_SECONDS = 2.0
"""The first steps stop after a whole one when they take longer, unless they compile. Chosen."""
RESTART_LIMIT_SECONDS = 4.0
"""A loader that is slower than this is not restarted: torch kills a worker that does not end within five seconds."""


class Timing(Laps):
    """The first steps and the timed laps of a player.

    Args:
        trainer: What is timed.

    Attributes:
        trainer: What is timed.
        opening_pace: Seconds of a sample, by the last of the first steps, which is the warmest.
    """

    def __init__(self, trainer: Drain) -> None:
        super().__init__(trainer.feed.clock, trainer.tuned.accumulation_steps)
        self.take(trainer)
        self.ranks = Ranks()
        self.opening_seconds = 0.0
        self.opening_steps = 0.0
        self.opening_pace = 0.0
        self.skipped_steps = 0
        self._skipped_share = 0.0  # of the last lap that took a step of the optimizer

    def take(self, trainer: Drain) -> None:
        """Goes on with another trainer of the same config."""
        self.trainer = trainer
        self.stream: Feed = trainer.feed
        self.clock, self.updates = trainer.feed.clock, trainer.updates
        self.queue_filled()

    def open(self, *, leads: bool = False) -> None:
        """Takes the first steps, which compile and allocate.

        A whole optimizer step and a micro-batch, which is an ordinary one; else a slow workload stops after the step.

        Args:
            leads: Whether a micro-batch leads each block in, so that the step is enough.
        """
        began = perf_counter()
        tuned, lead = self.trainer.tuned, self.clock.lead
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

    def restart(self, position: int) -> None:
        """Restarts the loader, whose queue has filled, at a place in the stream of samples; a slow one goes on."""
        (waited,) = self._slowest(self.stream.starts[0].wait_seconds if self.stream.starts else 0.0)
        if waited < RESTART_LIMIT_SECONDS:
            super().restart(position)
        else:
            self.queue_filled()
            self.stream.position = position  # as if it did: other samples, but as many

    def lap_until(self, position: int, *, leads: bool = False) -> Lap:
        """A timed lap of whole micro-batches, one at least, to a place in the stream of samples; with what led in.

        Args:
            position: That place.
            leads: Whether a micro-batch leads in, as another player has used the process since; not into an epoch,
                whose start must be timed.
        """
        feed = self.stream
        lead = max(self.clock.lead, 1 if leads and not feed.is_between_epochs else 0)
        return self._timed(lambda taken: taken == 0 or feed.position < position, lead).with_lead()

    def _timed(self, goes_on: Callable[[int], bool], lead_steps: int) -> Lap:
        """A lap of as many micro-batches as `goes_on` says, charged with its share of the optimizer's steps."""
        trainer, scale = self.trainer, self.trainer.scaler.get_scale()
        self.clock.synchronize()
        self.updates.clear()
        lead = sum(trainer.micro_step() for _ in range(lead_steps))
        led = len(self.updates)
        self.ranks.meet()
        self.begin_lap()
        taken = 0
        while goes_on(taken):
            trainer.micro_step()
            taken += 1
        lap = Lap.of({**self.end_lap(), "lead": lead})
        # Those of the lead count too: where every step ends there, one that was skipped would never be forgotten.
        if updates := led + len(self.updates):
            skipped = _skipped_steps(scale, trainer.scaler.get_scale(), updates)
            self.skipped_steps += skipped
            self._skipped_share = skipped / updates
        # A step that the scaler skipped taught the model nothing: its samples do not count.
        samples = round(lap.samples * (1 - self._skipped_share))
        return replace(lap, samples=samples, compiled=self.ranks.any(lap.compiled))

    def _slowest(self, *seconds: float) -> tuple[float, ...]:
        return self.ranks.slowest(*seconds)


def stepper_of(
    workload: Workload, tuned: Tuned, part: Part, learner: Learner | None, seed: int, start: int = 0
) -> Drain:
    """What a player times, for a part of training.

    Args:
        workload: What is trained.
        tuned: The config at work.
        part: Of training.
        learner: The model and the optimizer; None: only the loader works.
        seed: Seed of the order of samples.
        start: Place in the stream of samples where the first batch lies.
    """
    if part == "loader" or learner is None:
        return Drain(tuned, Feed(workload, tuned, seed, start))
    if part == "compute":
        return Trainer(workload, tuned, DeviceFeed(workload, tuned, seed, start), learner)
    data = evaluated(workload) if part == "evaluation" else workload
    feed = Feed(data, tuned, seed, start, clock_of(tuned.device))
    make = Evaluator if part == "evaluation" else Trainer
    return make(workload, tuned, feed, learner)


def _skipped_steps(scale_before: float, scale_after: float, steps: int) -> int:
    """Of so many optimizer steps, those that the GradScaler skipped: each one halved the scale, in the end to 0."""
    if scale_after == 0:
        return steps
    return min(steps, round(math.log2(scale_before / scale_after))) if scale_after < scale_before else 0
