"""One training process plays several configs: what differs is switched, and nothing of another is left behind."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from autotune.errors import ConfigError
from autotune.knobs import TrainConfig
from autotune.torch_settings.layout import layout_of
from autotune.torch_settings.process_settings import switch_optimizer
from autotune.torch_settings.wrapping import autocast_forward
from autotune.training.switching import InForce
from autotune.training.tuned import Tuned
from tests.settings import settings_of

CPU = torch.device("cpu")
PLAIN = TrainConfig(batch_size=8)
EXACT: dict[str, dict[str, Any]] = {
    "channels_last": {"memory_format": "channels_last"},
    "fused": {"optimizer_impl": "fused"},
    "foreach": {"optimizer_impl": "foreach"},
    "threads": {"num_threads": 1},
    "checkpointing": {"checkpointing": "blocks"},
    "attention": {"sdpa_backend": "math"},
    "fused channels_last": {"optimizer_impl": "fused", "memory_format": "channels_last"},
    "all": {
        "optimizer_impl": "fused", "memory_format": "channels_last", "checkpointing": "blocks", "num_threads": 1,
    },
}  # fmt: skip
"""Settings that train the same weights as the plain ones, but for the order in which sums are taken."""
SETTINGS: dict[str, dict[str, Any]] = {
    **EXACT,
    "bf16": {"precision": "bf16"},
    "bf16 channels_last": {"precision": "bf16", "memory_format": "channels_last", "checkpointing": "blocks"},
    "tf32": {"precision": "tf32"},
}
each_setting = pytest.mark.parametrize("setting", SETTINGS)
OPTIMIZERS = {
    "AdamW": functools.partial(torch.optim.AdamW, lr=0.01),
    "the user's own fused": functools.partial(torch.optim.AdamW, lr=0.01, fused=True),
    "momentum": functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9),
}
each_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS)
Plan = tuple[tuple[TrainConfig, int], ...]


class Block(nn.Module):
    """A convolution around a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.GELU())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """``(batch, 8, height, width)`` to the same."""
        return images + self.body(images)


def make(optimizer: str = "AdamW", blocks: int = 3) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A small network for images, with blocks that repeat, from the same weights each time."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), *(Block() for _ in range(blocks)), nn.Flatten(), nn.Linear(8 * 36, 2))
    return model, OPTIMIZERS[optimizer](model.parameters())


def play(model: nn.Module, optimizer: torch.optim.Optimizer, config: TrainConfig, batches: Iterator[Any]) -> float:
    """One step of a config; its loss."""
    tuned = Tuned(config)
    with tuned.autocast():
        loss = model(tuned.to_device(next(batches))).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()  # type: ignore[no-any-return]


def images(size: int = 8) -> Iterator[torch.Tensor]:
    """The same each time."""
    generator = torch.Generator().manual_seed(1)
    while True:
        yield torch.randn(size, 3, 8, 8, generator=generator)


@functools.cache
def outcome(plan: Plan, optimizer: str = "AdamW") -> tuple[list[float], torch.Tensor]:
    """Losses, and the weights in the end, of a training that plays some configs in turn."""
    model, stepper = make(optimizer)
    in_force, batches, losses = InForce(model, stepper, CPU), images(), []
    for config, steps in plan:
        in_force.switch(config)
        losses += [play(model, stepper, config, batches) for _ in range(steps)]
    return losses, torch.cat([weight.detach().flatten() for weight in model.parameters()])


@pytest.fixture(autouse=True)
def _process() -> Iterator[None]:
    """Leaves the process as it was."""
    yield
    InForce(None, None, CPU).switch(TrainConfig())


@each_setting
@each_optimizer
def test_what_is_switched_to_and_back_changes_nothing(setting: str, optimizer: str) -> None:
    """To the bit, from the plain config to another and from that to the plain one."""
    other = PLAIN.replace(**SETTINGS[setting])
    for first, second in ((PLAIN, other), (other, PLAIN)):
        losses, weights = outcome(((first, 3), (second, 0), (first, 3)), optimizer)
        expected_losses, expected = outcome(((first, 6),), optimizer)
        assert losses == expected_losses
        assert torch.equal(weights, expected)


