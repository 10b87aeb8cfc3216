"""How a script goes through its loaders: the pass that training begins in, and what no burst could measure truly."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from autotune.measuring.records import Outcome
from autotune.recorder.loader_passes import Passes
from autotune.recorder.samplers import FEEDBACK
from autotune.recorder.stream import ITERATE
from autotune.scripts import ScriptIsolation
from autotune.scripts.changes import held_knobs
from autotune.scripts.facts import loop_of
from autotune.timing.loop import merged
from autotune.torch_settings.naming import loader_key
from tests.example_scripts import START_SECONDS, alone
from tests.scripts.conftest import SeenIn
from tests.scripts.test_recognition import written

DATA = TensorDataset(torch.arange(32))
LOADER_KNOBS = {
    "num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "dataloader_in_order",
    "multiprocessing_context",
}  # fmt: skip

LOOKED_THROUGH = """
loader = DataLoader(data(), batch_size=16, shuffle=True)
mean = sum(x.mean() for x, _ in loader) / len(loader)
model = net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2000):
    for x, y in loader:
        step(model, optimizer, x - mean, y)
"""
BEGUN_ANEW = """
loader = DataLoader(data(), batch_size=16, shuffle=True)
model = net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(20_000):
    step(model, optimizer, *next(iter(loader)))
"""
CYCLED = """
import itertools
model = net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
seen = set()
for x, y in itertools.cycle(DataLoader(data(48), batch_size=16, shuffle=True)):
    seen.add(id(x))
    assert len(seen) <= 4, "more batches than are kept"
    step(model, optimizer, x, y)
