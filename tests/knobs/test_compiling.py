"""What is compiled besides the model, and gradients under CUDA graphs, whose memory the next micro-batch overwrites."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.nn.functional import cross_entropy

from autotune.knobs.config import TrainConfig
from autotune.knobs.registry import affecting
from autotune.torch_settings.compiled import CODE_DEPENDS_ON, compile_calls, keep_gradients
from autotune.torch_settings.packages import CPP, installed
from autotune.training.tuned import Tuned
from tests.spaces import cpu_machine, gpu_machine, make_facts, space_of


class FromGraph(torch.autograd.Function):
    """Leaves the same memory as the gradient each time, as a replayed graph does."""

    @staticmethod
    def forward(context: object, weight: torch.Tensor, memory: torch.Tensor, value: float) -> torch.Tensor:
        """The sum of the weights."""
        context.saved = memory, value  # type: ignore[attr-defined]
        return weight.sum()

    @staticmethod
    def backward(context: object, *_: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The memory, overwritten."""
        memory, value = context.saved  # type: ignore[attr-defined]
        return memory.fill_(value), None, None


def test_configs_share_code_only_where_no_knob_that_affects_it_differs() -> None:
    """The list stands below the knobs, which declare it too."""
    assert set(CODE_DEPENDS_ON) == set(affecting("compiled code"))


def accumulated(config: TrainConfig) -> torch.Tensor | None:
    """The gradient after micro-batches of 1, 10 and 100, in memory that each of them overwrites."""
    model = nn.Linear(1, 1, bias=False)
    keep_gradients(model, config)
    memory = torch.zeros(1, 1)
    for value in (1.0, 10.0, 100.0):
        FromGraph.apply(model.weight, memory, value).backward()  # type: ignore[no-untyped-call]
    return model.weight.grad


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune", "cudagraphs"])
def test_gradients_survive_the_next_replay(mode: str) -> None:
    """They add up, though each replay writes where the first gradient was."""
    gradient = accumulated(TrainConfig(compile_mode=mode, accumulation_steps=3))
    assert gradient is not None
    assert gradient.item() == 111.0


def test_without_accumulation_nothing_is_copied() -> None:
    """One micro-batch a step needs no copy."""
    model = nn.Linear(1, 1)
    keep_gradients(model, TrainConfig(compile_mode="reduce-overhead"))
    assert model.weight._post_accumulate_grad_hooks is None  # type: ignore[attr-defined]


def test_setting_gradients_to_none_begins_again() -> None:
    """The next step's first gradient is copied as well."""
    model = nn.Linear(1, 1, bias=False)
    keep_gradients(model, TrainConfig(compile_mode="reduce-overhead", accumulation_steps=2))
    memory = torch.zeros(1, 1)
    for value in (1.0, 2.0):
        model.zero_grad(set_to_none=True)
        FromGraph.apply(model.weight, memory, value).backward()  # type: ignore[no-untyped-call]
        assert model.weight.grad is not None
        assert model.weight.grad.data_ptr() != memory.data_ptr()
        assert model.weight.grad.item() == value


def mean_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """As people write it."""
    return cross_entropy(model(batch), torch.zeros(4, dtype=torch.long))


@pytest.mark.parametrize("loss", [mean_loss, functools.partial(mean_loss)], ids=["function", "partial"])
def test_the_loss_is_compiled_with_the_model_in_it(
    loss: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One graph of both, the value as it was; the model by itself, as for evaluation, has its own."""
    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=counter))
    torch._dynamo.reset()
    tuned, model, batch = Tuned(TrainConfig(compile_mode="loss")), nn.Linear(8, 3), torch.randn(4, 8)
    expected = loss(model, batch).item()
    tuned.prepare(model)
    compiled = tuned.compiled_loss(loss)
    for _ in range(2):
        assert compiled(model, batch).item() == pytest.approx(expected)
    assert counter.frame_count == 1
    assert counter.op_count > 1
    model(batch)
    assert counter.frame_count == 2
    torch._dynamo.reset()


@pytest.mark.parametrize("mode", ["default", "blocks"])
def test_a_compiled_model_can_be_traced(mode: Any) -> None:
    """As for an export, after the training: torch refuses to trace compiled code, and gets the model's own."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(4)))
    compile_calls(model, TrainConfig(compile_mode=mode))
    batch = torch.randn(4, 8)
    traced: Any = torch.jit.trace(model.eval(), batch)  # type: ignore[no-untyped-call]
    assert torch.equal(traced(batch), model._call_impl(batch))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("mode", [None, "default", "blocks"])
def test_in_other_modes_the_loss_is_the_users_own(mode: Any) -> None:
    """What is not compiled has no layer around it."""
    assert Tuned(TrainConfig(compile_mode=mode)).compiled_loss(mean_loss) is mean_loss


def test_compiling_the_loss_is_offered_where_it_takes_part_of_the_time() -> None:
    """Else it would be another compile for nothing; among ranks DDP ends the model's own graphs."""
    assert "loss" in space_of(cpu_machine(), make_facts(outside_fraction=0.2)).choices["compile_mode"].values
    assert "loss" not in space_of(cpu_machine(), make_facts(outside_fraction=0.01)).choices["compile_mode"].values
    ranks = space_of(cpu_machine(), make_facts(outside_fraction=0.2, ranks=2))
    assert "loss" not in ranks.choices["compile_mode"].values


@pytest.mark.parametrize(("fixed_shapes", "modes"), [(True, (None, "cudagraphs")), (False, None)])
def test_without_its_compiler_no_mode_that_needs_it_is_tried(
    fixed_shapes: bool, modes: tuple[str | None, ...] | None
) -> None:
    """Each would cost a burst that fails; CUDA graphs of eager kernels need no compiler."""
    facts = make_facts(packages=(), fixed_shapes=fixed_shapes)
    space = space_of(gpu_machine(), facts, budget_seconds=2000.0)
    if modes is None:
        assert "Triton" in space.skipped["compile_mode"]
    else:
        assert space.choices["compile_mode"].values == modes
    assert "C++" in space_of(cpu_machine(), facts, budget_seconds=2000.0).skipped["compile_mode"]


@pytest.mark.parametrize(("compiler", "found"), [(sys.executable, True), ("no such compiler", False)])
def test_the_compiler_is_the_one_that_torch_calls(compiler: str, found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads CXX, too."""
    monkeypatch.setenv("CXX", compiler)
    assert (CPP in installed()) == found