@pytest.mark.parametrize("setting", EXACT)
@each_optimizer
def test_training_goes_on_whichever_config_plays(setting: str, optimizer: str) -> None:
    """Gradients and moments are laid out with the weights: what differs is rounding."""
    other = PLAIN.replace(**EXACT[setting])
    losses, weights = outcome(((PLAIN, 2), (other, 2), (PLAIN, 2), (other, 2)), optimizer)
    expected_losses, expected = outcome(((PLAIN, 8),), optimizer)
    assert losses == pytest.approx(expected_losses, abs=1e-5)
    torch.testing.assert_close(weights, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "changes", [*SETTINGS.values(), {"compile_mode": "reduce-overhead", "accumulation_steps": 2}], ids=str
)
def test_nothing_is_left_behind(changes: dict[str, Any]) -> None:
    """Process, model and optimizer are set as they were; meanwhile they are not."""
    model, optimizer = make()
    in_force, batches = InForce(model, optimizer, CPU), images()
    in_force.switch(PLAIN)
    play(model, optimizer, PLAIN, batches)
    before = settings_of(model, optimizer)
    in_force.switch(PLAIN.replace(**changes))
    meanwhile = settings_of(model, optimizer)
    if "compile_mode" not in changes:
        play(model, optimizer, PLAIN.replace(**changes), batches)
    in_force.switch(PLAIN)
    assert settings_of(model, optimizer) == before
    assert (meanwhile != before) == (changes != {"precision": "bf16"})  # which autocast does, around each step


@pytest.mark.parametrize("changes", [*SETTINGS.values(), {"compile_mode": "default"}], ids=str)
def test_a_model_is_prepared_by_another_config(changes: dict[str, Any]) -> None:
    """Nothing of the former one is left, nor is it set twice; parts that the model got since are prepared too."""
    model, optimizer = make()
    Tuned(PLAIN).prepare(model, optimizer)
    before = settings_of(model, optimizer)
    other = PLAIN.replace(**changes)
    Tuned(other).prepare(model, optimizer)
    meanwhile = settings_of(model, optimizer)
    model[0] = nn.Conv2d(3, 8, 3)  # type: ignore[index, operator]
    Tuned(other).prepare(model, optimizer)
    assert settings_of(model, optimizer)["weights"] == meanwhile["weights"]
    Tuned(PLAIN).prepare(model, optimizer)
    assert settings_of(model, optimizer) == before


def test_a_form_that_the_user_has_chosen_comes_back() -> None:
    """An optimizer that was made fused steps so under the default, before and after another form."""
    model, _ = make()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    in_force = InForce(model, optimizer, CPU)
    found = []
    for form in ("default", "foreach", "default"):
        in_force.switch(PLAIN.replace(optimizer_impl=form))
        found.append((optimizer.param_groups[0]["fused"], optimizer.param_groups[0]["foreach"]))
    assert found[0] == found[2] == (True, None)
    assert found[1] == (False, True)


@pytest.mark.parametrize(
    ("trained", "momentum", "steps", "frozen", "is_fused"),
    [
        ((), 0.9, False, False, True),
        ((), 0.9, False, True, False),
        ((0, 1), 0.9, False, False, True),
        ((0,), 0.9, False, False, False),
        ((0,), 0.9, True, False, False),
        ((0,), 0.0, True, False, True),
    ],
    ids=["before any gradient", "frozen at first", "all", "some", "some have stepped", "no momentum"],
)
def test_fused_is_refused_where_momentum_would_begin_later(
    trained: tuple[int, ...], momentum: float, steps: bool, frozen: bool, is_fused: bool
) -> None:
    """Torch's fused SGD fails there. Before the first gradient, nothing is known; after a step, momentum shows it."""
    weights = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = torch.optim.SGD(weights, 0.1, momentum=momentum)
    for place in trained:
        weights[place].grad = torch.ones(2)
    weights[1].requires_grad_(not frozen)
    if steps:
        optimizer.step()
        optimizer.zero_grad()
    if is_fused:
        switch_optimizer(optimizer, "fused")
    else:
        with pytest.raises(ValueError, match="fused SGD with momentum fails if weights without gradients train later"):
            switch_optimizer(optimizer, "fused")
    assert bool(optimizer.param_groups[0]["fused"]) is is_fused


