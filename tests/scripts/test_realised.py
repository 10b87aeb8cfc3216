"""What a training notes of itself: its own time alone, whatever the loop is like, and never at its expense."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from autotune.recorder import realised
from autotune.recorder.realised import WARM_STEPS, Notes
from autotune.recorder.stream import ITERATE
from autotune.results.trainings import Note
from autotune.scripts import Script
from tests.forked import Forked

SIZE, READ, TRAIN, OTHER = 2, 1.0, 2.0, 50.0
"""Samples of a batch, and the seconds of reading it, of training on it, and of anything else."""


class World:
    """A training on a clock of its own, which only reading, training and evaluating move on.

    Attributes:
        now: Seconds.
        notes: What the training notes.
    """

    def __init__(self, file: Path, step_samples: float | None = None) -> None:
        self.now = 0.0
        self.file = file
        order: realised.Order = {
            "path": str(file), "result": "r", "cpu": "c", "cpus": 2, "step_samples": step_samples,
        }  # fmt: skip
        self.notes = Notes(order, torch.device("cpu"))
        self.model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))

    def loader(self, batches: int, **arguments: Any) -> DataLoader[Any]:
        """A loader of a number of batches."""
        return DataLoader(Rows(self, batches * SIZE), **{"batch_size": SIZE, **arguments})

    def read(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """A pass as a script makes it."""
        return self.notes.reads(loader, lambda: ITERATE(loader))

    def train(self) -> None:
        """Trains on a batch."""
        self.now += TRAIN
        self.notes.stepped()

    def evaluate(self) -> None:
        """Does anything else."""
        self.now += OTHER

    def notes_of_all(self) -> list[Note]:
        """What was noted once the process has ended."""
        self.notes.end()
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [Note.model_validate_json(line) for line in lines]


class Rows(Dataset[Any]):
    """Samples that take a while to read."""

    def __init__(self, world: World, length: int) -> None:
        self.world, self.length = world, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        self.world.now += READ / SIZE
        return torch.ones(1)


class Stream(IterableDataset[Any]):
    """The same, without a length."""

    def __init__(self, world: World, length: int) -> None:
        self.world, self.length = world, length

    def __iter__(self) -> Iterator[Any]:
        return (Rows(self.world, self.length)[index] for index in range(self.length))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A training whose clock the test moves."""
    monkeypatch.setattr(nn.Module, "train", nn.Module.train)  # put back in the end
    made = World(tmp_path / "notes.jsonl")
    monkeypatch.setattr(realised, "perf_counter", lambda: made.now)
    yield made
    made.notes.give_up()


def plain(world: World, loader: DataLoader[Any] | None = None) -> None:
    """An epoch."""
    for _ in world.read(world.loader(20) if loader is None else loader):
        world.train()


def evaluated_between_epochs(world: World) -> None:
    """Without gradients."""
    for _ in range(3):
        plain(world)
        world.notes.evaluates()
        world.evaluate()


def evaluated_in_an_epoch_by_mode(world: World) -> None:
    """From no loader."""
    for step, _ in enumerate(world.read(world.loader(60))):
        world.train()
        if step % 10 == 9:
            world.model.eval()
            world.evaluate()
            world.model.train()


def evaluated_with_gradients(world: World) -> None:
    """From a loader like training's, in the midst of an epoch; half of it is read."""
    for step, _ in enumerate(world.read(world.loader(60))):
        world.train()
        if step % 10 == 9:
            for place, _ in enumerate(world.read(world.loader(8))):
                world.evaluate()
                if place == 4:
                    break


def two_loaders(world: World) -> None:
    """Two batches make a step; the samples are the first loader's."""
    for _ in range(3):
        # Each takes half as long to read.
        first, second = (world.read(world.loader(20, batch_size=1)) for _ in range(2))
        for _ in zip(first, second, strict=True):
            world.train()


def begun_anew(world: World) -> None:
    """For each step."""
    for _ in range(60):
        next(world.read(world.loader(8)))
        world.train()


def with_a_part_that_stays_in_evaluation(world: World) -> None:
    """At the head of each step."""
    for _ in range(3):
        world.model.train()
        world.model[0].eval()
        for _ in world.read(world.loader(20)):
            world.model.train()
            world.model[0].eval()
            world.train()


