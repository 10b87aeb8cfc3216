"""A model that is compiled while it trains: one compile, for one shape; errors and long compiles end no training."""

from __future__ import annotations

import copy
import functools
import itertools
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.utils.checkpoint import checkpoint

from autotune.knobs import TrainConfig
from autotune.recorder.live import steps, training
from autotune.recorder.live.compiling import Compiler
from autotune.recorder.live.models import Models
from autotune.torch_settings import process_settings
from autotune.torch_settings.compiled import compile_calls, compiled_graphs, forget_compiled
from autotune.torch_settings.undo import Undo, kept_on, put
from tests.live.conftest import Time
from tests.live.loops import Advice, candidate
from tests.live.test_search import Trained, loader_of

COMPILED = candidate(compile_mode="default")
DEFAULT = TrainConfig(compile_mode="default")


class Backend:
    """Compiles to eager calls, which it counts, or fails."""

    def __init__(self, fails_in: str | None = None) -> None:
        self.compiled, self.calls = [], 0  # type: ignore[var-annotated]
        self.compile = aot_autograd(
            fw_compiler=functools.partial(self._compile, "forward", fails_in == "forward"),
            bw_compiler=functools.partial(self._compile, "backward", fails_in == "backward"),
        )

    def _compile(self, part: str, fails: bool, graph: Any, _: Any) -> Any:
        if fails:
            raise NotImplementedError("no such kernel")
        self.compiled.append(part)

        def call(*arguments: Any) -> Any:
            self.calls += part == "forward"
            return graph(*arguments)

        return call


@pytest.fixture
def compiled_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Backend], None]:
    """Makes torch compile by another backend."""
    compile_ = torch.compile

    def by(backend: Backend) -> None:
        @functools.wraps(compile_)
        def replaced(function: Any, mode: str, **arguments: Any) -> Any:
            assert mode == "default"
            return compile_(function, backend=backend.compile, **arguments)

        monkeypatch.setattr(torch, "compile", replaced)

    return by


def net() -> nn.Module:
    """A model that draws random numbers, and counts in buffers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))


def guarded(model: nn.Module) -> tuple[Undo, list[Exception]]:
    """Compiles a model as a training does; how to undo that, and what has failed."""
    undo, errors = compile_calls(model, DEFAULT), []  # type: ignore[var-annotated]

    def end() -> None:
        end_guard()
        undo()

    def fall_back(error: Exception) -> None:
        errors.append(error)
        end()

    end_guard = Compiler(fall_back, None).guard(model)
    return end, errors


def learned(model: nn.Module, sizes: tuple[int, ...] = (8, 8, 8)) -> list[Any]:
    """What a model computes, and what its steps leave."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    found = []
    for size in sizes:
        optimizer.zero_grad()
        loss = model(torch.linspace(0, 1, size * 4).view(size, 4)).square().sum()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return [found, *(value.tolist() for value in model.state_dict().values()), torch.get_rng_state().tolist()]


@pytest.mark.parametrize("part", ["forward", "backward"])
def test_a_model_that_cannot_be_compiled_trains_as_untuned(compiled_by: Callable[..., None], part: str) -> None:
    """Both passes are compiled in the forward pass, where the error is caught; its draws and counts are repeated."""
    expected, model = learned(net()), net()
    compiled_by(Backend(fails_in=part))
    _, errors = guarded(model)
    assert learned(model) == expected
    assert ["no such kernel" in str(error) for error in errors] == [True]
    assert "_compiled_call_impl" not in vars(model)


@pytest.mark.parametrize(
    ("sizes", "calls"), [((8, 8, 8, 3, 8), 3), ((3, 8, 8, 8, 3, 8), 3), ((8, 3, 8, 3), 0), ((8, 8, 3, 3), 1)]
)
def test_one_shape_is_compiled_once(compiled_by: Callable[..., None], sizes: tuple[int, ...], calls: int) -> None:
    """That of two calls in a row. Evaluation and other shapes are computed eagerly, as before."""
    backend, model = Backend(), net()
    compiled_by(backend)
    expected = learned(net(), sizes)
    guarded(model)
    assert learned(model, sizes)[0] == pytest.approx(expected[0])
    model.eval()
    with torch.no_grad():
        model(torch.ones(8, 4))
    assert backend.calls == calls
    assert sorted(backend.compiled) == (["backward", "forward"] if calls else [])