@pytest.mark.parametrize("form", ["fused", "foreach"])
def test_pickles_and_copies_of_an_optimizer_have_its_own_form(form: str) -> None:
    """As its checkpoints; a copy steps weights that are added later, too."""
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer = torch.optim.AdamW([weight], 0.1, amsgrad=True)
    optimizer.step()
    plain = pickle.loads(pickle.dumps(optimizer))  # noqa: S301 - made here
    undo = switch_optimizer(optimizer, form)
    assert optimizer.param_groups[0][form]
    for other in (pickle.loads(pickle.dumps(optimizer)), copy.deepcopy(optimizer)):  # noqa: S301 - made here
        assert (other.defaults, vars(other).keys()) == (plain.defaults, vars(plain).keys())
        assert repr(other.state_dict()) == repr(plain.state_dict())
        other.add_param_group({"params": [added := nn.Parameter(torch.ones(2))]})
        added.grad = torch.ones(2)
        other.step()
        assert not torch.equal(added, torch.ones(2))
    undo()
    assert "__getstate__" not in vars(optimizer)


def test_gradients_of_another_config_are_dropped() -> None:
    """Half a step's, or a multiple of them; those from before the first config are the user's own."""
    model, optimizer = make()
    in_force = InForce(model, optimizer, CPU)
    for expected in (True, False):
        model(next(images())).sum().backward()
        in_force.switch(PLAIN)
        assert all((weight.grad is not None) == expected for weight in model.parameters())


def test_what_the_user_has_changed_since_is_not_taken_back() -> None:
    """It is the user's choice from then on."""
    own = torch.get_num_threads()
    in_force = InForce(None, None, CPU)
    in_force.switch(PLAIN.replace(num_threads=own + 1))
    torch.set_num_threads(own + 2)
    in_force.switch(PLAIN)
    now = torch.get_num_threads()
    torch.set_num_threads(own)
    assert now == own + 2


def test_what_only_a_new_process_has_is_refused() -> None:
    """The knob is named, and the other ones stay as they are."""
    model, optimizer = make()
    in_force = InForce(model, optimizer, CPU)
    in_force.switch(PLAIN)
    before = settings_of(model, optimizer)
    with pytest.raises(ConfigError, match="cannot switch allocator"):
        in_force.switch(PLAIN.replace(allocator="tuned", num_threads=1))
    assert settings_of(model, optimizer) == before
    assert in_force.config == PLAIN


class Wrapper(torch.optim.SGD):
    """Shows copies of its groups, as optimizers do that are made around another one."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """A copy of each."""
        return [dict(group) for group in self.__dict__["inner"]]

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.__dict__.setdefault("inner", groups)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """To the list that is not shown."""
        self.__dict__["inner"].append({**self.defaults, **param_group})


def test_a_value_that_does_not_come_into_effect_is_told() -> None:
    """What was asked for, what is there, and what to do; another config can be switched to then."""
    model, _ = make()
    in_force = InForce(model, Wrapper(model.parameters(), lr=0.1), CPU)
    in_force.switch(PLAIN)
    told = "optimizer_impl=fused did not come into effect: it is default; if your code sets it, remove that line, or "
    with pytest.raises(ConfigError, match=f"{told}tune again with --pin optimizer_impl=VALUE"):
        in_force.switch(PLAIN.replace(optimizer_impl="fused"))
    in_force.switch(PLAIN.replace(memory_format="channels_last"))
    assert layout_of(model) == "channels_last"


def test_a_value_that_cannot_be_undone_is_told() -> None:
    """The value is autotune's own, so no line of the user's sets it."""
    model, _ = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    in_force = InForce(model, optimizer, CPU)
    in_force.switch(PLAIN.replace(optimizer_impl="fused"))
    vars(optimizer)["inner"] = vars(optimizer).pop("param_groups")
    optimizer.__class__ = Wrapper
    told = (
        "optimizer_impl=fused could not be undone: it is fused, not default; start a new process, or tune again with "
    )
    with pytest.raises(ConfigError, match=f"{told}--pin optimizer_impl=default"):
        in_force.switch(PLAIN)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """For each graph that is compiled, whether a size in it may vary; graphs run as they are."""
    found: list[bool] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        found.append(any(isinstance(one, torch.SymInt) for one in inputs))
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda call, **_: functools.partial(torch._dynamo.optimize(backend)(call)))
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


@pytest.mark.parametrize("mode", ["default", "blocks"])
@pytest.mark.parametrize(
    ("beside", "breaks"),
    [({}, False), ({}, True), ({"checkpointing": "blocks"}, False), ({"memory_format": "channels_last"}, False)],
    ids=str,
)
def test_compiled_code_is_kept(mode: Any, beside: dict[str, Any], graphs: list[bool], breaks: bool) -> None:
    """Where a config comes back, nothing is compiled again; another size has code of its own, for that size.

    Also the functions behind a break in a graph, which torch compiles by themselves.
    """
    model, optimizer = make(blocks=2)
    if breaks:
        for block in model[1:3]:  # type: ignore[index]
            block.body[1].register_forward_pre_hook(lambda *_: torch._dynamo.graph_break())
    in_force = InForce(model, optimizer, CPU)
    counts = []
    for size in (8, 4, 8, 4):
        config = TrainConfig(batch_size=size, compile_mode=mode, **beside)
        for one in (config, PLAIN):
            in_force.switch(one)
            play(model, optimizer, one, images(size))
        counts.append(len(graphs))
    assert 0 < counts[0] < counts[1] == counts[2] == counts[3]
    assert not any(graphs)


def test_a_compiled_loss_is_kept() -> None:
    """For each config whose code differs."""

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch).mean()  # type: ignore[no-any-return]

    config = PLAIN.replace(compile_mode="loss")
    made = [Tuned(one).compiled_loss(loss) for one in (config, config.replace(num_workers=1), PLAIN)]
    assert made[0] is made[1]
    assert made[2] is loss
    assert Tuned(config.replace(batch_size=4)).compiled_loss(loss) is not made[0]


def test_a_copy_of_a_model_keeps_nothing_of_the_original(graphs: list[bool]) -> None:
    """What is kept for the original calls the original: an average of the weights has code of its own."""
    model, optimizer = make(blocks=2)
    in_force, config = InForce(model, optimizer, CPU), PLAIN.replace(checkpointing="blocks", compile_mode="default")
    in_force.switch(config)
    average = copy.deepcopy(model)
    in_force.switch(PLAIN)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    InForce(average, None, CPU).switch(config)
    assert average(next(images())).abs().sum() > 0
    assert graphs


class Passing(nn.Module):
    """A wrapper that sets its attributes on the model inside as well."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def __setattr__(self, name: str, value: Any) -> None:
        """As Lightning Fabric's does."""
        super().__setattr__(name, value)
        if name != "inside":
            setattr(self.inside, name, value)

    def forward(self, *args: Any) -> Any:
        """As the model inside."""
        return self.inside(*args)


