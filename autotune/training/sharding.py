"""Splits a model among ranks with torch's FSDP2: each rank keeps its part of weights, gradients and optimizer states.

A block's weights are gathered just before it computes. Its gradients are exchanged as soon as its backward pass has
ended, and each rank keeps its part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, nn

from autotune.errors import ConfigError
from autotune.torch_settings.repeated_blocks import repeated_blocks

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from autotune.knobs import TrainConfig


def split_among_ranks(
    model: nn.Module, config: TrainConfig, device: torch.device, optimizer: Optimizer | None = None
) -> nn.Module:
    """Splits a model in place: its parameters become ``DTensor`` parts, and each repeated block is gathered by itself.

    In the optimizer, the new parameters replace the old ones, with their part of its states. Gradients are exchanged
    after each micro-batch, even where a step has several: keeping whole gradients until the last one would take the
    memory that splitting saves.

    Raises:
        ConfigError: torch cannot split the model, for instance where its parameters have different types.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    before = {id(parameter): name for name, parameter in model.named_parameters(remove_duplicate=False)}
    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    gathered = torch.bfloat16 if config.fsdp_param_dtype == "bf16" else None
    exchanged = torch.bfloat16 if config.exchange_dtype == "bf16" else None
    if gathered is not None and exchanged is None:
        exchanged = torch.float32  # by default torch uses the type of the gathered weights
    policy = MixedPrecisionPolicy(gathered, exchanged)
    how: dict[str, Any] = {"mesh": mesh, "mp_policy": policy, "reshard_after_forward": config.reshard_after_forward}
    groups = repeated_blocks(model)
    try:
        for group in groups:
            for block in group:
                fully_shard(block, **how)
        fully_shard(model, **how)
    except (AssertionError, NotImplementedError, RuntimeError, ValueError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise ConfigError(f"strategy=fsdp: torch cannot split this model ({first}); use strategy=ddp") from error
    if config.fsdp_own_group:
        model.set_separate_reduce_scatter_group()  # type: ignore[operator]
    if config.fsdp_keep_storage:
        model.set_keep_unsharded_storage(True)  # type: ignore[operator]
    for group in groups:
        _gather_ahead(group, config.fsdp_prefetch)
    if optimizer is not None:
        _follow(optimizer, before, dict(model.named_parameters(remove_duplicate=False)))
    return model


def _gather_ahead(group: Sequence[Any], count: int) -> None:
    """Makes each block of a group also gather the next `count` blocks, or in the backward pass those before it."""
    for place, block in enumerate(group if count else ()):
        block.set_modules_to_forward_prefetch(list(group[place + 1 : place + 1 + count]))
        block.set_modules_to_backward_prefetch(list(reversed(group[max(0, place - count) : place])))


def is_split(weight: torch.Tensor) -> bool:
    """Whether a rank holds only a part of a weight."""
    from torch.distributed.tensor import DTensor

    return isinstance(weight, DTensor)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a tensor that may be split; all ranks must call it."""
    return tensor.full_tensor() if is_split(tensor) else tensor  # type: ignore[attr-defined]


def _follow(optimizer: Optimizer, before: dict[int, str], after: dict[str, nn.Parameter]) -> None:
    """Replaces an optimizer's parameters with the split ones."""
    from torch.distributed.tensor import distribute_tensor

    for group in optimizer.param_groups:
        for place, old in enumerate(group["params"]):
            if (name := before.get(id(old))) is None:  # of another model
                continue
            new: Any = after[name]
            group["params"][place] = new
            if (state := optimizer.state.pop(old, None)) is not None:
                optimizer.state[new] = {
                    key: distribute_tensor(value, new.device_mesh, new.placements)
                    if isinstance(value, torch.Tensor) and value.shape == old.shape and value.dim()
                    else value
                    for key, value in state.items()
                }