"""


class Script:
    """A script that goes through loaders of four batches."""

    def __init__(self) -> None:
        self._passes = Passes()
        self._loaders: dict[int, DataLoader[Any]] = {}
        self._draws: list[tuple[int, int]] = []
        self._first_step: int | None = None

    def loader(self) -> DataLoader[Any]:
        """Another one, alike."""
        made: DataLoader[Any] = DataLoader(DATA, batch_size=8)
        self._loaders[id(made)] = made
        return made

    def iterator(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """What `iter()` gives."""
        begun = self._passes.begin(loader, trains=True)

        def drawn(_: Any) -> None:
            begun.note(len(self._draws), 8)
            self._draws.append((id(loader), 8))

        return begun.through(ITERATE(loader), drawn)

    def step(self) -> None:
        """Of the optimizer."""
        if self._first_step is None:
            self._first_step = len(self._draws)
            self._passes.look_for_cycles()

    def train(self, batches: Iterable[Any]) -> None:
        """A step for each batch."""
        for _ in batches:
            self.step()

    def told(self) -> dict[str, Any]:
        """Of the loader that was drawn from last."""
        drawn = merged(self._draws, {one: loader_key(loader) for one, loader in self._loaders.items()})
        told_as = {own: told for (own, _), (told, _) in zip(self._draws, drawn, strict=True)}
        first_step = self._first_step or 0
        evaluated = self._passes.evaluating([first_step, len(self._draws)])
        return self._passes.described(drawn[-1][0], told_as, first_step, evaluated)

    def evaluated(self) -> set[int]:
        """Batches that nothing was trained on."""
        return self._passes.evaluating([self._first_step or 0, len(self._draws)])

    def call(self, *, trains: bool) -> None:
        """Of a model."""
        self._passes.are_used(trains=trains)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts write into the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def script() -> Script:
    """One that has begun."""
    return Script()


@pytest.mark.parametrize("made_anew", [False, True])
def test_what_is_gone_through_before_training_is_passed_over(script: Script, *, made_anew: bool) -> None:
    """A pass for the mean of the data, and a batch to look at."""
    first = script.loader()
    list(script.iterator(first))
    next(script.iterator(first))
    for _ in range(2):
        script.train(script.iterator(script.loader() if made_anew else first))
    assert script.told()["passed"] == 2


def test_a_pass_that_goes_on_after_the_first_step_is_the_one_that_trains(script: Script) -> None:
    """Whatever is taken from the same loader beside it."""
    loader = script.loader()
    for _ in script.iterator(loader):
        next(script.iterator(loader))
        script.step()
    assert script.told()["passed"] == 0


def test_epochs_of_one_step_begin_in_the_one_of_the_first_step(script: Script) -> None:
    """None of its batches is drawn after the step."""
    loader = script.loader()
    list(script.iterator(loader))
    for _ in range(3):
        list(script.iterator(loader))
        script.step()
    assert script.told()["passed"] == 1


@pytest.mark.parametrize("made_anew", [False, True])
def test_a_loader_that_is_begun_anew_for_each_batch_is_counted(script: Script, *, made_anew: bool) -> None:
    """Between steps."""
    loader = script.loader()
    for _ in range(4):
        next(script.iterator(script.loader() if made_anew else loader))
        script.step()
    assert script.told()["begun_anew"] == 3


def test_loaders_that_come_to_their_end_are_not_begun_anew(script: Script) -> None:
    """Of two that are zipped, the second one is not asked for its end."""
    first, second = script.loader(), script.loader()
    next(script.iterator(second))
    for _ in range(3):
        script.train(zip(script.iterator(first), script.iterator(second), strict=False))
    assert script.told()["begun_anew"] == 0


@pytest.mark.parametrize(
    ("around", "told"),
    [
        (itertools.cycle, True),
        (lambda batches: itertools.cycle(enumerate(batches)), True),
        (lambda batches: itertools.cycle(one for one in batches), True),
        (lambda batches: itertools.chain(batches, itertools.cycle([1])), False),
    ],
    ids=["cycled", "counted", "generated", "beside a cycle"],
)
def test_batches_that_are_replayed_are_told(script: Script, around: Any, *, told: bool) -> None:
    """By itertools.cycle, whatever stands between."""
    script.train(itertools.islice(around(script.iterator(script.loader())), 6))
    assert script.told()["is_cycled"] is told


@pytest.mark.parametrize("most", [2, 4])
def test_batches_that_a_model_only_evaluates_are_told_from_those_it_trains_on(script: Script, most: int) -> None:
    """Before a step on a batch that is drawn already, of a whole pass or of its beginning."""
    training, evaluation = script.loader(), script.loader()
    for _ in script.iterator(training):
        for _ in itertools.islice(script.iterator(evaluation), most):
            script.call(trains=False)
        script.call(trains=True)
        script.step()
    assert script.evaluated() == {place for place in range(4 * (most + 1)) if place % (most + 1)}


@pytest.mark.parametrize("calls", [1, 2])
def test_a_batch_whose_pass_is_left_off_at_once_is_evaluated_too(script: Script, calls: int) -> None:
    """Samples of generators are drawn so, `next(iter(loader))`: after a step, or before one on an earlier batch."""
    training, evaluation = script.loader(), script.loader()
    for number, _ in enumerate(script.iterator(training)):
        for is_sampled in (number % 2 == 0, number % 2 == 1):
            if is_sampled:
                next(script.iterator(evaluation))
                for _ in range(calls):
                    script.call(trains=False)
            else:
                script.call(trains=True)
                script.step()
    assert script.evaluated() == {1, 3, 5, 7}


def test_who_trains_in_the_mode_of_evaluation_is_believed(script: Script) -> None:
    """Nothing else feeds the steps."""
    for _ in script.iterator(script.loader()):
        script.call(trains=False)
        script.step()
    assert not script.evaluated()


EVALUATED = """
model = net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader, held_out = (DataLoader(data(64), batch_size=16, shuffle=True) for _ in range(2))

def evaluate():
    model.eval()
    count = 0
    for x, y in held_out:
        with torch.no_grad():
            model(x)
        count += 1
    assert count == 4, "another pass than the script's own"
    model.train()

for epoch in range(20_000):
    for number, (x, y) in enumerate(loader):
        if number % 3 == 0:
            evaluate()
        step(model, optimizer, x, y)
"""


@pytest.mark.slow
def test_a_loader_that_is_evaluated_with_gradients_on_feeds_no_training(tmp_path: Path) -> None:
    """Neither in a look nor in a burst, though it is like the one that trains in all else."""
    with ScriptIsolation(written(tmp_path, EVALUATED)) as isolation:
        isolation.start(START_SECONDS)
        assert (len(isolation.seen.loaders), isolation.seen.accumulation) == (1, 1)
        burst = alone(isolation)
    assert burst.outcome is Outcome.OK, burst.reason


CACHING = """
class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.read = {}
        self.rows = data()

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if index not in self.read:
            self.read[index] = self.rows[index]
        return self.read[index]

model = net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2000):
    for x, y in DataLoader(Rows(), batch_size=16, shuffle=True):
        step(model, optimizer, x, y)
