"""What time it is where training is timed: on the host, or on a device that works through a queue.

A device's work is asynchronous: the host fetches the next batch while the device still trains on the last one. Who
synchronises at every step takes that away, and times 140 ms where 40 ms of fetching and 100 ms of training overlap. So
marks are put into the device's own queue (CUDA events), and are read when all is over.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from time import perf_counter  # by name: the user's module may replace what `time` holds
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Marks moments, and tells the seconds between them once the device has passed both.

    Attributes:
        lead: Micro-batches that are trained before a lap's first mark: the queue of a device that was waited for is
            empty, in training it never is.
    """

    lead: int

    def mark(self) -> Any:
        """The moment at which all that was asked for until now is done."""

    def seconds(self, began: Any, ended: Any) -> float:
        """Between two marks."""

    def synchronize(self) -> None:
        """Waits until all that was asked for is done."""

    def finish(self) -> Any:
        """Waits likewise; the moment at which it was done."""


class HostClock:
    """Of a device without timed events: what it has to do is waited for where a lap begins and ends.

    Args:
        wait: Waits for it; nothing, where the work is done when the call returns.
    """

    lead = 0

    def __init__(self, wait: Callable[[], None] = lambda: None) -> None:
        self._wait = wait

    def mark(self) -> float:
        """Now."""
        return perf_counter()

    def seconds(self, began: float, ended: float) -> float:
        """Between two marks."""
        return ended - began

    def synchronize(self) -> None:
        """Waits for the device."""
        self._wait()

    def finish(self) -> float:
        """Waits for the device; then it is now."""
        self._wait()
        return perf_counter()


class EventClock:
    """Of a device whose queue takes events that keep the time at which it passed them.

    Between the mark before a batch is asked for and the one after it came lies what the device waited for it, rather
    than what the host did.

    Args:
        make_event: Makes one, with ``record()`` and ``elapsed_time(other)`` in milliseconds, as torch's are.
        wait: Waits for the device.
    """

    lead = 1

    def __init__(self, make_event: Callable[[], Any], wait: Callable[[], None]) -> None:
        self._make_event = make_event
        self._wait = wait

    def mark(self) -> Any:
        """An event behind all that was asked for."""
        event = self._make_event()
        event.record()
        return event

    def seconds(self, began: Any, ended: Any) -> float:
        """Between two events that have passed."""
        return float(began.elapsed_time(ended)) / 1e3

    def synchronize(self) -> None:
        """Waits for the device."""
        self._wait()

    def finish(self) -> Any:
        """Waits for the device to pass an event, which keeps the time."""
        event = self.mark()
        self._wait()
        return event


def clock_of(device: torch.device) -> Clock:
    """The clock of a device of this process."""
    if device.type == "cpu":
        return HostClock()
    if device.type == "cuda":
        make_event = functools.partial(torch.cuda.Event, enable_timing=True)
        return EventClock(make_event, lambda: torch.cuda.synchronize(device))
    return HostClock(lambda: torch.accelerator.synchronize(device))
