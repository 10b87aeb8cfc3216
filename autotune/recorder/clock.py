"""Clocks that time training: on the host, or on a device that works through a queue.

A device's work is asynchronous: the host fetches the next batch while the device still trains on the last one.
Synchronising at every step prevents that, and times 140 ms where 40 ms of fetching and 100 ms of training overlap. So
marks are put into the device's own queue (CUDA events), and are read at the end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from time import perf_counter  # by name: the user's module may replace what `time` holds
from typing import Any

import torch


class Clock:
    """Marks moments on the host, and measures the seconds between them.

    A device without timed events uses this clock: laps wait for its work at their start and end.

    Args:
        wait: Waits for the device; does nothing where calls are synchronous.

    Attributes:
        synchronize: Waits for the device.
        lead: Micro-batches to train before a lap's first mark: after a wait the device's queue is empty, which it
            never is in training.
    """

    lead = 0

    def __init__(self, wait: Callable[[], None] = lambda: None) -> None:
        self.synchronize = wait

    def mark(self) -> Any:
        """The moment at which all work queued so far is finished; on the host, that is now."""
        return perf_counter()

    def seconds(self, began: Any, ended: Any) -> float:
        """Seconds between two marks."""
        return float(ended - began)

    def finish(self) -> Any:
        """Waits for the device, and returns the moment at which it finished."""
        self.synchronize()
        return perf_counter()


class EventClock(Clock):
    """The clock of a device whose queue takes timed events.

    Marks before and after fetching a batch measure how long the device waited for it, not how long the host did.

    Args:
        make_event: Makes an event with ``record()`` and ``elapsed_time(other)`` in milliseconds, as in torch.
        wait: Waits for the device.
    """

    lead = 1

    def __init__(self, make_event: Callable[[], Any], wait: Callable[[], None]) -> None:
        super().__init__(wait)
        self._make_event = make_event

    def mark(self) -> Any:
        """An event after all work queued so far."""
        event = self._make_event()
        event.record()
        return event

    def seconds(self, began: Any, ended: Any) -> float:
        """Seconds between two events that have passed."""
        return float(began.elapsed_time(ended)) / 1e3

    def finish(self) -> Any:
        """Waits for the device to pass an event, and returns it."""
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