"""
AUGMENTING = """
import numpy

class Noise:
    def __init__(self):
        self.generator = numpy.random.default_rng()

    def __call__(self, x):
        return x + self.generator.normal()

class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.rows, self.noise = data(), Noise()

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        x, y = self.rows[index]
        return self.noise(x), y

model = net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2000):
    for x, y in DataLoader(Rows(), batch_size=16, shuffle=True):
        step(model, optimizer, x.float(), y)
"""
SHARING = """
class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.rows = data()
        with open("rows", "wb") as file:
            file.write(bytes(8 * len(self.rows)))
        self.file = open("rows", "rb", buffering=0)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        self.file.seek(8 * index)
        self.file.read(8)
        return self.rows[index]

model = net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2000):
    for x, y in DataLoader(Rows(), batch_size=16, shuffle=True):
        step(model, optimizer, x, y)
"""


FED_BACK = """
class Hardest:
    def __init__(self):
        self.losses = torch.zeros(64)

    def __len__(self):
        return 4

    def __iter__(self):
        for _ in range(len(self)):
            yield self.losses.topk(16).indices.tolist()

model = net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
sampler = Hardest()
for _ in range(2000):
    for x, y in DataLoader(data(), batch_sampler=sampler):
        step(model, optimizer, x, y)
        sampler.losses[:16] += 1
"""
MINING = """
model = net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)

def hardest(samples):
    x, y = torch.utils.data.default_collate(samples)
    with torch.no_grad():
        order = model(x).max(1).values.argsort()
    return x[order], y[order]

for _ in range(2000):
    for x, y in DataLoader(data(), batch_size=16, shuffle=True, collate_fn=hardest):
        step(model, optimizer, x, y)
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (CACHING, "keeps what it has read"),
        (AUGMENTING, "would repeat each other"),
        (SHARING, "place workers would share"),
        (MINING, "that training changes"),
    ],
    ids=["caching", "augmenting", "sharing a file", "mining"],
)
def test_workers_are_held_where_each_would_have_a_copy_of_what_changes(
    text: str, told: str, tmp_path: Path, seen_in: SeenIn
) -> None:
    """Kept samples are lost, or there once in each; generators repeat each other; one seeks where another reads."""
    held = held_knobs(seen_in(written(tmp_path, text)), batch_is_free=True)
    assert {name for name, reason in held.items() if told in reason} == {"num_workers", "persistent_workers"}


def test_how_far_ahead_indices_are_drawn_is_held_where_training_decides_them(tmp_path: Path, seen_in: SeenIn) -> None:
    """And the result does not say that the sampler may be drawn ahead."""
    seen = seen_in(written(tmp_path, FED_BACK))
    held = held_knobs(seen, batch_is_free=True)
    assert {name for name, reason in held.items() if reason == FEEDBACK} == {"num_workers", "prefetch_factor"}
    assert loop_of(seen)["samplers"] == []


@pytest.mark.slow
def test_a_burst_trains_where_the_loader_was_gone_through_before(tmp_path: Path) -> None:
    """Not in the loop that looks at the data, in which there is no loss."""
    with ScriptIsolation(written(tmp_path, LOOKED_THROUGH)) as isolation:
        isolation.start(START_SECONDS)
        assert isolation.loop["passed"] == 1
        burst = alone(isolation)
    assert burst.measurement is not None, burst.reason
    assert burst.measurement.final_loss is not None


@pytest.mark.parametrize(
    ("text", "told"), [(BEGUN_ANEW, "begins its loader again"), (CYCLED, "replays them")], ids=["anew", "cycled"]
)
def test_a_loader_that_a_burst_cannot_time_is_left_as_it_is(
    text: str, told: str, tmp_path: Path, seen_in: SeenIn
) -> None:
    """The script would train otherwise than a burst of it: all of its loader's knobs are held, but for the batch."""
    held = held_knobs(seen_in(written(tmp_path, text)), batch_is_free=True)
    assert {name for name, reason in held.items() if told in reason} == LOADER_KNOBS


@pytest.mark.slow
def test_a_burst_replays_a_few_batches_where_the_script_does(tmp_path: Path) -> None:
    """A stream without end that somebody keeps all of would fill the memory."""
    with ScriptIsolation(written(tmp_path, CYCLED)) as isolation:
        isolation.start(START_SECONDS)
        burst = alone(isolation)
    assert burst.outcome is Outcome.OK, burst.reason
