"""Whether a change came into effect: the loader that runs, weights, the optimizer, and the loss's graph are asked."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autotune.knobs.changes import changes_of
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Outcome
from autotune.recorder import script_gate
from autotune.recorder.changes import Changes
from autotune.recorder.effects import Effects, of_loader
from autotune.recorder.script_gate import ScriptGate
from autotune.recorder.stream import Stream
from autotune.scripts import ScriptIsolation
from autotune.scripts.facts import baseline_of
from autotune.torch_settings.layout import layout_of
from autotune.torch_settings.naming import model_key, models_of
from tests.example_scripts import START_SECONDS, alone, script
from tests.scripts.test_script_clock import LOOP, Unwatched, Wire
from tests.settings import settings_of

DATA = TensorDataset(torch.zeros(32, 3, 8, 8), torch.zeros(32))


class Net(nn.Module):
    """A convolution that can be called past the module that is outermost."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """One figure an image."""
        out: torch.Tensor = self.body(images)
        return out


class OwnStep(torch.optim.SGD):
    """An optimizer of a script's own, which steps by itself."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Moves each weight a little."""
        with torch.no_grad():
            for group in self.param_groups:
                for weight in group["params"]:
                    weight.sub_(group["lr"] * weight.grad)


def effects_of(**changes: Any) -> tuple[Effects, Changes]:
    """Those of some knobs, beside the defaults; nothing is applied."""
    baseline = TrainConfig()
    told = Changes(changes_of(baseline.replace(**changes), baseline))
    return Effects(told, "cpu"), told


def missing_after(model: Net, call: nn.Module, optimizer: torch.optim.Optimizer | None = None, **changes: Any) -> Any:
    """What is missing after one step, whose loss comes of calling a module."""
    effects, told = effects_of(**changes)
    told.on_models([model])
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    loss = call(torch.randn(2, 3, 8, 8)).mean()
    effects.before_backward(loss)
    loss.backward()
    told.on_optimizer(optimizer)
    effects.before_step()
    optimizer.step()
    return effects.missing(None, reads_only=False)


@pytest.mark.parametrize(("before", "since", "after"), [(None, None, None), ("yes", None, "yes"), (None, "own", "own")])
def test_a_process_that_is_left_has_its_variables_again(
    before: str | None, since: str | None, after: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the script itself has set since then stays."""
    monkeypatch.setenv("ODD", before or "")  # it is as it was after the test, whatever that leaves
    if before is None:
        del os.environ["ODD"]
    told = Changes({"variables": {"ODD": "autotune"}}).exchange()
    assert os.environ["ODD"] == "autotune"
    os.environ["ODD"] = since or "autotune"
    told.leave_process()
    assert os.environ.get("ODD") == after


def test_what_was_changed_is_taken_back_and_changed_again() -> None:
    """A script that lives on plays other changes between: all is as it was, until they come back."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    _, told = effects_of(
        precision="bf16", memory_format="channels_last", optimizer_impl="fused", num_threads=1, pin_memory=True,
        non_blocking=True, sdpa_backend="math",
    )  # fmt: skip
    found = []
    for _ in range(2):
        found.append(settings_of(model, optimizer))
        told.on_process(torch.device("cpu"))
        told.on_process(torch.device("cpu"))  # as after each step, where a script may have said otherwise
        told.on_copies()
        told.on_models([model])
        told.on_optimizer(optimizer)
        assert model(torch.randn(2, 3, 8, 8)).dtype == torch.float32
        found.append(settings_of(model, optimizer))
        told.undo()
    found.append(settings_of(model, optimizer))
    assert found[0] == found[2] == found[4]
    assert all(found[1][name] != found[0][name] for name in ("threads", "attention", "copies", "forwards"))
    again = {name: value for name, value in found[3].items() if name not in {"forwards", "copies"}}
    assert again == {name: found[1][name] for name in again}


