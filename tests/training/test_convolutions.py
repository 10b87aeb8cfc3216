"""Convolutions that compute channels-last while a model trains; its weights stay as they are."""

from __future__ import annotations

import copy
import dataclasses
import functools
import io
import pickle
import threading
import types
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from autotune import TrainConfig
from autotune.torch_settings.compiled import compile_calls, keep_gradients
from autotune.torch_settings.layout import convolve_channels_last, layout_of
from autotune.torch_settings.wrapping import autocast_forward, checkpoint_blocks

LAST = TrainConfig(memory_format="channels_last")


class Net(nn.Module):
    """Two convolutions; returns images and a scalar."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(channels, 8, 3), nn.ConvTranspose2d(8, 8, 3)
        self.seen: list[bool] = []

    def forward(self, images: torch.Tensor, *, recomputes: bool = False) -> Any:
        """Images, and more in a tuple in a dict."""
        hidden = self.first(images).relu()
        self.seen.append(hidden.is_contiguous(memory_format=torch.channels_last))
        out = checkpoint(self.second, hidden, use_reentrant=False) if recomputes else self.second(hidden)
        return {"images": out, "more": (out.mean(), [out.transpose(1, 2)])}


def step(net: Net, images: torch.Tensor, **arguments: Any) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The images that a net returns, and its gradients."""
    net.zero_grad()
    out = net(images, **arguments)
    out["images"].square().mean().backward()
    return out["images"], [weight.grad.clone() for weight in net.parameters() if weight.grad is not None]


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
def test_only_what_convolutions_compute_changes_its_layout(channels: int, recomputes: bool) -> None:
    """Weights, gradients and what the model returns keep theirs, and the values are the same but for rounding."""
    net, images = Net(channels), torch.randn(2, channels, 9, 9)
    plain, gradients = step(net, images, recomputes=recomputes)
    undo = convolve_channels_last(net, LAST)
    out, others = step(net, images, recomputes=recomputes)
    assert net.seen == [False, True]
    assert all(tensor.is_contiguous() for tensor in (out, *net.parameters(), *others))
    assert net(images)["more"][1][0].is_contiguous()
    torch.testing.assert_close(out, plain)
    torch.testing.assert_close(others, gradients)
    undo()
    net.seen.clear()
    assert torch.equal(step(net, images, recomputes=recomputes)[0], plain)
    assert net.seen == [False]


class Dropping(nn.Module):
    """A convolution and dropout, which the backward pass repeats."""

    def __init__(self, recomputes: Any) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Dropout(0.5), nn.Conv2d(8, 8, 3))
        self.recomputes = recomputes

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Features."""
        return self.recomputes(self.parts, images)


def in_parts(parts: nn.Sequential, images: torch.Tensor) -> torch.Tensor:
    """Calls each part by itself."""
    return parts[2](parts[1](parts[0](images)))


def dropping(model: Dropping, call: Any) -> list[torch.Tensor]:
    """The gradients of a model after a call, always with the same dropout."""
    images = torch.linspace(-1, 1, 4 * 3 * 81).view(4, 3, 9, 9).requires_grad_()
    model.zero_grad()
    torch.manual_seed(1)
    call(model, images).square().sum().backward()
    return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]


@pytest.mark.parametrize(
    "recomputes",
    [
        lambda parts, images: checkpoint(in_parts, parts, images, use_reentrant=False),
        lambda parts, images: checkpoint(in_parts, parts, images, use_reentrant=True),
        lambda parts, images: checkpoint(parts, images, use_reentrant=False),
        lambda parts, images: checkpoint_sequential(parts, 2, images, use_reentrant=False),
    ],
    ids=["parts", "parts, reentrant", "a module", "a sequence"],
)
def test_what_is_computed_again_drops_the_same(recomputes: Any) -> None:
    """Dropout draws in the order in which memory lies, so the repeated call must compute in the same layout."""
    model = Dropping(in_parts)
    convolve_channels_last(model, LAST)
    expected = dropping(model, Dropping.__call__)
    model.recomputes = recomputes
    torch.testing.assert_close(dropping(model, Dropping.__call__), expected)


def test_a_model_whose_forward_pass_records_no_gradients_is_computed_again_in_its_own_layout() -> None:
    """As reentrant checkpointing in the loop has it."""

    def reentrant(model: Dropping, images: torch.Tensor) -> Any:
        return checkpoint(model, images, use_reentrant=True)

    model = Dropping(in_parts)
    expected = dropping(model, reentrant)
    convolve_channels_last(model, LAST)
    torch.testing.assert_close(dropping(model, reentrant), expected)


def test_weights_that_the_script_has_laid_out_get_gradients_that_lie_alike() -> None:
    """A fused optimizer of the script pairs them by address."""
    model = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    net = nn.Sequential(model)
    convolve_channels_last(net, LAST)
    (gradient,) = torch.autograd.grad(net(torch.randn(2, 3, 9, 9)).sum(), [model.weight])
    assert gradient.stride() == model.weight.stride()


def test_gradients_of_each_sample_are_computed_in_the_models_own_layout() -> None:
    """Vmap refuses another layout."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3))
    convolve_channels_last(net, LAST)
    weights = {name: weight.detach() for name, weight in net.named_parameters()}

    def loss(weights: Any, image: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(net, weights, (image[None],)).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, torch.randn(2, 3, 9, 9))
    assert each["0.weight"].shape == (2, 8, 3, 3, 3)


