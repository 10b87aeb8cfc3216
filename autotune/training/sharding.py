"""One model split among ranks, by torch's FSDP2: each keeps its part of weights, gradients and optimizer states.

A block's weights are gathered just before it computes, and its gradients are exchanged, each rank keeping its part, as
soon as its backward pass has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from autotune.errors import ConfigError
from autotune.recorder.blocks import repeated_blocks

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from autotune.knobs import TrainConfig


def split_among_ranks(
    model: nn.Module, config: TrainConfig, device: torch.device, optimizer: Optimizer | None = None
) -> nn.Module:
    """The same model, whose parameters become ``DTensor`` parts; each repeated block is gathered by itself.

    The optimizer is given the new parameters in the old ones' place, and the part of its states that goes with them.
    Gradients are exchanged after each micro-batch, also where a step has several: to keep them whole until the last one
    would take the memory that splitting saves.

    Raises:
        ConfigError: torch cannot split the model, such as one whose parameters are not all of one type.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    before = {id(parameter): name for name, parameter in model.named_parameters(remove_duplicate=False)}
    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    how: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": config.reshard_after_forward}
    try:
        for group in repeated_blocks(model):
            for block in group:
                fully_shard(block, **how)
        fully_shard(model, **how)
    except (AssertionError, NotImplementedError, RuntimeError, ValueError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise ConfigError(f"strategy=fsdp: torch cannot split this model ({first}); use strategy=ddp") from error
    if optimizer is not None:
        _follow(optimizer, before, dict(model.named_parameters(remove_duplicate=False)))
    return model


def is_split(weight: torch.Tensor) -> bool:
    """Whether a rank has a part of a weight only."""
    from torch.distributed.tensor import DTensor

    return isinstance(weight, DTensor)


def _follow(optimizer: Optimizer, before: dict[int, str], after: dict[str, nn.Parameter]) -> None:
    """Gives an optimizer the parameters that have taken the place of those it knows."""
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
