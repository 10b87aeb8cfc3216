"""What a script evaluates between its steps: bursts tell it from training, and leave it out."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.runner import ProcessRunner
from autotune.measuring.records import Burst, Outcome, Point
from autotune.recorder import evaluation as of_evaluation
from autotune.recorder import hooks
from autotune.recorder.evaluation import OFTEN_STEPS, Copies, Evaluation
from autotune.scripts import ScriptIsolation
from tests.example_scripts import START_SECONDS, script

SELDOM = 2 * (OFTEN_STEPS + 1)
"""Batches of three steps."""
PLAN = BurstPlan(measure_seconds=1.0)
"""Several evaluations fit into it."""


class Told:
    """An evaluation beside steps of two batches each, by a clock that is put forward, and what was told of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step_batches: int = 2) -> None:
        self.now = 0.0
        self.phases: list[str] = []
        monkeypatch.setattr(of_evaluation, "perf_counter", lambda: self.now)
        self.evaluation = Evaluation(self.phases.append, lambda: None, step_batches)

    def lasts(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds

    @property
    def left_out(self) -> float:
        """Seconds."""
        return self.evaluation.left_out


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """One that has not begun."""
    return Told(monkeypatch)


def test_evaluation_lasts_until_the_model_is_switched_back(told: Told) -> None:
    """By its mode; what shows meanwhile is a part of it."""
    model, other = nn.Linear(1, 1), nn.Linear(1, 1)
    told.evaluation.on_mode(model, 4, training=False)
    told.lasts(1)
    told.evaluation.shows("loader", 0)
    told.evaluation.seems_over()
    told.evaluation.on_mode(other, 4, training=True)
    told.lasts(2)
    told.evaluation.on_mode(model, 4, training=True)
    told.lasts(4)
    assert (told.left_out, told.phases) == (3, ["evaluate", "train"])


def test_who_trains_in_the_mode_of_evaluation_is_timed(told: Told) -> None:
    """As with frozen statistics of batches."""
    told.evaluation.on_mode(nn.Linear(1, 1), 4, training=False)
    told.lasts(1)
    told.evaluation.seems_over()
    told.evaluation.trains()
    told.evaluation.end()
    assert told.left_out == 0


def test_gradients_without_a_step_are_no_training_in_the_mode_of_evaluation(told: Told) -> None:
    """As of attacks on samples that are held out."""
    model = nn.Linear(1, 1)
    told.evaluation.on_mode(model, 4, training=False)
    told.evaluation.trains(steps=False)
    told.lasts(1)
    told.evaluation.on_mode(model, 4, training=True)
    assert told.left_out == 1


def test_evaluation_that_shows_lasts_until_training_draws_again(told: Told) -> None:
    """Loops over batches may want gradients again after each."""
    for _ in range(3):
        told.evaluation.shows("loader", 4)
        told.lasts(1)
        told.evaluation.seems_over()
    told.lasts(1)
    told.evaluation.end()
    told.lasts(8)
    assert (told.left_out, told.phases) == (4, ["evaluate", "train"])


@pytest.mark.parametrize(("wants_gradients", "left_out"), [(True, 1), (False, 0)])
def test_between_a_batch_and_its_step_it_is_over_when_gradients_are_wanted(
    told: Told, *, wants_gradients: bool, left_out: float
) -> None:
    """The batch that was drawn before is trained on then; without such a sign it may have been training."""
    told.evaluation.shows("loader", 4)
    told.lasts(1)
    if wants_gradients:
        told.evaluation.seems_over()
    told.lasts(2)
    told.evaluation.trains()
    told.evaluation.end()
    assert (told.left_out, told.phases) == (left_out, ["evaluate", "train"])


def test_what_each_step_does_is_training(told: Told) -> None:
    """A teacher that is called, an unlabelled batch: but for the first time. What else comes seldom, is none."""
    for drawn in range(2, 12, 2):
        told.evaluation.shows("teacher", drawn)
        told.lasts(1)
        told.evaluation.seems_over()
        told.evaluation.trains()
    assert told.left_out == 1
    told.evaluation.shows("loader", 12)
    told.lasts(1)
    told.evaluation.end()
    assert told.left_out == 2


def test_a_switch_of_mode_in_each_step_is_training(told: Told) -> None:
    """As where a model guesses labels that it then trains on: but for the first time."""
    model = nn.Linear(1, 1)
    for drawn in range(2, 12, 2):
        told.evaluation.end()
        for _ in range(2):
            told.evaluation.on_mode(model, drawn, training=False)
            told.lasts(1)
            told.evaluation.on_mode(model, drawn, training=True)
        told.evaluation.trains()
    assert told.left_out == 2


@pytest.mark.parametrize("is_same", [True, False], ids=["same model", "another"])
def test_evaluation_within_a_step_is_seen_beside_a_switch_in_each(told: Told, *, is_same: bool) -> None:
    """Of the same model, as of another one, every third step."""
    model, other = nn.Linear(1, 1), nn.Linear(1, 1)
    for step in range(1, 10):
        told.evaluation.end()
        own = [model] if step % 3 else [model, model if is_same else other]
        for switched in own:
            told.evaluation.on_mode(switched, 2 * step, training=False)
            told.lasts(1)
            told.evaluation.on_mode(switched, 2 * step, training=True)
        told.evaluation.trains()
    assert told.left_out == 1 + 3


def test_evaluation_after_each_step_is_no_training(told: Told) -> None:
    """As where an epoch has a single batch."""
    model = nn.Linear(1, 1)
    for drawn in range(2, 12, 2):
        told.evaluation.end()
        told.evaluation.trains()
        told.evaluation.on_mode(model, drawn, training=False)
        told.lasts(1)
        told.evaluation.on_mode(model, drawn, training=True)
    assert told.left_out == 5


@pytest.mark.parametrize(("batches", "is_left_out"), [(SELDOM - 1, False), (SELDOM, True)])
def test_what_comes_after_more_than_two_steps_is_evaluation(told: Told, batches: int, *, is_left_out: bool) -> None:
    """Each of two batches."""
    told.evaluation.shows("loader", 0)
    told.evaluation.end()
    told.evaluation.shows("loader", batches - 1)
    told.lasts(1)
    told.evaluation.end()
    assert (told.left_out > 0) is is_left_out


def test_without_a_loader_only_modes_tell_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """There, calls without gradients collect what is trained on."""
    told = Told(monkeypatch, step_batches=0)
    told.evaluation.shows("copy", 0)
    told.lasts(1)
    told.evaluation.end()
    assert (told.left_out, told.phases) == (0, [])


class Net(nn.Module):
    """With weights of a shape that no other test has."""

    def __init__(self, width: int = 19) -> None:
        super().__init__()
        self.inner = nn.Linear(5, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def test_copies_of_a_model_are_told_where_they_evaluate() -> None:
    """Those that are there, those that are made and switched later, and copies of these; the model itself is not."""
    model, other, called = Net(), Net(7).eval(), list[str]()
    first = copy.deepcopy(model).eval()
    copies = Copies([model], called.append)
    copies.look_for()
    second = copy.deepcopy(model).eval()
    copies.note(second)
    batch = torch.ones(1, 5)
    with torch.no_grad():
        for one in (first, second, copy.deepcopy(first), model.eval(), other):
            one(batch)
    assert len(called) == 3
    assert not model._forward_pre_hooks


def test_a_copy_is_pickled_and_compiled_as_ever() -> None:
    """What tells of it stays in this process, and breaks no graph."""
    model, called = Net(), list[str]()
    twin = copy.deepcopy(model).eval()
    Copies([model], called.append).look_for()
    with torch.no_grad():
        pickle.loads(pickle.dumps(twin))(torch.ones(1, 5))  # noqa: S301 - made here
        torch.compile(twin, backend="eager", fullgraph=True)(torch.ones(1, 5))
        assert called == []
        twin(torch.ones(1, 5))
    assert len(called) == 1


def test_a_copy_that_trains_or_wants_gradients_is_not_told() -> None:
    """A second model may be trained as well."""
    model, called = Net(), list[str]()
    twin = copy.deepcopy(model)
    Copies([model], called.append).look_for()
    twin.eval()(torch.ones(1, 5))
    with torch.no_grad():
        twin.train()(torch.ones(1, 5))
    assert called == []


def test_gradients_are_wanted_again_after_the_outermost_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """However they were left out; not after one within, nor after one that wants them within."""
    contexts = (torch.no_grad, torch.inference_mode, torch.set_grad_enabled)
    for context in contexts:
        monkeypatch.setattr(context, "__exit__", context.__exit__)  # is put back in the end
    told = list[str]()
    hooks.on_gradients_again(lambda: told.append("again"))
    with torch.no_grad(), torch.inference_mode(), torch.enable_grad():
        pass
    assert told == ["again"]
    with torch.set_grad_enabled(False), torch.set_grad_enabled(False):
        assert told == ["again"]
    with torch.inference_mode():
        assert told == ["again"] * 2
    assert told == ["again"] * 3


@pytest.fixture
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts write into the working directory."""
    monkeypatch.chdir(tmp_path)


def burst_of(how: str) -> Burst:
    """One of the example, which evaluates an average of its weights."""
    with ScriptIsolation(script("with_average", how)) as isolation:
        isolation.start(START_SECONDS)
        assert len(isolation.seen.loaders) == 1
        runner = ProcessRunner(isolation, "cpu")
        return runner.run(Point(config=runner.check(START_SECONDS).baseline), PLAN, 60.0)


@pytest.mark.slow
@pytest.mark.usefixtures("_elsewhere")
@pytest.mark.parametrize("how", ["alike", "other", "tensors"])
def test_an_average_that_is_evaluated_is_no_part_of_a_block(how: str) -> None:
    """A step of 10 ms trains 800 samples a second at most; with 0.4 s in every tenth it would be 160.

    With a loader like the one that trains, each is given its own batches, which the script asks for.
    """
    burst = burst_of(how)
    assert burst.outcome is Outcome.OK, burst.reason
    assert burst.rate is not None
    assert 200 < burst.rate < 800


@pytest.mark.slow
@pytest.mark.usefixtures("_elsewhere")
def test_a_teacher_that_each_step_calls_is_a_part_of_it() -> None:
    """Each takes 10 ms, so that 400 samples a second are the most."""
    burst = burst_of("teacher")
    assert burst.rate is not None, burst.reason
    assert burst.rate < 400