def test_a_model_can_be_saved_with_its_functions() -> None:
    """As MLflow and Ray save it."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3))
    convolve_channels_last(net, LAST)
    images = torch.randn(2, 3, 9, 9)
    torch.testing.assert_close(pickle.loads(cloudpickle.dumps(net))(images), net(images))  # noqa: S301 - ours


def test_gradients_that_the_script_asks_for_are_contiguous() -> None:
    """Of weights, which it may assign and step with a fused optimizer; and of images, as for a penalty."""
    net, images = Net(3), torch.randn(2, 3, 9, 9, requires_grad=True)
    loss = net(images)["images"].square().mean()
    plain = torch.autograd.grad(loss, [images, *net.parameters()])
    undo = convolve_channels_last(net, LAST)
    loss = net(images)["images"].square().mean()
    gradients = torch.autograd.grad(loss, [images, *net.parameters()], create_graph=True)
    assert all(gradient.is_contiguous() for gradient in gradients)
    torch.testing.assert_close(gradients, plain)
    sum(gradient.view(-1).square().sum() for gradient in gradients).backward()
    undo()
    assert not any(weight._backward_hooks for weight in net.parameters())


@pytest.mark.parametrize("wrap", [convolve_channels_last, autocast_forward])
def test_a_copy_made_meanwhile_computes_as_before_once_it_is_undone(wrap: Any) -> None:
    """As a momentum encoder, which trains on; it can be changed again by itself."""
    net, images, config = Net(3), torch.randn(2, 3, 9, 9), LAST.replace(precision="bf16")
    expected = net(images)["images"]
    undo = wrap(net, config)
    other = copy.deepcopy(net)
    changed = other(images)["images"]
    undo()
    assert torch.equal(other(images)["images"], expected)
    wrap(other, config)
    assert torch.equal(other(images)["images"], changed)
    assert other.seen == [False, wrap is convolve_channels_last] * 2


def test_evaluation_keeps_its_layout() -> None:
    """The script may do there what it does nowhere else."""
    net, images = Net(3), torch.randn(2, 3, 9, 9)
    convolve_channels_last(net, LAST)
    average = copy.deepcopy(net).eval()
    average(images)
    assert average.seen == [False]
    with torch.no_grad():
        net(images)
    assert net.seen == [False]
    assert net.first(images).is_contiguous()


@dataclasses.dataclass(frozen=True)
class Output:
    """What a model returns, in a class of its own."""

    images: torch.Tensor


class Classed(nn.Conv2d):
    """Returns a dataclass."""

    def forward(self, images: torch.Tensor) -> Any:
        """The images."""
        return Output(super().forward(images))


@pytest.mark.parametrize("wrap", [convolve_channels_last, autocast_forward])
def test_dataclasses_that_a_model_returns_are_changed_too(wrap: Any) -> None:
    """The script may view their tensors, and computes its loss in full precision."""
    model = Classed(3, 4, 3)
    wrap(model, LAST.replace(precision="bf16"))
    out = model(torch.randn(2, 3, 9, 9)).images
    assert (out.is_contiguous(), out.dtype) == (True, torch.float32)


class Seeing(nn.ReLU):
    """Notes in which layout it receives images."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bool] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Positive values."""
        if not torch.compiler.is_compiling():
            self.seen.append(images.is_contiguous())
        return super().forward(images)