def by_fabric(inside: nn.Module) -> nn.Module:
    """A model as Lightning Fabric hands it to the script."""
    fabric = pytest.importorskip("lightning.fabric").Fabric(accelerator="cpu", devices=1)
    return fabric.setup_module(inside)  # type: ignore[no-any-return]


@pytest.mark.parametrize("wrap", [Passing, by_fabric])
@pytest.mark.parametrize(
    "changes",
    [
        {"memory_format": "channels_last"}, {"precision": "bf16"}, {"checkpointing": "blocks"},
        {"compile_mode": "default"}, {"compile_mode": "blocks"},
    ],
    ids=str,
)  # fmt: skip
def test_a_wrapper_that_passes_attributes_on_trains_as_the_model_itself(
    changes: dict[str, Any], wrap: Any, graphs: list[bool]
) -> None:
    """And leaves nothing on the model inside, nor in its files."""
    config, trained = PLAIN.replace(**changes), []
    for around in (wrap, lambda inside: inside):
        inside, optimizer = make(blocks=2)
        model, batches = around(inside), images()
        before, files = settings_of(model, optimizer), (len(pickle.dumps(inside)), [*model.state_dict()])
        in_force = InForce(model, optimizer, CPU)
        in_force.switch(config)
        undo = autocast_forward(model, config)
        assert (len(pickle.dumps(inside)), [*model.state_dict()]) == files
        trained.append([play(model, optimizer, config, batches) for _ in range(2)])
        undo()
        in_force.switch(PLAIN)
        for part in ("forwards", "calls"):
            assert settings_of(model, optimizer)[part] == before[part]
        trained[-1].append(play(model, optimizer, PLAIN, batches))
    assert trained[0] == trained[1]
    assert bool(graphs) == ("compile_mode" in changes)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["default", "blocks"])
def test_compiled_training_is_switched_like_any_other(mode: Any) -> None:
    """By Inductor itself."""
    config = PLAIN.replace(compile_mode=mode)
    losses, weights = outcome(((config, 3), (PLAIN, 0), (config, 3)))
    expected_losses, expected = outcome(((config, 6),))
    assert losses == pytest.approx(expected_losses, abs=1e-6)
    torch.testing.assert_close(weights, expected, atol=1e-6, rtol=0)
