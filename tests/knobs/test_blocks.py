"""The repeated blocks of a model: found, compiled once for all of them, and computed again in backward."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from autotune.knobs.config import TrainConfig
from autotune.torch_settings import compiled
from autotune.torch_settings.repeated_blocks import count_blocks, no_cache_in_training, repeated_blocks
from autotune.training.tuned import Tuned
from benchmarks.charlm import CharGPT
from tests.knobs.models import Residual, Stages, stack
from tests.spaces import cpu_machine, gpu_machine, make_facts, space_of

WIDTH = 8


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[CompileCounter]:
    """Counts the functions that are compiled, which run as they are; and forgets what was compiled before."""
    counter = CompileCounter()
    monkeypatch.setattr(compiled, "_compiled_call", functools.partial(compiled._compiled_call, backend=counter))
    torch._dynamo.reset()
    yield counter
    torch._dynamo.reset()


def prepared(model: nn.Module, **knobs: Any) -> nn.Module:
    """The model under a config, in training."""
    Tuned(TrainConfig(**knobs)).prepare(model)
    return model.train()


def losses(make: Callable[[], nn.Module], inputs: torch.Tensor, **knobs: Any) -> list[float]:
    """Of a few steps, from one state and with the same random numbers."""
    torch.manual_seed(0)
    model = prepared(make(), **knobs)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(1)
    found = []
    for _ in range(4):
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@pytest.mark.parametrize(
    ("model", "groups"),
    [
        (stack(4), [4]),
        (CharGPT(3, 32, 8), [3]),
        (nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 3, enable_nested_tensor=False), [3]),
        (Stages(), [3, 2]),  # of two sizes, as in a network for images
        (nn.Sequential(nn.Embedding(10_000, WIDTH), *stack(2)), [2]),  # the table is looked up, not multiplied with
        (stack(1), []),
        (nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4))), []),  # single operators
        (nn.Sequential(stack(2), nn.Linear(WIDTH, 1000)), []),  # most of the work lies elsewhere
        (nn.Sequential(*(Residual(WIDTH, dropout=0.1 * n) for n in range(3))), []),  # other code for each
        (nn.LazyLinear(3), []),
    ],
)
def test_blocks_are_found_where_they_repeat(model: nn.Module, groups: list[int]) -> None:
    """By class, shapes and floats; the outermost, and only where they hold most of what is multiplied with."""
    assert [len(group) for group in repeated_blocks(model)] == groups
    assert count_blocks(model) == sum(groups)


@pytest.mark.parametrize(
    "part",
    [
        nn.BatchNorm1d,
        lambda width: nn.InstanceNorm1d(width, track_running_stats=True),
        lambda width: nn.utils.spectral_norm(nn.Linear(width, width)),
    ],
)
def test_blocks_that_count_batches_are_not_computed_twice(part: Callable[[int], nn.Module]) -> None:
    """Running statistics would move twice a step, and so would the power iteration of a spectral norm."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), part(WIDTH)) for _ in range(3)))
    assert count_blocks(model) == 3
    assert count_blocks(model, recomputable=True) == 0


@pytest.mark.parametrize("blocks", [2, 12])
def test_alike_blocks_are_compiled_once(counted: CompileCounter, blocks: int) -> None:
    """However many there are; the first, whose input needs no gradient, is another one."""
    model = prepared(stack(blocks), compile_mode="blocks")
    keys = list(model.state_dict())
    for _ in range(2):
        model(torch.randn(4, WIDTH)).sum().backward()
    assert counted.frame_count == 2
    assert keys == list(stack(blocks).state_dict())


def test_blocks_of_torchs_own_class_are_compiled(counted: CompileCounter) -> None:
    """Torch traces no function of its own files, so that they would silently run eagerly."""
    model = prepared(
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 3, enable_nested_tensor=False),
        compile_mode="blocks",
    )
    model(torch.randn(5, 3, 8, requires_grad=True)).sum().backward()
    assert counted.frame_count == 1


def test_groups_of_other_sizes_are_compiled_apart(counted: CompileCounter) -> None:
    """A second size is no reason to compile for any size: its batch is as fixed as the first one's."""
    model = prepared(Stages(), compile_mode="blocks")
    for _ in range(2):
        model(torch.randn(4, WIDTH, requires_grad=True)).sum().backward()
    assert counted.frame_count == 2


@pytest.mark.parametrize("checkpointing", ["none", "blocks"])
def test_blocks_train_what_the_whole_does(checkpointing: str, counted: CompileCounter) -> None:
    """The losses are those of the model as it is, and a copy is its own model."""
    inputs = torch.randn(4, WIDTH)
    eager = losses(lambda: stack(3), inputs)
    assert losses(lambda: stack(3), inputs, compile_mode="blocks", checkpointing=checkpointing) == pytest.approx(eager)
    assert counted.frame_count