class Parts(nn.Module):
    """Has parts that a script, or a LightningModule's step, calls without the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3), Seeing(), nn.Sequential(nn.Conv2d(4, 4, 3)))
        self.scores = nn.LazyLinear(2)
        self.seen: list[bool] = self.features[1].seen  # type: ignore[assignment]

    def forward(self, images: torch.Tensor) -> Any:
        """Scores."""
        return self.scores(self.features(images).flatten(1))


def test_a_part_that_is_called_by_itself_computes_so_and_returns_what_can_be_viewed() -> None:
    """As the model does, which may have none of its convolutions called by its own forward."""
    model, images = Parts(), torch.randn(2, 3, 9, 9)
    undo = convolve_channels_last(model, LAST)
    model.features(images).view(2, -1).sum().backward()
    model(images)
    assert model.seen == [False, False]
    undo()
    model.features(images)
    assert model.seen == [False, False, True]
    assert not any("forward" in vars(part) for part in model.modules())


@pytest.mark.parametrize(
    "register", ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"]
)
def test_hooks_of_the_script_see_its_own_layout(register: str) -> None:
    """Also those that come later, in a copy too; those of the whole model see it anyway."""
    model, images, seen = Parts(), torch.randn(2, 3, 9, 9), []
    model(images)
    model.seen.clear()
    convolve_channels_last(model, LAST)
    for called in model, copy.deepcopy(model):
        getattr(called, register)(lambda *_: None)
        called.scores.weight.register_hook(lambda *_: None)
        called(images)
        assert called.seen.pop() is False
        hook = getattr(called.features[1], register)(lambda *them: seen.append(them[-1]))
        called(images).sum().backward()
        assert called.seen.pop() is True
        for tensor in [one for one in seen for one in (one if isinstance(one, tuple) else (one,))]:
            tensor.view(2, -1)
        hook.remove()
        called(images)
        assert called.seen.pop() is False
    assert len(seen) == 2


def test_hooks_of_torchs_own_take_any_layout() -> None:
    """As of a normalized weight."""
    model, images = Parts(), torch.randn(2, 3, 9, 9)
    nn.utils.spectral_norm(model.features[0])
    convolve_channels_last(model, LAST)
    model(images)
    assert model.seen == [False]


def test_a_part_computes_so_though_it_computes_no_gradients() -> None:
    """As frozen features of a model that trains."""
    model, images = Parts(), torch.randn(2, 3, 9, 9)
    model.forward = torch.no_grad()(model.forward)  # type: ignore[method-assign]
    convolve_channels_last(model, LAST)
    model(images)
    assert model.seen == [False]


def test_a_failed_call_leaves_nothing_behind() -> None:
    """The next one computes as any other."""
    model = Parts()
    convolve_channels_last(model, LAST)
    with pytest.raises(RuntimeError, match="expected input"):
        model(torch.randn(2, 5, 9, 9))
    assert model.features(torch.randn(2, 3, 9, 9)).is_contiguous()


def test_a_thread_that_evaluates_meanwhile_keeps_its_layout() -> None:
    """What it gets may be viewed, though another thread is within a step."""
    model, images, got = Parts(), torch.randn(2, 3, 9, 9), []

    def evaluate() -> None:
        with torch.no_grad():
            got.append(model.features(images))

    def meanwhile(*_: Any) -> None:
        if torch.is_grad_enabled():
            thread = threading.Thread(target=evaluate)
            thread.start()
            thread.join()

    model.features[2].register_forward_pre_hook(meanwhile)
    convolve_channels_last(model, LAST)
    model(images)
    assert got[0].is_contiguous()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_model_is_saved_and_scripted_as_ever() -> None:
    """A whole saved model needs no autotune; its checkpoints hold the weights as they were made."""
    model, images = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.Conv2d(4, 4, 3))), torch.randn(2, 3, 9, 9)
    file = io.BytesIO()
    expected = model(images)
    convolve_channels_last(model, LAST)
    torch.save(model, file)
    assert b"autotune" not in file.getvalue()
    with torch.serialization.safe_globals([nn.Sequential, nn.Conv2d, set]):
        saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    assert not any("forward" in vars(part) for part in saved.modules())
    assert (layout_of(saved), layout_of(model)) == ("contiguous", "channels_last")
    assert all(weight.is_contiguous() for weight in model.state_dict().values())
    torch.testing.assert_close(saved(images), expected)
    torch.testing.assert_close(torch.jit.script(model)(images), expected)  # type: ignore[no-untyped-call]


class Stated(nn.Sequential):
    """Gives all its attributes, as a LightningModule does."""

    def __getstate__(self) -> Any:
        return dict(vars(self))


def with_own_forward(*parts: nn.Module) -> nn.Module:
    """A model to which the script has given another forward, as Accelerate does."""
    model = nn.Sequential(*parts)
    model.forward = types.MethodType(nn.Sequential.forward, model)
    return model


KINDS = [
    nn.Sequential,
    Stated,
    lambda *parts: torch.fx.symbolic_trace(nn.Sequential(*parts)),  # which makes a dictionary of its attributes
    with_own_forward,
]


@pytest.mark.parametrize("wrap", [convolve_channels_last, autocast_forward, checkpoint_blocks, compile_calls])
@pytest.mark.parametrize("make", KINDS, ids=["plain", "stated", "traced", "own forward"])
def test_pickles_are_those_of_an_unchanged_model(make: Callable[..., nn.Module], wrap: Any) -> None:
    """So they are of its copies, which compute with their own weights; during the training and after it."""
    config = LAST.replace(precision="bf16", checkpointing="blocks", compile_mode="default")
    model = make(nn.Conv2d(3, 8, 3), nn.Sequential(*(nn.Sequential(nn.Conv2d(8, 8, 1), nn.ReLU()) for _ in range(4))))
    model.eval()
    plain = attributes(model)
    undos = [wrap(model, config), wrap(model, config)]
    twin, shallow = copy.deepcopy(model), copy.copy(model)
    assert [attributes(one) for one in (model, twin, shallow)] == [plain] * 3
    for weight in twin.parameters():
        nn.init.zeros_(weight)
    assert not twin(torch.randn(2, 3, 9, 9)).any()
    for undo in reversed(undos):
        undo()
    assert [attributes(one) for one in (model, twin)] == [plain] * 2


def attributes(model: nn.Module) -> list[Any]:
    """The names of all attributes in a pickle of a model, in order, and in one by cloudpickle."""
    made: list[nn.Module] = [pickle.loads(dumps(model)) for dumps in (pickle.dumps, cloudpickle.dumps)]  # noqa: S301
    assert not any(b"autotune" in dumps(model) for dumps in (pickle.dumps, cloudpickle.dumps))
    return [[*vars(part)] for one in made for part in one.modules()]


@pytest.mark.parametrize("wrap", [convolve_channels_last, autocast_forward, checkpoint_blocks])
def test_what_is_exported_by_tracing_is_the_scripts_own(wrap: Any) -> None:
    """In training mode, too."""
    block = [nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU()) for _ in range(4)]
    model, images = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Sequential(*block)), torch.randn(2, 3, 16, 16)
    own = str(torch.jit.trace(model, images).inlined_graph)  # type: ignore[no-untyped-call]
    wrap(model, TrainConfig(memory_format="channels_last", precision="bf16", checkpointing="blocks"))
    assert "forward" in {name for part in model.modules() for name in vars(part)}
    traced: Any = torch.jit.trace(model, images)  # type: ignore[no-untyped-call]
    assert str(traced.inlined_graph).count("aten::") == own.count("aten::")
    model.eval()
    assert torch.equal(traced(images), model(images))


@pytest.mark.parametrize("of_tensor", [False, True], ids=["a model", "a conv"])
def test_weights_that_the_script_has_laid_out_are_recognised(of_tensor: bool) -> None:
    """They are its baseline; a weight of one channel and pixel says nothing."""
    model = nn.Conv2d(3, 4, 3) if of_tensor else nn.Sequential(nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, 3))
    assert layout_of(model) == "contiguous"
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert layout_of(model) == "channels_last"
    assert layout_of(nn.Conv2d(1, 4, 1)) is None
    assert layout_of(nn.Sequential(nn.Linear(2, 2))) is None


@pytest.mark.parametrize("mode", ["whole", "part"])
@pytest.mark.parametrize("fine", [TrainConfig(), TrainConfig(precision="bf16")], ids=["fp32", "bf16"])
def test_dynamo_makes_one_graph_of_it(mode: str, fine: TrainConfig) -> None:
    """Without a break, and it is not compiled again in later steps."""
    torch._dynamo.reset()
    model, images, graphs = Parts(), torch.randn(2, 3, 9, 9), []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    expected = model(images)
    autocast_forward(model, fine)
    convolve_channels_last(model, LAST)
    compiled = torch.compile(model if mode == "whole" else model.features, backend=backend, fullgraph=True)
    for _ in range(3):
        out = compiled(images) if mode == "whole" else model.scores(compiled(images).flatten(1))
        out.sum().backward()
    assert len(graphs) == 1
    torch.testing.assert_close(out, expected, rtol=0.05, atol=0.05)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()  # later tests look there for what their scripts have compiled


class Replaced(nn.DataParallel):
    """As on two devices."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.device_ids = [0, 1]


