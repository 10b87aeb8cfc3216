"""Clocks that time training: on the host, or on a device that works through a queue.

A device's work is asynchronous: the host fetches the next batch while the device still trains on the last one.
Synchronising at every step prevents that, and times 140 ms where 40 ms of fetching and 100 ms of training overlap. So
marks are put into the device's own queue (CUDA events), and are read at the end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from time import perf_counter  # by name: the user's module may replace what `time` holds
from typing import Any

import torch

from .devices import devices_like


class Clock:
    """Marks moments on the host, and measures the seconds between them.

    A device without timed events uses this clock: laps wait for its work at their start and end.

    Args:
        wait: Waits for the device; does nothing where calls are synchronous.
    """

    # micro-batches to train before a lap's first mark: a wait empties the device's queue, which training never does
    lead = 0

    def __init__(self, wait: Callable[[], None] = lambda: None) -> None:
        self.synchronize = wait

    def mark(self) -> Any:
        """The moment at which all work queued so far is finished; on the host, that is now."""
        return perf_counter()

    def seconds(self, began: Any, ended: Any) -> float:
        """Seconds between two marks."""
        return float(ended - began)

    def waited(self, began: Any, ended: Any) -> float:
        """Seconds between two marks in which training waited."""
        return self.seconds(began, ended)

    def finish(self) -> Any:
        """Waits for the device, and returns the moment at which it finished."""
        self.synchronize()
        return perf_counter()


class EventClock(Clock):
    """The clock of devices whose queues take timed events.

    Marks before and after fetching a batch measure how long the device waited for it, not how long the host did.

    Args:
        record: Puts an event into a device's queue and returns it; its ``elapsed_time(other)`` is in milliseconds, as
            in torch.
        wait: Waits for a device.
        devices: Returns the devices in use, at each wait.
    """

    lead = 1

    def __init__(
        self,
        record: Callable[[Any], Any],
        wait: Callable[[Any], None],
        devices: Callable[[], Sequence[Any]] = lambda: (None,),
    ) -> None:
        super().__init__(self._wait_for_all)
        self._record, self._wait, self._find_devices = record, wait, devices
        self._devices: Sequence[Any] = ()

    def mark(self) -> dict[Any, Any]:
        """By device, an event after all work queued so far."""
        self._devices = self._devices or self._find_devices()
        return {device: self._record(device) for device in self._devices}

    def seconds(self, began: Any, ended: Any) -> float:
        """Seconds between two marks that have passed, on the device that took longest."""
        return max(_elapsed(began, ended))

    def waited(self, began: Any, ended: Any) -> float:
        """The same on the device that took the least: where one still computes, training does not wait for data."""
        return min(_elapsed(began, ended))

    def finish(self) -> Any:
        """Waits for the devices to pass a mark, and returns it."""
        mark = self.mark()
        self.synchronize()
        return mark

    def _wait_for_all(self) -> None:
        self._devices = self._find_devices()
        for device in self._devices:
            self._wait(device)


def _elapsed(began: dict[Any, Any], ended: dict[Any, Any]) -> list[float]:
    """Seconds on each device that was in use at both marks."""
    return [float(event.elapsed_time(ended[device])) / 1e3 for device, event in began.items() if device in ended]


def clock_of(device: torch.device) -> Clock:
    """The clock of a device of this process; of ``cuda`` without a number, that of all GPUs that the process uses."""
    if device.type == "cpu":
        return Clock()
    if device.type == "cuda":
        return EventClock(_recorded, torch.cuda.synchronize, functools.partial(_devices, device))
    return Clock(lambda: torch.accelerator.synchronize(device))


def _devices(device: torch.device) -> list[torch.device]:
    return devices_like(device) or [torch.device("cuda", torch.cuda.current_device())]


def _recorded(device: torch.device) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))  # that of another device may be current
    return event