def test_a_copy_of_a_model_with_blocks_is_its_own() -> None:
    """As an average of the weights is: it computes with its own weights."""
    model = prepared(stack(2), compile_mode="blocks", checkpointing="blocks").eval()
    average = copy.deepcopy(model)
    features = torch.ones(1, WIDTH)
    before = average(features)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1.0)
    torch.testing.assert_close(average(features), before)


def test_what_is_computed_again_is_the_same_to_the_bit() -> None:
    """Dropout draws the same masks once more."""
    inputs = torch.randn(64, WIDTH)
    kept = losses(lambda: stack(4, dropout=0.3), inputs)
    assert losses(lambda: stack(4, dropout=0.3), inputs, checkpointing="blocks") == kept


@pytest.mark.parametrize(("checkpointing", "blocks"), [("none", 8), ("blocks", 8)])
def test_a_block_that_is_computed_again_keeps_its_input_only(checkpointing: str, blocks: int) -> None:
    """Of the tensors that autograd keeps between forward and backward."""
    kept: list[int] = []
    model = prepared(stack(blocks, dropout=0.1), checkpointing=checkpointing)

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(0 if isinstance(tensor, nn.Parameter) or tensor.shape[0] != 64 else tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(torch.randn(64, WIDTH))
    inputs = blocks * 64 * WIDTH * 4
    assert (sum(kept) <= inputs) == (checkpointing == "blocks")


def test_each_block_is_computed_again() -> None:
    """Once in forward and once in backward; without gradients once."""
    model = prepared(stack(3), checkpointing="blocks")
    calls: list[int] = []
    for block in model:
        block[0].register_forward_hook(lambda *_: calls.append(1))  # type: ignore[index]
    model(torch.randn(2, WIDTH)).sum().backward()
    assert len(calls) == 6
    with torch.no_grad():
        model(torch.randn(2, WIDTH))
    assert len(calls) == 9


@pytest.mark.slow
def test_a_model_that_would_keep_keys_and_values_is_computed_again() -> None:
    """Transformers' GPT-2 keeps them for generating, also in training: written twice, the shapes would be others."""
    transformers = pytest.importorskip("transformers")
    size = {"n_layer": 3, "n_embd": 16, "n_head": 2, "n_positions": 16, "vocab_size": 50}
    config = transformers.GPT2Config(**size, bos_token_id=0, eos_token_id=0)
    tokens = torch.randint(0, 50, (2, 12))

    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = transformers.GPT2LMHeadModel(config)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            found = self.inner(input_ids=tokens)
            self.kept = found.past_key_values
            return found.logits

    # Not to the last bit: some processors add up GPT-2's products in another order from time to time.
    assert losses(Scores, tokens, checkpointing="blocks") == pytest.approx(losses(Scores, tokens), rel=1e-5)
    takes = inspect.signature(Scores().inner.forward)
    model = prepared(Scores(), checkpointing="blocks", compile_mode="blocks")
    assert inspect.signature(model.inner.forward) == takes  # by which transformers choose a data set's columns
    model.eval()
    with torch.no_grad():
        model(tokens)
    assert model.kept is not None  # as ever, where nothing is trained


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [((1,), {}, False), ((1,), {"use_cache": True}, True), ((1,), {"past_key_values": "cache"}, None),
     ((1, None, True), {}, True), ((1, "cache"), {}, None), ((1, None), {}, False)],
)  # fmt: skip
def test_a_cache_that_the_caller_asks_for_stays(args: Any, kwargs: dict[str, Any], expected: bool | None) -> None:
    """By name or by place; a caller that gives one wants it read."""

    def forward(_ids: int, past_key_values: Any = None, use_cache: bool | None = None) -> bool | None:
        del past_key_values
        return use_cache

    assert no_cache_in_training(forward, *args, **kwargs) is expected


def test_where_blocks_repeat_they_are_offered() -> None:
    """In a shorter budget than the whole model; without them the mode would do nothing."""
    facts = make_facts(repeated_blocks=4)
    assert "blocks" in space_of(cpu_machine(), facts).choices["compile_mode"].values
    assert "blocks" not in space_of(cpu_machine()).choices["compile_mode"].values
    assert space_of(cpu_machine(), facts, budget_seconds=100.0).choices["compile_mode"].values == (None, "blocks")


def test_checkpointing_is_kept_for_when_memory_binds() -> None:
    """Searched with a free batch or when asked for; else it is in reserve, and joins once memory has run out."""
    facts = make_facts(recomputable_blocks=4)
    held = space_of(gpu_machine(), facts)
    assert "runs out of memory" in held.skipped["checkpointing"]
    assert held.reserve["checkpointing"].values == ("none", "blocks")
    assert "checkpointing" in held.around(facts.baseline).choices
    assert "checkpointing" in space_of(gpu_machine(), facts, effective_batch=None).choices
    assert "checkpointing" in space_of(gpu_machine(), facts, only=["checkpointing"]).choices
    for none in (space_of(gpu_machine()), space_of(gpu_machine(), facts, only=["precision"])):
        assert not {*none.choices, *none.reserve} & {"checkpointing"}