def test_a_model_that_is_copied_to_several_devices_stays() -> None:
    """A copy would call the original's forward, on another device."""
    model = Replaced(Net(3))
    convolve_channels_last(model, LAST)
    assert layout_of(model) == "contiguous"


def test_gradients_of_lazy_layers_are_left_alone() -> None:
    """They have no shape yet."""
    keep_gradients(nn.LazyLinear(2), TrainConfig(compile_mode="reduce-overhead", accumulation_steps=2))


class Lends(nn.Module):
    """Computes by the forward of another model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.forward = model.forward


def test_copies_of_a_model_with_the_forward_of_another_compute_as_it_does() -> None:
    """The forward that it got while settings were in force is not its own."""
    model = nn.Sequential(nn.Linear(3, 3))
    undo = autocast_forward(model, LAST.replace(precision="bf16"))
    lends, batch = Lends(model).eval(), torch.ones(1, 3)
    expected = model.eval()(batch)
    copies = [copy.deepcopy(lends), pickle.loads(pickle.dumps(lends))]  # noqa: S301 - of this test
    undo()
    assert all(torch.equal(one(batch), expected) for one in (lends, *copies, copy.deepcopy(lends)))


def test_a_forward_that_a_script_has_wrapped_in_a_trial_takes_a_setting_again() -> None:
    """Its wrapper has copied the attributes of ours."""
    model, seen = nn.Sequential(nn.Linear(3, 3)), []
    model[0].register_forward_hook(lambda *arguments: seen.append(arguments[2].dtype))
    config = LAST.replace(precision="bf16")
    undo = autocast_forward(model, config)
    within = model.forward

    @functools.wraps(within)
    def forward(*arguments: torch.Tensor) -> torch.Tensor:
        return within(*arguments)

    model.forward = forward
    undo()
    model(torch.ones(1, 3))
    autocast_forward(model, config)
    model(torch.ones(1, 3))
    assert seen == [torch.float32, torch.bfloat16]
