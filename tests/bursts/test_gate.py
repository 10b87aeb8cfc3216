"""The gate of a training loop, with a loop that only counts: who plays, how far, and what a failure ends."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from autotune.timing.clock import Clock
from autotune.timing.gate import Gate, Keeping
from autotune.timing.player import NonFiniteLossError, Player
from autotune.timing.protocol import FIRST, Command
from autotune.timing.wire import Reporter

BATCH = 8


class Counting(Player):
    """Counts samples; its worker may die."""

    worker_died = False

    @property
    def has_dead_worker(self) -> bool:
        """As a test says."""
        return self.worker_died


class Unwatched:
    """Watches nothing."""

    def begin(self) -> None:
        """A block begins."""

    def end(self) -> dict[str, Any]:
        """Nothing was seen."""
        return {}

    def peak_bytes(self) -> int | None:
        """Nothing is known."""
        return None


class CountingGate(Gate[Counting]):
    """A gate, what it reports, and what its loop trains."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.entered: list[int] = []
        super().__init__(Reporter(self._write), Unwatched(), torch.device("cpu"), alone=True, looks=None)

    def _write(self, line: bytes) -> None:
        event = json.loads(line)
        if event["event"] != "phase":
            self.events.append(event)

    def _seated(self, command: Command) -> Counting:
        return Counting(command.player, Clock(), 1, compiled=False)

    def _enter(self, player: Counting, _: Counting | None) -> None:
        self.entered.append(player.number)

    def _trained(self) -> tuple[list[Any], list[Any]]:
        return [], []

    def _judged(self, error: BaseException, _: Counting | None) -> dict[str, Any] | None:
        return {"outcome": "crashed", "reason": str(error)}

    def train(self, command: Command, error: BaseException | None = None) -> dict[str, Any]:
        """Does what it is asked to, the first micro-batch failing perhaps; returns what it reported last."""
        trains = self.obey(command)
        while trains:
            if error is not None:
                trains, error = self.failed(error), None
                continue
            self.playing.position += BATCH
            trains = self.passed(BATCH)
        return self.events[-1]


@pytest.fixture
def gate() -> CountingGate:
    """A gate at which two players have taken their first steps."""
    gate = CountingGate()
    assert gate.train(Command("join"))["event"] == "ready"
    assert gate.train(Command("join", 1))["event"] == "ready"
    return gate


def test_a_block_ends_where_it_is_to_and_a_micro_batch_leads_in(gate: CountingGate) -> None:
    """It comes to its place in the stream of samples with it, and its lap holds the rest."""
    block = gate.train(Command("train", 1, start=80, until=112))
    assert (block["event"], block["player"], block["lap"]["lead"], block["lap"]["samples"]) == ("block", 1, 8, 24)
    assert gate.playing.place == 112


def test_a_long_micro_batch_does_not_lead_in(gate: CountingGate) -> None:
    """All of the block is timed, where it is told so."""
    block = gate.train(Command("train", 1, start=80, until=112, lead=0))
    assert (block["lap"]["lead"], block["lap"]["samples"]) == (0, 32)


def test_a_player_that_fails_is_out_and_the_other_goes_on(gate: CountingGate) -> None:
    """Why it is out is told again, should it be asked for once more."""
    failed = gate.train(Command("train", 1, until=80), ValueError("wrong"))
    assert (failed["event"], failed["player"], failed["reason"]) == ("out", 1, "wrong")
    assert gate.train(Command("train", FIRST, until=80))["event"] == "block"
    assert gate.train(Command("report", 1)) == failed


def test_a_dead_worker_ends_its_own_player_and_the_one_that_played_repeats(gate: CountingGate) -> None:
    """Torch raises it wherever training happens to be."""
    gate._players[FIRST].worker_died = True
    block = gate.train(Command("train", 1, until=80), RuntimeError("a worker died"))
    assert (block["event"], block["player"]) == ("block", 1)
    assert gate.train(Command("train", FIRST, until=80))["event"] == "out"


def test_a_player_that_joins_as_anothers_worker_dies_is_in(gate: CountingGate) -> None:
    """It takes its first steps once more."""
    gate._players[1].worker_died = True
    assert gate.train(Command("join", 2), RuntimeError("a worker died"))["event"] == "ready"
    assert gate.train(Command("train", 2, until=80))["event"] == "block"
    assert gate.train(Command("train", 1, until=80))["event"] == "out"


def test_weights_that_nobody_kept_end_the_process() -> None:
    """So does any failure of a process's only player."""
    gate = CountingGate()
    with pytest.raises(ValueError, match="wrong"):
        gate.train(Command("join"), ValueError("wrong"))
    gate = CountingGate()
    gate.train(Command("join"))
    gate._keeping.restore = lambda *_: False  # type: ignore[method-assign,assignment]
    gate.train(Command("join", 1))
    with pytest.raises(NonFiniteLossError):
        gate.train(Command("train", 1, until=80), NonFiniteLossError("nan"))


def test_a_configs_settings_are_in_force_while_it_plays(gate: CountingGate) -> None:
    """A report needs none."""
    gate.entered.clear()
    for command in (Command("train", FIRST, until=80), Command("report", 1), Command("train", 1, until=80)):
        gate.train(command)
    assert gate.entered == [FIRST, 1]


def layer() -> tuple[nn.Module, list[torch.optim.Optimizer]]:
    """A layer with a buffer, in a list as a gate has them, and no optimizer."""
    model = nn.Linear(2, 2)
    model.register_buffer("seen", torch.zeros(2))
    return model, []


def test_a_buffer_that_grew_is_copied_anew() -> None:
    """A cache of positions grows with the longest sample; each player that joins needs a copy."""
    model, optimizers = layer()
    keeping = Keeping()
    keeping.keep([model], optimizers)
    model.seen = torch.ones(3)
    keeping.keep([model], optimizers)
    model.seen.zero_()
    assert keeping.restore([model], optimizers)
    assert model.seen.tolist() == [1, 1, 1]


def test_a_copy_of_other_shapes_is_none() -> None:
    """It cannot be restored, so the host must end."""
    model, optimizers = layer()
    keeping = Keeping()
    keeping.keep([model], optimizers)
    model.seen = torch.ones(3)
    assert not keeping.restore([model], optimizers)


def test_a_sparse_buffer_is_kept() -> None:
    """Such as the adjacency of a graph."""
    model, optimizers = layer()
    model.seen = torch.eye(2).to_sparse()
    keeping = Keeping()
    keeping.keep([model], optimizers)
    keeping.keep([model], optimizers)
    assert keeping.restore([model], optimizers)


def test_weights_that_are_not_finite_are_never_kept() -> None:
    """The last update of a player may have spoilt them: the next one starts from the copy before."""
    model, optimizers = layer()
    keeping = Keeping()
    keeping.keep([model], optimizers)
    before = model.weight.detach().clone()
    model.weight.data.fill_(float("nan"))
    keeping.keep([model], optimizers)
    assert torch.equal(model.weight, before)


def test_a_mask_of_infinities_is_kept() -> None:
    """A causal mask holds them in a buffer."""
    model, optimizers = layer()
    model.seen.fill_(-float("inf"))
    keeping = Keeping()
    keeping.keep([model], optimizers)
    assert keeping.restore([model], optimizers)
