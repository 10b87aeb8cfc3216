"""A script on a device that works through a queue: its laps, beside the truth of a simulated one.

The gate, its player and the stream are the real ones; the script's loop is in this process, and its loader and its
steps take the time of the simulated device and host.
"""

from __future__ import annotations

import contextlib
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from autotune.recorder import script_gate
from autotune.recorder.changes import Changes
from autotune.recorder.ending import BurstEnded
from autotune.recorder.feeding import Source
from autotune.recorder.script_gate import ScriptGate
from autotune.recorder.stream import Stream
from autotune.timing import clock as clocks
from autotune.timing.clock import EventClock, clock_of
from autotune.timing.devices import uuids
from autotune.timing.protocol import Lap
from autotune.timing.usage import allocator_retries, peak_bytes
from tests.simulated_device import Device, Event, Samples

BATCH, BLOCKS = 4, 6
LOOP = {
    "device": "cuda", "accumulation": 1, "draws_ahead": False, "loaders": ["main"], "ranks": 1, "reads_batches": True,
    "optimizers": 1, "updates_itself": False,
}  # fmt: skip


class Wire:
    """Gives the gate blocks to train, one after the other, and keeps what it reports."""

    def __init__(self, samples: int) -> None:
        self.blocks: list[dict[str, Any]] = []
        self._samples = samples
        self._until = 0

    def receive(self) -> dict[str, Any]:
        """The next command."""
        self._until += self._samples
        action = "end" if len(self.blocks) == BLOCKS else "train"
        return {"action": action, "player": 0, "until": self._until + BATCH * len(self.blocks)}

    def send(self, event: str, **content: Any) -> None:
        """What it reports."""
        self.blocks += [content] if event == "block" else []

    def phase(self, _: str) -> None:
        """How far it has come is of no interest."""


class Unwatched:
    """Watches nothing."""

    top = None

    def begin(self) -> None:
        """A block begins."""

    def end(self) -> dict[str, Any]:
        """Nothing was seen."""
        return {}

    def peak_bytes(self) -> None:
        """Nothing is known."""


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """The simulated device, in place of CUDA's queue."""
    device = Device()
    clock = EventClock(lambda _: device.event(), lambda _: device.synchronize())
    monkeypatch.setattr(script_gate, "clock_of", lambda of: clock if of.type == "cuda" else clock_of(of))
    monkeypatch.setattr(script_gate, "end_burst", _end)
    return device


def _end() -> None:
    raise BurstEnded


def laps_of(
    device: Device, batches: int, step: float, fetch: float, update: float, accumulation: int, repeats: int = 1
) -> list[Lap]:
    """Blocks of a script that takes these seconds for a batch, to fetch it, and for a step of its optimizer."""
    wire = Wire(BATCH * batches)
    loop = {**LOOP, "accumulation": accumulation}
    request = {
        "job": "host",
        "changes": {},
        "plan": {"part": "all", "frees": False},
        "seed": 0,
        "trace": None,
        "asked_at": 0.0,
    }
    watch = cast("Any", Unwatched())
    gate = ScriptGate(cast("Any", wire), request, loop, [], [], torch.device("cpu"), watch, ["trains"])
    loader = DataLoader(Samples(device, fetch), batch_size=BATCH)

    def stream() -> Stream:
        player = gate.playing
        player.stream = Stream(loader, Changes({}), 0, player.effects.drawn, clock=player.clock)
        return player.stream

    source = gate.source = Source(loader, lambda: gate.playing.streams, stream, gate.before_draw)
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], 0.1)
    gate.begin()
    with contextlib.suppress(BurstEnded):
        for number, _ in enumerate(source, start=1):
            for _ in range(repeats):
                gate.before_backward((2 * weight).sum())
                device.launch(step)
                if number % accumulation == 0:
                    gate.before_step(optimizer)
                    device.launch(update)
                    gate.after_step(optimizer)
    return [Lap(**block["lap"]) for block in wire.blocks]


@pytest.mark.parametrize(
    ("fetch", "update", "accumulation", "repeats", "seconds", "waiting"),
    [
        pytest.param(0.04, 0.0, 1, 1, 0.1, 0.0, id="fetching beside computing"),
        pytest.param(0.15, 0.0, 1, 1, 0.15, 1 / 3, id="the device waits for data"),
        pytest.param(0.0, 0.5, 10, 1, 0.15, 0.0, id="parts of a step"),
        pytest.param(0.0, 0.05, 1, 4, 0.6, 0.0, id="several steps on a batch"),
    ],
)
def test_a_script_is_timed_by_the_devices_queue(
    device: Device, fetch: float, update: float, accumulation: int, repeats: int, seconds: float, waiting: float
) -> None:
    """Steps of 0.1 s: fetching is hidden, only the device's own waits count, and parts pay their share of the step."""
    for lap in laps_of(device, 3, 0.1, fetch, update, accumulation, repeats)[1:]:
        assert lap.seconds / lap.batches == pytest.approx(seconds, rel=0.03)
        assert lap.wait_seconds / lap.seconds == pytest.approx(waiting, abs=0.03)


def test_all_devices_that_a_process_uses_are_timed_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slowest decides how long a lap took; none waits for data while another one still computes."""
    queues = [Device(), Device(), Device()]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(queues))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda number: (0, 1, 1)[number])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: queues[device.index].synchronize())
    monkeypatch.setattr(clocks, "_recorded", lambda device: queues[device.index].event())
    clock = clock_of(torch.device("cuda"))
    clock.synchronize()
    began: dict[torch.device, Event] = clock.mark()
    assert [device.index for device in began] == [1, 2]
    for queue, seconds in zip(queues, (9.0, 2.0, 3.0), strict=True):
        queue.launch(seconds)
    ended = clock.finish()
    assert clock.seconds(began, ended) == 3.0
    assert clock.waited(began, ended) == 2.0
    assert [queue.now for queue in queues] == [0.0, 2.0, 3.0]


def test_asking_what_a_process_uses_does_not_open_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Telemetry asks before the allocator's settings are made, which hold only for a CUDA that is not open yet."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: pytest.fail("CUDA was opened"))
    cuda = torch.device("cuda")
    assert (allocator_retries(cuda), peak_bytes(cuda), uuids()) == (0, (0, 0), [])