def test_the_settings_of_torch_stay(compiled_by: Callable[..., None]) -> None:
    """For what the script compiles itself; and nothing of ours counts as that."""
    import torch._functorch.config as settings
    from torch._dynamo import eval_frame

    graphs, model = compiled_graphs(), net()
    compiled_by(Backend())
    end, _ = guarded(model)
    learned(model)
    assert compiled_graphs() == graphs
    assert eval_frame._stance.stance == "default"
    assert not settings.force_non_lazy_backward_lowering
    end()
    forget_compiled(model)
    assert "_compiled_call_impl" not in vars(model)


def test_copies_and_checkpoints_of_a_compiled_model_are_the_scripts(compiled_by: Callable[..., None]) -> None:
    """The same keys, and eager copies."""
    backend, model = Backend(), net()
    compiled_by(backend)
    guarded(model)
    learned(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301 - of this test
        assert other.state_dict().keys() == net().state_dict().keys()
        before = backend.calls
        learned(other)
        assert backend.calls == before


def test_hooks_that_come_later_are_called(compiled_by: Callable[..., None]) -> None:
    """Of either pass; the model then runs eagerly."""
    backend, model, seen = Backend(), net(), []  # type: ignore[var-annotated]
    compiled_by(backend)
    _, errors = guarded(model)
    learned(model)
    layer, before = model.get_submodule("3"), backend.calls
    layer.register_forward_hook(lambda *_: seen.append("forward"))
    layer.register_full_backward_hook(lambda *_: seen.append("backward"))
    learned(model)
    assert seen == ["forward", "backward"] * 3
    assert (backend.calls, errors) == (before, [])


@pytest.mark.parametrize("how", ["retain_graph", "create_graph"])
def test_a_script_may_keep_the_graph_of_a_compiled_model(compiled_by: Callable[..., None], how: str) -> None:
    """In any thread: on a GPU, backward passes run in one of torch's."""
    model, errors = net(), []  # type: ignore[var-annotated]
    compiled_by(Backend())
    guarded(model)
    learned(model)
    loss = model(torch.linspace(0, 1, 32).view(8, 4)).square().sum()

    def twice() -> None:
        try:
            for _ in range(2):
                loss.backward(**{how: True})
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=twice)
    thread.start()
    thread.join()
    assert errors == []


def test_an_error_before_it_is_compiled_falls_back_too(compiled_by: Callable[..., None]) -> None:
    """Another knob of the setting may have raised it."""
    model, fails = net(), [True]

    def fail(*_: Any) -> None:
        if fails.pop() if fails else False:
            raise ValueError("not in this precision")

    compiled_by(Backend())
    model.register_forward_pre_hook(fail)
    _, errors = guarded(model)
    assert learned(model) == learned(net())
    assert [str(error) for error in errors] == ["not in this precision"]


class Seen(nn.Module):
    """A model that is called in some way."""

    def __init__(self, recomputes: bool = False) -> None:
        super().__init__()
        self.layer, self.recomputes = nn.Linear(4, 4), recomputes

    def forward(self, values: torch.Tensor) -> Any:
        """``(batch, 4)``."""
        return checkpoint(self.layer, values, use_reentrant=False) if self.recomputes else self.layer(values)


@pytest.mark.parametrize(
    ("recomputes", "hooks", "reason"), [(True, False, "again"), (False, True, "hooks"), (False, False, None)]
)
def test_what_speaks_against_compiling(recomputes: bool, hooks: bool, reason: str | None) -> None:
    """Recomputing must do as the forward pass did, and hooks see what is computed."""
    model, models = Seen(recomputes), Models()
    if hooks:
        model.layer.register_forward_hook(lambda *_: None)
    model(torch.ones(2, 4)).sum().backward()
    models.end()
    why = models.why_not([model]).get("compile_mode")
    assert why is None if reason is None else reason in (why or "")