def accumulated(world: World) -> None:
    """Two batches a step."""
    for place, _ in enumerate(world.read(world.loader(100))):
        world.now += TRAIN
        if place % 2:
            world.notes.stepped()


def of_own_batches(world: World) -> None:
    """No argument says how large they are."""
    plain(world, world.loader(60, batch_size=1, batch_sampler=[[0, 1]] * 60))


def without_length(world: World) -> None:
    """An iterable data set."""
    plain(world, DataLoader(Stream(world, 60 * SIZE), batch_size=SIZE))


def with_an_incomplete_batch(world: World) -> None:
    """It has one sample, which takes its share."""
    for _ in range(4):
        for batch in world.read(DataLoader(Rows(world, 10 * SIZE + 1), batch_size=SIZE)):
            world.now -= TRAIN * (1 - len(batch) / SIZE)
            world.train()


LOOPS = [
    plain, evaluated_between_epochs, evaluated_in_an_epoch_by_mode, evaluated_with_gradients, begun_anew,
    with_a_part_that_stays_in_evaluation, accumulated, of_own_batches, without_length, with_an_incomplete_batch,
]  # fmt: skip


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_the_rate_and_the_waits_are_those_of_training_alone(loop: Callable[[World], None], world: World) -> None:
    """Evaluation, in whatever way it shows, takes no part in it; nor do the first steps."""
    loop(world)
    notes = world.notes_of_all()
    samples, seconds = sum(note.samples for note in notes), sum(note.seconds for note in notes)
    assert samples >= 10 * SIZE - 1
    assert samples / seconds == pytest.approx(SIZE / (READ + TRAIN))
    waiting = sum(note.wait_seconds or 0 for note in notes) / seconds
    assert waiting == pytest.approx(READ / (READ + TRAIN), rel=0.06)


def test_two_loaders_that_make_a_step_are_one_training(world: World) -> None:
    """The samples of the first are counted, the waits of both."""
    two_loaders(world)
    notes = world.notes_of_all()
    seconds = sum(note.seconds for note in notes)
    assert sum(note.samples for note in notes) / seconds == pytest.approx(1 / (READ + TRAIN), rel=0.02)
    assert sum(note.wait_seconds or 0 for note in notes) / seconds == pytest.approx(READ / (READ + TRAIN), rel=0.02)


def test_a_loop_without_a_loader_counts_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a policy collects in evaluation what it trains on: that is left out, as it was when it was tuned."""
    monkeypatch.setattr(nn.Module, "train", nn.Module.train)
    world = World(tmp_path / "notes.jsonl", step_samples=8.0)
    monkeypatch.setattr(realised, "perf_counter", lambda: world.now)
    for _ in range(5):
        world.model.eval()
        world.evaluate()
        world.model.train()
        for _ in range(10):
            world.train()
    notes = world.notes_of_all()
    assert sum(note.samples for note in notes) == 8 * 40
    assert sum(note.seconds for note in notes) == pytest.approx(40 * TRAIN)
    assert notes[0].wait_seconds is None


def test_the_first_steps_and_those_after_compiling_are_left_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile may compile another shape in the midst of training."""
    graphs = 0
    monkeypatch.setattr(realised, "compiled_graphs", lambda: graphs)
    for step, _ in enumerate(world.read(world.loader(50))):
        if step in {3, WARM_STEPS - 1}:
            world.evaluate()
            graphs += 1
        world.train()
    (note,) = world.notes_of_all()
    assert note.rate == pytest.approx(SIZE / (READ + TRAIN))
    assert not note.compiled


