"""Bursts of scripts: forked from their loop or started again, they train blocks, and leave nothing behind."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from autotune.measuring.records import Outcome
from autotune.scripts import Script, ScriptIsolation
from tests.example_scripts import EXAMPLES, START_SECONDS, STEPS, alone, played, script
from tests.forked import Forked
from tests.inside import working_in


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Scripts write into the working directory; no process of theirs is left, beside those of tests before."""
    monkeypatch.chdir(tmp_path)
    before = set(psutil.Process().children(recursive=True))
    yield
    assert not set(psutil.Process().children(recursive=True)) - before


def test_sides_of_a_script_train_as_many_samples_block_by_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A duet of the script as it is and with a worker; what it writes is gone in the end, and no process is left.

    Changes outside the loader come into effect as well: half precision, a fused optimizer, threads and the allocator.
    The energy of a block is read by the parent, here by a counter of a device that takes 40 W all the time.
    """

    class Steady:
        joules = staticmethod(lambda: 40.0 * time.monotonic())

    (tmp_path / "log.txt").write_text("mine\n")
    monkeypatch.setattr("autotune.scripts.isolation.open_energy", lambda *_: Steady())
    with ScriptIsolation(script("plain")) as isolation:
        isolation.start(START_SECONDS)
        bursts = played(isolation, {"num_workers": 1})
        changed = alone(isolation, precision="bf16", optimizer_impl="fused", num_threads=1, allocator="tuned")
    assert [burst.outcome for burst in (*bursts, changed)] == [Outcome.OK] * 3, changed.reason
    first, second = (burst.measurement for burst in bursts)
    assert first is not None
    assert second is not None
    assert [block.samples for block in first.blocks] == [block.samples for block in second.blocks]
    for side in (first, second):
        assert side.looks
        assert all(look.host_bytes and look.open_files for look in side.looks)
        assert side.telemetry is not None
        assert (side.telemetry.energy_joules or 0.0) > 36 * side.measure_seconds
    assert (tmp_path / "log.txt").read_text() == "mine\n"
    assert [path.name for path in tmp_path.iterdir()] == ["log.txt"]


@pytest.mark.slow
def test_a_script_without_a_loader_trains_in_turn() -> None:
    """The gate is the end of a step."""
    with ScriptIsolation(script("without_loader")) as isolation:
        isolation.start(START_SECONDS)
        bursts = played(isolation, {"optimizer_impl": "fused"})
    assert [burst.outcome for burst in bursts] == [Outcome.OK, Outcome.OK]


@pytest.mark.slow
def test_a_script_that_cannot_be_forked_is_started_again_for_each_burst() -> None:
    """Its thread would be missing in a fork; the reason is told."""
    notes: list[str] = []
    with ScriptIsolation(script("threaded"), notes.append) as isolation:
        isolation.start(START_SECONDS)
        bursts = played(isolation, {"num_threads": 1})
    assert [burst.outcome for burst in bursts] == [Outcome.OK, Outcome.OK]
    assert "each burst starts the script again: the script runs threads" in notes[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "threaded"])
def test_a_shell_script_does_not_go_on_to_what_follows_training(name: str, tmp_path: Path) -> None:
    """After a look and bursts, forked or started again: a model is exported and a folder removed by nobody."""
    steps = f"{sys.executable} {EXAMPLES / f'{name}.py'} && echo exported >> after.txt\necho removed >> after.txt\n"
    (tmp_path / "inner.sh").write_text(steps)
    (tmp_path / "train.sh").write_text("bash inner.sh; echo uploaded >> after.txt\n")
    with ScriptIsolation(Script(("bash", "train.sh"))) as isolation:
        isolation.start(START_SECONDS)
        bursts = [alone(isolation) for _ in range(2)]
    assert [burst.outcome for burst in bursts] == [Outcome.OK, Outcome.OK]
    assert not (tmp_path / "after.txt").exists()


def test_a_script_may_clear_its_temporary_folder(tmp_path: Path) -> None:
    """What all bursts share lies elsewhere."""
    (tmp_path / "loop.py").write_text(STEPS)
    (tmp_path / "train.sh").write_text(f'touch "$TMPDIR/a"; rm -rf "$TMPDIR"/* && exec {sys.executable} loop.py\n')
    with ScriptIsolation(Script(("bash", "train.sh"))) as isolation:
        isolation.start(START_SECONDS)
        assert isolation.seen.ranks == 1


THREADS = """
import sys
import torch
from torch import nn
torch.set_num_threads(torch.get_num_threads() + 1)
threads = torch.get_num_threads()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
while True:
    assert torch.get_num_threads() == threads == int(sys.argv[1]), torch.get_num_threads()
    optimizer.zero_grad()
    model(torch.ones(8, 4)).mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_script_that_asks_for_the_number_of_threads_is_answered_as_ever(tmp_path: Path, forked: Forked) -> None:
    """Also on its way to the loop where it is forked, where torch itself has one."""
    (tmp_path / "ask.py").write_text("import torch; print(torch.get_num_threads())")
    ask = forked.run(("ask.py",), tmp_path)
    (tmp_path / "train.py").write_text(THREADS)
    with ScriptIsolation(Script((sys.executable, "train.py", str(int(ask.stdout) + 1)))) as isolation:
        isolation.start(START_SECONDS)
        burst = alone(isolation)
        assert isolation.fork_unsafe_reason is None
    assert burst.outcome is Outcome.OK, burst.reason