@pytest.fixture
def begun(time: Time, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Begins to tune this process, where compiling takes some time, and halves a step."""
    for name, value in {
        "WARM_SECONDS": 0.0,
        "BLOCK_SECONDS": 0.2,
        "COMPILE_SECONDS": 1.0,
        "MOST_SECONDS": 60.0,
    }.items():
        monkeypatch.setattr(training, name, value)
    lives = []

    def begin(compile_seconds: float = 0.0) -> tuple[training.LiveTraining, Advice]:
        def compile_calls(model: nn.Module, _: Any) -> Undo:
            def call(*arguments: Any) -> Any:
                time.now -= 0.05
                time.now += 0.0 if lives[0]._compiler._seconds or lives[0]._ledger.compiling else compile_seconds
                return model._call_impl(*arguments)

            return put(model, "_compiled_call_impl", call)

        monkeypatch.setattr(process_settings, "compile_calls", compile_calls)
        advice = Advice([COMPILED])
        lives.append(training.LiveTraining(advice, 2, ["compile_mode"]))
        return lives[0], advice

    yield begin
    for live in lives:
        live.end()
    training._active.clear()


def trained(time: Time, steps: int, *, creates_at: int | None = None) -> None:
    """Some steps of 0.1 s."""
    one = Trained()
    for number, batch in enumerate(itertools.islice(itertools.cycle(loader_of(samples=1600)), steps)):
        time.now += 0.1
        one.step(batch)
        if number == creates_at:
            torch.ones(1, requires_grad=True).exp().sum().backward(create_graph=True)


def told(advice: Advice, event: str) -> list[dict[str, Any]]:
    """Events of a kind."""
    return [one for one in advice.events if one["event"] == event]


@pytest.mark.parametrize("compile_seconds", [0.5, 1.5])
def test_compiling_waits_until_it_may_be_lost(begun: Callable[..., Any], time: Time, compile_seconds: float) -> None:
    """Beyond the search's own limit. What it takes is charged, even more than assumed, and is no fault of a block."""
    live, advice = begun(compile_seconds)
    trained(time, 1200)
    assert 50 < told(advice, "playing")[0]["seconds"] < 80
    assert live._ledger.compiling == pytest.approx(compile_seconds, abs=0.2)
    assert live.left == {}
    assert [one["verdict"] for one in told(advice, "decided")] == ["won"]
    assert told(advice, "decided")[0]["ratio"] == pytest.approx(2, rel=0.1)
    assert told(advice, "over")[-1]["won"] == {"compile_mode": "default"}


def test_a_short_training_says_why_it_is_not_compiled(begun: Callable[..., Any], time: Time) -> None:
    """Once, at its end; nothing else is left to decide."""
    live, advice = begun()
    trained(time, 650)
    live._at_exit()
    live.end()
    assert not told(advice, "playing")
    (over,) = told(advice, "over")
    assert (over["why"], over["left"]) == ("all else is decided", {"compile_mode": training.UNEARNED})
    assert over["complete"]


@pytest.mark.parametrize("step", [2, 200])
def test_a_script_that_makes_graphs_of_gradients_is_not_compiled(
    begun: Callable[..., Any], time: Time, step: int
) -> None:
    """From its first steps on, or while compiling waits."""
    live, advice = begun()
    trained(time, 650, creates_at=step)
    assert live.left["compile_mode"] == training.SECOND
    assert not told(advice, "playing")
    assert told(advice, "over")


@pytest.mark.parametrize(
    ("how", "creates"), [({}, False), ({"retain_graph": True}, False), ({"create_graph": True}, True)]
)
def test_gradients_of_gradients_are_seen(how: dict[str, bool], creates: bool) -> None:
    """By either function of torch."""
    seen: list[bool] = []
    watching = Compiler(lambda _: None, lambda: seen.append(True))
    for weight in (torch.ones(1, requires_grad=True) for _ in range(2)):
        weight.exp().sum().backward(**how)
        torch.autograd.grad(weight.exp().sum(), weight, **how)
    watching.end()
    assert len(seen) == 4 * creates
    weight.exp().sum().backward(create_graph=True)
    assert len(seen) == 4 * creates


def test_wrappers_of_torch_do_not_pile_up(begun: Callable[..., Any]) -> None:
    """With each fit."""

    def layers() -> list[int]:
        found = []
        for function in (torch.autograd.backward, torch.Tensor.register_hook, nn.Module.train):
            found.append(0)
            while (function := getattr(function, "__wrapped__", None)) is not None:
                found[-1] += 1
        return found

    begun()
    before = layers()
    begun()
    assert layers() == before


def test_an_optimizer_that_is_gone_ends_the_wait_for_compiling(begun: Callable[..., Any], time: Time) -> None:
    """Another one steps in its place, for the same model or another one."""
    live, advice = begun()
    trained(time, 300)
    assert live._phase == "earns"
    trained(time, training.MOST_OTHERS + 1)
    (over,) = told(advice, "over")
    assert (over["why"], over["left"]) == ("another optimizer steps now", {"compile_mode": training.UNEARNED})


def test_the_last_batch_of_an_epoch_may_be_smaller(
    begun: Callable[..., Any], time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is compiled for the shape of all others."""
    live, _ = begun()
    loader, one = loader_of(samples=51), Trained()
    monkeypatch.setattr(training, "WARM_SECONDS", 2.0)  # 20 steps
    for batch in itertools.chain.from_iterable(loader for _ in range(3)):
        time.now += 0.1
        one.step(batch)
    assert live._phase == "earns"
    assert live.left == {}


class Losses(Trained):
    """Notes its losses."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def step(self, batch: Any) -> None:
        """One step."""
        values, labels, ids = batch
        loss = nn.functional.cross_entropy(self.model(values), labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item())
        self.ids.append(ids.tolist())


def train() -> Losses:
    """Three epochs."""
    loader, one = loader_of(), Losses()
    for batch in itertools.chain.from_iterable(loader for _ in range(3)):
        one.step(batch)
    return one


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are short, and nothing is too costly."""
    for name, value in {"WARM_SECONDS": 0.0, "BLOCK_SECONDS": 0.0, "WORST": 1e9}.items():
        monkeypatch.setattr(training, name, value)
    monkeypatch.setattr(steps, "ODD_TIMES", 1e9)
    monkeypatch.setattr(training.Ledger, "allows", lambda *_, **__: True)
    monkeypatch.setattr(training.Ledger, "may_lose", lambda *_: 1e9)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("part", ["forward", "backward"])
def test_a_compiler_that_fails_ends_the_candidate_alone(compiled_by: Callable[..., None], part: str) -> None:
    """The training is untuned, to the last bit."""
    plain, advice = train(), Advice([COMPILED])
    compiled_by(Backend(fails_in=part))
    live = training.LiveTraining(advice, 2, ["compile_mode"])
    tuned = train()
    live.end()
    training._active.clear()
    assert (tuned.losses, tuned.ids) == (plain.losses, plain.ids)
    (event,) = told(advice, "decided")
    assert event["verdict"] == "failed"
    assert "no such kernel" in event["reason"]
    assert live._ledger.compiling > 0


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("verdict", ["won", "lost"])
def test_a_training_that_is_really_compiled_reads_as_untuned(monkeypatch: pytest.MonkeyPatch, verdict: str) -> None:
    """The same samples to its end, and the same to the last bit until it is compiled. Nothing stays at its end."""

    class Decided(training.Evidence):
        @property
        def verdict(self) -> str | None:  # type: ignore[override]
            return verdict if self.logs else None

    plain = train()
    monkeypatch.setattr(training, "Evidence", Decided)
    advice = Advice([COMPILED])
    live = training.LiveTraining(advice, 2, ["compile_mode"])
    tuned = train()
    is_compiled = "_compiled_call_impl" in vars(tuned.model)
    live.end()
    training._active.clear()
    assert tuned.ids == plain.ids
    before = next(event["steps"] for event in told(advice, "playing") if event["name"] == COMPILED["name"])
    assert tuned.losses[:before] == plain.losses[:before]
    assert tuned.losses == pytest.approx(plain.losses, abs=1e-4)  # its dropout draws the same numbers, too
    assert [event["verdict"] for event in told(advice, "decided")] == [verdict]
    assert live._ledger.compiling > 0
    assert is_compiled is (verdict == "won")
    assert "_compiled_call_impl" not in vars(tuned.model)
    assert "calls" not in kept_on(tuned.model)