def test_a_training_on_the_cpu_names_no_gpu(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the script has used CUDA for something else."""
    monkeypatch.setattr(realised, "here", lambda: {"torch": "2", "gpu": "NVIDIA GeForce RTX 4070", "ranks": 1})
    for _ in range(4):
        for _ in world.read(world.loader(100)):
            world.train()
    notes = world.notes_of_all()
    assert notes
    assert {note.gpu for note in notes} == {None}


def test_a_note_is_made_after_ten_minutes_and_else_at_the_end_of_an_epoch(world: World) -> None:
    """One epoch of 30 minutes has three notes, six of 20 seconds three."""
    plain(world, world.loader(600 + WARM_STEPS))
    for _ in range(6):
        plain(world, world.loader(7))
    lengths = [round(note.seconds, -1) for note in world.notes_of_all()]
    assert lengths == [600, 600, 590, 40, 40, 40]


def test_a_dear_note_waits_longer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the last note took says how long the next one waits, ten minutes at most."""

    def slow(path: str, line: str) -> None:
        write(path, line)
        world.now += 0.3

    write = realised._append
    monkeypatch.setattr(realised, "_append", slow)
    for _ in range(20):
        plain(world, world.loader(20))
    first, *rest = (note.seconds for note in world.notes_of_all())
    assert first < 100
    assert min(rest[:-1]) >= 300


@pytest.mark.parametrize("broken", ["write", "look"])
def test_a_note_that_cannot_be_made_ends_the_noting_alone(
    broken: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, or anything else."""
    if broken == "write":
        world.file.mkdir()
    else:
        monkeypatch.setattr(realised, "memory_bytes", lambda: 1 / 0)
    plain(world, world.loader(40))
    plain(world, world.loader(40))
    assert world.notes.due == float("inf")
    assert not world.file.is_file()


def nested(layout: torch.layout) -> dict[str, Any]:
    """Makes batches of samples of different lengths."""
    return {
        "collate_fn": lambda rows: torch.nested.nested_tensor(
            [torch.ones(2 + place, 3) for place in range(len(rows))], layout=layout
        )
    }


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(nested(torch.strided), id="strided nested tensors"),
        pytest.param(nested(torch.jagged), id="jagged nested tensors"),
    ],
)
def test_a_loader_that_cannot_be_looked_at_ends_the_noting_alone(arguments: dict[str, Any], world: World) -> None:
    """Each batch of it arrives, in the next epoch too."""
    for _ in range(2):
        assert sum(1 for _ in world.read(world.loader(40, **arguments))) == 40
    assert world.notes.due == float("inf")


def test_samples_of_different_lengths_are_measured(world: World) -> None:
    """The mean elements of one, padding included."""
    lengths = iter([3, 5] * 40)
    loader = world.loader(60, collate_fn=lambda rows: torch.ones(len(rows), next(lengths)))
    plain(world, loader)
    (note,) = world.notes_of_all()
    assert note.sample_elements == pytest.approx(4.0)


SCRIPT = """
import os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 80
    def __getitem__(self, index):
        return torch.ones(4)

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters())
for epoch in range(3):
    for batch in DataLoader(Rows(), batch_size=2, shuffle=True):
        model(batch).mean().backward()
        optimizer.step()
        time.sleep(0.01 * len(batch))
    with torch.no_grad():
        for batch in DataLoader(Rows(), batch_size=2):
            time.sleep(0.01)
    os.chdir("/")
"""
LOOP = {"loaders": ["__main__.Rows 80 2 RandomSampler False"], "models": [], "device": "cpu"}


def launch(folder: Path, forked: Forked, arguments: dict[str, Any]) -> Path:
    """Trains with other arguments of the loader; returns the file of notes."""
    (folder / "train.py").write_text(SCRIPT)
    file = folder / "notes.jsonl"
    changes = {"knobs": {"batch_size": 8}, "changed": ["batch_size"], "loader": arguments}
    order = {"path": str(file), "result": "r", "cpu": "c", "cpus": 2, "step_samples": None}
    orders = {"role": "launch", "loop": LOOP, "changes": changes, "realised": order}
    script = Script((sys.executable, "train.py"))
    done = forked.run(script.command[1:], folder, script.environment(orders, os.environ))
    assert done.returncode == 0, done.stderr
    return file


def test_a_launched_script_notes_nothing_where_a_change_has_failed(tmp_path: Path, forked: Forked) -> None:
    """It trains in another way than the result that the notes would count for."""
    assert not launch(tmp_path, forked, {"num_workers": 1, "multiprocessing_context": "other"}).exists()


def test_a_launched_script_notes_what_it_reaches(tmp_path: Path, forked: Forked) -> None:
    """With the batches of the result; its folder may change."""
    file = launch(tmp_path, forked, {"batch_size": 8})
    assert file.exists()
    (note,) = [Note.model_validate_json(line) for line in file.read_text().splitlines()]
    assert note.samples == 3 * 80 - WARM_STEPS * 8
    assert note.seconds >= 0.08 * note.samples / 8
    assert (note.torch, note.ranks, note.gpu) == (torch.__version__, 1, None)
    assert note.host_memory_bytes
