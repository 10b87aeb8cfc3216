"""All that a config changes in a process, a model and an optimizer, to be compared before and after."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def settings_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What is set now, in words that compare; weights and moments by their strides alone."""
    cuda = torch.backends.cuda
    parts = dict(model.named_modules())
    return {
        "threads": torch.get_num_threads(),
        "products": (torch.get_float32_matmul_precision(), cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32),
        "search": torch.backends.cudnn.benchmark,
        "attention": (cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.cudnn_sdp_enabled()),
        "tag": torch.compiler.config.cache_key_tag,
        "copies": (torch.Tensor.to, torch.Tensor.cuda),
        "forwards": {name: vars(part).get("forward") for name, part in parts.items()},
        "calls": {name: vars(part).get("_compiled_call_impl") for name, part in parts.items()},
        "weights": {name: weight.stride() for name, weight in model.named_parameters()},
        "hooks": [len(weight._post_accumulate_grad_hooks or ()) for weight in model.parameters()],  # type: ignore[attr-defined]
        "groups": [{**group, "params": None} for group in (optimizer.defaults, *optimizer.param_groups)],
        "scaling": vars(optimizer).get("_step_supports_amp_scaling"),
        "loading": len(optimizer._optimizer_load_state_dict_pre_hooks),  # type: ignore[attr-defined]
        "moments": [
            {name: value.stride() for name, value in state.items() if isinstance(value, torch.Tensor)}
            for state in optimizer.state.values()
        ],
    }