@pytest.mark.parametrize(
    "changes", [{"precision": "bf16"}, {"memory_format": "channels_last"}, {"optimizer_impl": "fused"}]
)
def test_what_came_into_effect_is_not_missing(changes: dict[str, Any]) -> None:
    """Where the script calls the model as a module, and steps by torch's own functions."""
    model = Net()
    assert missing_after(model, model, **changes) == {}


def test_half_precision_that_nothing_was_computed_in_is_missing() -> None:
    """The script calls a part of the model, past the forward that casts."""
    model = Net()
    found = missing_after(model, model.body, precision="bf16")
    assert found == {"precision": "nothing that the loss depends on was computed in bf16, only in float32"}


def test_a_model_that_is_not_called_is_not_compiled() -> None:
    """Nor does dynamo see anything of it."""
    model = Net()
    found = missing_after(model, model.body, compile_mode="default")
    assert "torch.compile compiled nothing of the model" in found["compile_mode"]


def test_a_convolution_that_is_replaced_is_missing() -> None:
    """It computes as the script says."""
    model, effects = Net(), effects_of(memory_format="channels_last")
    effects[1].on_models([model])
    model.body[0] = nn.Conv2d(3, 4, 3)
    assert effects[0].missing(None, reads_only=False) == {"memory_format": "the script itself sets it to contiguous"}


def test_an_optimizer_that_steps_by_itself_has_no_fused_form() -> None:
    """Though it says so."""
    model = Net()
    found = missing_after(model, model, OwnStep(model.parameters(), lr=0.1), optimizer_impl="fused")
    assert found == {"optimizer_impl": "the optimizer's step is not one of torch's own"}


def test_an_optimizer_without_the_form_steps_as_it_is() -> None:
    """The reason is told, and nothing is raised in the script."""
    model = Net()
    found = missing_after(model, model, torch.optim.Rprop(model.parameters()), optimizer_impl="fused")
    assert found == {"optimizer_impl": "Rprop has no such form"}


def test_a_model_that_was_not_found_is_told() -> None:
    """For each knob that would have changed it."""
    effects, _ = effects_of(precision="bf16", memory_format="channels_last")
    assert effects.missing(None, reads_only=False).keys() == {"precision", "memory_format"}


def test_a_loader_that_has_what_it_was_given_is_in_effect() -> None:
    """Its own iterator is asked; one that has something else is told."""
    _, told = effects_of(num_workers=1, prefetch_factor=4, persistent_workers=True)
    stream = Stream(DataLoader(DATA, batch_size=8), told, 0)
    next(stream)
    assert of_loader(told.loader, stream, pinned=None, device="cpu") == {}
    found = of_loader({"num_workers": 2, "prefetch_factor": 4}, stream, pinned=None, device="cpu")
    assert found == {"num_workers": "the loader that was iterated has num_workers=1, not 2"}


def test_batches_that_cannot_be_pinned_are_told() -> None:
    """On a GPU, a class of the script's own without ``pin_memory()``."""
    _, told = effects_of(pin_memory=True)
    stream = Stream(DataLoader(DATA, batch_size=8, pin_memory=True), Changes({}), 0)
    next(stream)
    stream.running._pin_memory = True  # type: ignore[union-attr]  # what a machine with a GPU says
    found = of_loader(told.loader, stream, pinned=False, device="cuda")
    assert found == {"pin_memory": "no tensor of its batches is page-locked: their class has no pin_memory()"}


def gate_of(model: nn.Module, **changed: Any) -> ScriptGate:
    """The gate of a script that trains a model, where the first player has begun."""
    baseline = TrainConfig()
    request = {
        "job": "host",
        "changes": changes_of(baseline.replace(**changed), baseline),
        "plan": {"part": "all", "frees": False},
        "seed": 0,
        "trace": None,
        "asked_at": 0.0,
    }
    loop = {**LOOP, "device": "cpu", "loaders": [], "models": [model_key(model)]}
    watch = cast("Any", Unwatched())
    gate = ScriptGate(cast("Any", Wire(1)), request, loop, [model], [], torch.device("cpu"), watch, ["trains"])
    gate.begin()
    return gate