AHEAD = """
import itertools
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(6400, 4)), batch_size=16)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(100):
    batches = iter(loader)
    while group := list(itertools.islice(batches, 4)):
        for (batch,) in group:
            time.sleep(0.05)
            model(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.slow
def test_batches_that_are_drawn_before_their_step_are_no_blocks_by_themselves(tmp_path: Path) -> None:
    """As transformers' Trainer does: whatever is timed has been trained on, also where a step is longer than a turn."""
    (tmp_path / "train.py").write_text(AHEAD)
    with ScriptIsolation(Script((sys.executable, "train.py"))) as isolation:
        isolation.start(START_SECONDS)
        assert isolation.seen.draws_ahead
        bursts = played(isolation, {"num_threads": 1})
    for burst in bursts:
        assert burst.measurement is not None, burst.reason
        assert all(block.samples % 64 == 0 for block in burst.measurement.blocks)
        assert all(block.seconds >= 0.05 * block.samples / 16 for block in burst.measurement.blocks)


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ScriptIsolation, Path]]:
    """A script that waits at its loop, and the file that says how its bursts fail."""
    how = tmp_path_factory.mktemp("failing") / "how"
    how.write_text("")
    failing = dataclasses.replace(script("failing", str(how)), writable=(how,))
    with ScriptIsolation(failing) as isolation:
        with working_in(how.parent):
            isolation.start(START_SECONDS)
            isolation._ready_server(START_SECONDS)
        yield isolation, how


@pytest.mark.parametrize(
    ("how", "outcome", "told"),
    [
        ("raise", Outcome.CRASHED, "ValueError: no such luck"),
        ("memory", Outcome.OOM, "MemoryError: all of it"),
        ("exit", Outcome.CRASHED, "the script ended while it was training"),
        ("die", Outcome.CRASHED, "SIGABRT"),
        ("nan", Outcome.INVALID, "the loss became nan"),
        ("hang", Outcome.TIMEOUT, ""),
    ],
)
@pytest.mark.slow
def test_how_a_script_fails_is_its_outcome(
    how: str, outcome: Outcome, told: str, failing: tuple[ScriptIsolation, Path]
) -> None:
    """What it raised, exited or died of stands in the reason; one that hangs is ended at its burst's own deadline."""
    isolation, file = failing
    file.write_text(how)
    burst = alone(isolation, 6.0 if how == "hang" else 60.0)
    assert burst.outcome is outcome, burst.reason
    assert told in (burst.reason or "")


EVALUATING = """
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Slow(nn.Linear):
    def forward(self, x):
        time.sleep(0.01 if self.training else 0.5)
        return super().forward(x)

loader = DataLoader(TensorDataset(torch.ones(800, 4)), batch_size=8)
source = {"loader": lambda: loader, "begun": lambda: iter(loader), "none": lambda: [(torch.ones(8, 4),)]}[sys.argv[1]]()
model = Slow(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)

def train(step, batch):
    if step % 10 == 0:
        model.eval()
        with torch.no_grad():
            model(batch)
        model.train()
    optimizer.zero_grad()
    model(batch).mean().backward()
    optimizer.step()

step = 0
while True:
    for (batch,) in source:
        train(step, batch)
        step += 1
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["loader", "begun", "none"])
def test_evaluation_between_steps_is_no_part_of_a_block(kind: str, tmp_path: Path) -> None:
    """A step of 10 ms trains 800 samples a second at most; with half a second in every tenth it would be 130.

    The model may be made after the loader's pass has begun.
    """
    (tmp_path / "train.py").write_text(EVALUATING)
    with ScriptIsolation(Script((sys.executable, "train.py", kind))) as isolation:
        isolation.start(START_SECONDS)
        burst = alone(isolation)
    assert burst.rate is not None, burst.reason
    assert 200 < burst.rate < 800


RELOADING = """
import os, torch
from torch import nn
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3000):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).mean().backward()
    optimizer.step()
    torch.save(model.state_dict(), "best.pt")
model.load_state_dict(torch.load("best.pt"))
"""


@pytest.mark.slow
def test_a_script_that_ends_with_its_best_checkpoint_has_trained_all(tmp_path: Path) -> None:
    """Bursts save none; it begins again, as a script does that just ends."""
    (tmp_path / "train.py").write_text(RELOADING)
    with ScriptIsolation(Script((sys.executable, "train.py"))) as isolation:
        isolation.start(START_SECONDS)
        burst = alone(isolation)
    assert burst.outcome is Outcome.OK, burst.reason
