"""Linear layers in FP8: offered to who has allowed it, on a GPU for it, beside torchao; and what is replaced."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from autotune.knobs.config import TrainConfig
from autotune.training.tuned import Tuned
from tests.hardware.readings import I5_9400F, hardware_of, rtx_2070
from tests.spaces import cpu_machine, gpu_machine, make_facts, space_of

FP8 = TrainConfig(fp8_linear=True, precision="bf16", compile_mode="default")


@pytest.mark.parametrize(
    ("hardware", "has_torchao", "allowed", "reason"),
    [
        (gpu_machine(), True, False, "--allow-numerics"),
        (gpu_machine(), False, True, "pip install torchao"),
        (hardware_of(I5_9400F, rtx_2070()), True, True, "8.9"),
        (cpu_machine(), True, True, "8.9"),
    ],
)
def test_fp8_is_left_out_with_its_reason(hardware: Any, has_torchao: bool, allowed: bool, reason: str) -> None:
    """Each says what is missing."""
    space = space_of(hardware, make_facts(packages=("torchao",) * has_torchao), allow_numerics=allowed)
    assert reason in space.skipped["fp8_linear"]


def test_fp8_is_searched_where_it_may_be() -> None:
    """On an Ada card, and only beside bf16 and compiled."""
    space = space_of(gpu_machine(), make_facts(packages=("triton", "torchao")), allow_numerics=True)
    assert space.choices["fp8_linear"].values == (False, True)
    assert space.violation(FP8) is None
    for without in ({"precision": "fp32"}, {"compile_mode": None}):
        assert "FP8 goes with" in (space.violation(FP8.replace(**without)) or "")


def test_layers_are_replaced_and_their_weights_stay() -> None:
    """Those whose sizes products of FP8 take; the optimizer and checkpoints notice nothing."""
    torchao = pytest.importorskip("torchao.float8.float8_linear")
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10), nn.MultiheadAttention(32, 2))
    weights, keys = list(model.parameters()), list(model.state_dict())
    Tuned(FP8.replace(compile_mode=None)).prepare(model)
    replaced = [name for name, part in model.named_modules() if isinstance(part, torchao.Float8Linear)]
    assert replaced == ["0"]
    assert all(now is before for now, before in zip(model.parameters(), weights, strict=True))
    assert list(model.state_dict()) == keys
    alone = nn.Linear(32, 32)
    Tuned(FP8.replace(compile_mode=None)).prepare(alone)
    assert type(alone) is nn.Linear