def test_losses_are_scaled_back_where_a_scaler_has_scaled_them() -> None:
    """As of two networks in turn, one of which trains in half precision."""
    gate, losses = gate_of(Net()), []
    for scale in (8.0, None, 4.0, None):
        if scale is not None:
            gate.scale = torch.tensor(scale)
        gate.before_backward(torch.tensor(3.0 * (scale or 1.0), requires_grad=True))
        losses.append(float(cast("torch.Tensor", gate.playing.last_loss)))
    assert losses == [3.0] * 4


def test_models_are_searched_only_where_they_are_to_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where an optimizer steps none that is known; a player that comes later finds those of earlier optimizers."""
    searched: list[Any] = []
    monkeypatch.setattr(
        script_gate, "models_of", lambda optimizer, keys: searched.append(optimizer) or models_of(optimizer, keys)
    )
    first, second = Net(), Net()
    plain, changing = gate_of(first), gate_of(first, memory_format="channels_last")
    joint = torch.optim.SGD([*first.parameters(), nn.Parameter(torch.ones(1))], 0.1)
    own = torch.optim.SGD(second.parameters(), 0.1)
    for gate in (plain, changing):
        gate.before_step(joint)
    plain.before_step(own)
    assert searched == []
    plain._enter(changing.playing, plain.playing)
    assert searched == [own]
    assert layout_of(second) == "channels_last"


def test_each_model_that_a_script_trains_in_a_burst_is_changed() -> None:
    """As in cross validation; a weight of a loss, which has an optimizer of its own, changes nothing; none is kept."""
    models = [Net(), Net()]
    gate = gate_of(models[0], memory_format="channels_last")
    for weights in (models[0].parameters(), [nn.Parameter(torch.ones(1))], models[1].parameters()):
        gate.before_step(torch.optim.SGD(weights, 0.1))
    assert [layout_of(model) for model in models] == ["channels_last", "channels_last"]
    last = weakref.ref(models.pop())
    gc.collect()
    assert last() is None


@pytest.mark.slow
def test_a_burst_whose_change_the_script_takes_back_is_unsupported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The knob is named, so that the search tries it no more."""
    monkeypatch.chdir(tmp_path)
    with ScriptIsolation(script("insisting")) as isolation:
        isolation.start(START_SECONDS)
        burst = alone(isolation, num_threads=1, allocator="tuned")
    assert burst.outcome is Outcome.UNSUPPORTED
    assert burst.without_effect == ("num_threads",)
    assert burst.reason == "num_threads did not come into effect: the script itself sets it to 2"


@pytest.mark.slow
def test_an_optimizer_that_does_not_step_at_first_is_changed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where gradients overflow until a GradScaler has found its scale; a look has seen the optimizer step."""
    monkeypatch.chdir(tmp_path)
    with ScriptIsolation(script("scaled", "1024")) as isolation:
        isolation.start(START_SECONDS)
        burst = alone(isolation, optimizer_impl="fused")
    assert burst.outcome is Outcome.OK, burst.reason


@pytest.mark.slow
def test_a_compiled_model_is_seen_to_be_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames that dynamo took, in half precision besides."""
    monkeypatch.chdir(tmp_path)
    with ScriptIsolation(script("plain")) as isolation:
        isolation.start(START_SECONDS)
        burst = alone(isolation, 240.0, compile_mode="default", precision="bf16")
    assert burst.outcome is Outcome.OK, burst.reason


@pytest.mark.slow
def test_workers_of_a_script_are_started_in_another_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own way is read from its loader; a burst trains with workers that are started afresh."""
    monkeypatch.chdir(tmp_path)
    with ScriptIsolation(script("spawnable")) as isolation:
        isolation.start(START_SECONDS)
        assert baseline_of(isolation.seen).multiprocessing_context is None
        burst = alone(isolation, 120.0, multiprocessing_context="spawn")
    assert (burst.outcome, burst.reason, burst.without_effect) == (Outcome.OK, None, ())
