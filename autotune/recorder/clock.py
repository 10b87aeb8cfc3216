"""What time it is where training is timed: on the host, or on a device that works through a queue.

A device's work is asynchronous: the host fetches the next batch while the device still trains on the last one. Who
synchronises at every step takes that away, and times 140 ms where 40 ms of fetching and 100 ms of training overlap. So
marks are put into the device's own queue (CUDA events), and are read when all is over.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from time import perf_counter  # by name: the user's module may replace what `time` holds
from typing import Any

import torch


class Clock:
    """Marks moments on the host, and measures the seconds between them.

    A device without timed events has this one: laps wait for its work where they begin and end.

    Args:
        wait: Waits for the device; does nothing, where the work is done when the call returns.

    Attributes:
        synchronize: Waits for the device.
        lead: Micro-batches that are trained before a lap's first mark: the queue of a device that was waited for is
            empty, in training it never is.
    """

    lead = 0

    def __init__(self, wait: Callable[[], None] = lambda: None) -> None:
        self.synchronize = wait

    def mark(self) -> Any:
        """The moment at which all work asked for until now is done; the host can only say: now."""
        return perf_counter()

    def seconds(self, began: Any, ended: Any) -> float:
        """Between two marks."""
        return float(ended - began)

    def finish(self) -> Any:
        """Waits for the device; the moment at which it was done."""
        self.synchronize()
        return perf_counter()


class EventClock(Clock):
    """The clock of a device whose queue takes events that keep the time at which it passed them.

    Between the mark before a batch is asked for and the one after it came lies what the device waited for it, rather
    than what the host did.

    Args:
        make_event: Makes one, with ``record()`` and ``elapsed_time(other)`` in milliseconds, as torch's are.
        wait: Waits for the device.
    """

    lead = 1

    def __init__(self, make_event: Callable[[], Any], wait: Callable[[], None]) -> None:
        super().__init__(wait)
        self._make_event = make_event

    def mark(self) -> Any:
        """An event behind all that was asked for."""
        event = self._make_event()
        event.record()
        return event

    def seconds(self, began: Any, ended: Any) -> float:
        """Between two events that have passed."""
        return float(began.elapsed_time(ended)) / 1e3

    def finish(self) -> Any:
        """Waits for the device to pass an event, which keeps the time."""
        event = self.mark()
        self.synchronize()
        return event


def clock_of(device: torch.device) -> Clock:
    """The clock of a device of this process."""
    if device.type == "cpu":
        return Clock()
    if device.type == "cuda":
        make_event = functools.partial(torch.cuda.Event, enable_timing=True)
        return EventClock(make_event, lambda: torch.cuda.synchronize(device))
    return Clock(lambda: torch.accelerator.synchronize(device))
