"""Two configs on a card that memory fills: the real rounds, on a simulated card which all processes share.

Hosts, players and gates are the real ones, in this process. A step takes memory of the card, and the allocator keeps it
as torch's does: until it is asked to free it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.jobs.host_job import HostGate
from autotune.bursts.runner import ProcessRunner
from autotune.knobs.config import TrainConfig
from autotune.measuring.ratios import paired
from autotune.measuring.records import Burst, Outcome, Point
from autotune.timing import gate
from autotune.timing.protocol import Command
from autotune.workload.workload import Workload
from tests.bursts.solo import SoloIsolation

PLAN = BurstPlan(measure_seconds=0.1)
POINTS = [Point(config=TrainConfig(batch_size=size)) for size in (4, 8)]
GIB = 2**30
CARD_BYTES = 10 * GIB


class Card:
    """A card's memory: what the process of each gate reserves, and keeps when it frees its cache.

    Attributes:
        retries: How often an allocator had to free its cache: for its partner's sake, since one fits alone.
    """

    def __init__(self, peak_bytes: int, kept_bytes: int, *, raises: bool) -> None:
        self.owner = 0
        self.retries = 0
        self.peak_bytes = peak_bytes
        self._kept_bytes = kept_bytes
        self._raises = raises
        self._reserved: dict[int, int] = {}

    def step(self) -> None:
        """A step of the process that plays."""
        others = sum(size for owner, size in self._reserved.items() if owner != self.owner)
        if others + self.peak_bytes > CARD_BYTES:
            if self._raises:
                raise torch.OutOfMemoryError("CUDA out of memory")
            self.retries += 1
        self._reserved[self.owner] = self.peak_bytes

    def free_cache(self) -> None:
        """What its allocator keeps for later is free again."""
        if self.owner in self._reserved:
            self._reserved[self.owner] = self._kept_bytes

    def end(self, owner: int) -> None:
        """A process ends."""
        self._reserved.pop(owner, None)


def runner_on(card: Card, monkeypatch: pytest.MonkeyPatch, **more: Any) -> ProcessRunner:
    """Runs bursts on a card."""
    obey, drop = HostGate.obey, HostGate._drop

    def obeyed(self: HostGate, command: Command) -> bool:
        card.owner = id(self)
        return obey(self, command)

    def dropped(self: HostGate, number: int) -> None:
        drop(self, number)
        if not self._players:
            card.end(id(self))

    class Watched:
        def begin(self) -> None:
            self._before = card.retries

        def end(self) -> dict[str, Any]:
            return {"seconds": 0.1, "allocator_retries": card.retries - self._before}

        def peak_bytes(self) -> int:
            return card.peak_bytes

    def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        card.step()
        return model(batch[0]).square().mean()

    monkeypatch.setattr(HostGate, "obey", obeyed)
    monkeypatch.setattr(HostGate, "_drop", dropped)
    monkeypatch.setattr(gate, "free_cache", card.free_cache)
    monkeypatch.setattr("tests.bursts.solo.WATCH", Watched())
    workload = Workload(nn.Linear(4, 1), TensorDataset(torch.ones(64, 4)), loss, batch_size=4)
    return ProcessRunner(SoloIsolation(workload), "cpu", **more)  # type: ignore[arg-type]


def rounds_on(
    card: Card, monkeypatch: pytest.MonkeyPatch, *, knows: bool = True, **more: Any
) -> tuple[bool, list[Burst]]:
    """Whether one process has played both configs of a round, and their bursts."""
    runner = runner_on(card, monkeypatch, **more)
    if knows:
        for point in POINTS:  # as in the search
            assert runner.run(point, PLAN, 60.0).ok
    bursts = runner.play(POINTS, PLAN, 60.0)
    return runner._in_one_host, bursts


@pytest.mark.parametrize(
    ("peak", "kept", "spills", "in_one"),
    [
        pytest.param(3, 2, False, False, id="both fit"),
        pytest.param(
            9, 1, False, False, id="both fit if the one that is stopped frees its cache", marks=pytest.mark.slow
        ),
        pytest.param(9, 3, False, True, id="one process must play both"),
        pytest.param(9, 1, True, True, id="a driver that spills would not fail", marks=pytest.mark.slow),
    ],
)
def test_a_full_card_keeps_its_pairs(
    peak: int, kept: int, spills: bool, in_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Block by block in turn, in fresh processes wherever memory allows; whole bursts never alternate."""
    card = Card(peak * GIB, kept * GIB, raises=True)
    shared, (first, second) = rounds_on(card, monkeypatch, device_bytes=CARD_BYTES, spills=spills)
    assert (first.outcome, second.outcome) == (Outcome.OK, Outcome.OK)
    assert first.measurement is not None
    assert second.measurement is not None
    assert paired(first.measurement, second.measurement)
    assert shared is in_one


def test_a_candidate_in_its_own_process_plays_the_incumbent_on_a_full_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Block by block as well: the one that is stopped frees its cache."""
    runner = runner_on(Card(9 * GIB, GIB, raises=True), monkeypatch, device_bytes=CARD_BYTES)
    incumbent, candidate = POINTS[0], Point(config=POINTS[1].config.replace(allocator="tuned"))
    runner.challenge(None, [incumbent], PLAN, 60.0, lambda *_: None)
    ((burst, pair),) = runner.challenge(incumbent, [candidate], PLAN, 60.0, lambda *_: None)
    runner.close()
    assert burst.ok, burst.reason
    assert pair is not None
    assert pair.blocks > 0


def test_two_sides_that_fight_for_memory_play_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """An allocator that asks again because of its partner says nothing about its config, and no burst keeps that."""
    shared, bursts = rounds_on(Card(7 * GIB, 5 * GIB, raises=False), monkeypatch, knows=False)
    assert shared
    for burst in bursts:
        assert burst.measurement is not None
        assert burst.measurement.telemetry is not None
        assert burst.measurement.telemetry.allocator_retries is None
