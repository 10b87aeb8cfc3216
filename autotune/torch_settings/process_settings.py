"""Functions that apply knobs to torch, for bursts, your own training, and unchanged scripts."""

from __future__ import annotations

import atexit
import contextlib
import copy
import inspect
import os
import weakref
from typing import TYPE_CHECKING, Any

from ..sandbox.system import libc
from .compiled import compile_calls
from .layout import convolve_channels_last, lay_out_gradients, lay_out_state
from .naming import weights_of
from .precision import set_tf32
from .undo import Undo, in_reverse, never, nothing, put, unless_changed
from .wrapping import autocast_forward, checkpoint_blocks

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

    from ..knobs.config import TrainConfig

__all__ = [
    "accumulate_in_fp16", "autocast_forward", "checkpoint_blocks", "compile_calls", "convolve_channels_last",
    "let_cudnn_search", "multiply_in_fp8", "restrict_attention", "set_allocator", "set_tf32", "set_threads",
    "switch_optimizer", "try_nvgemm",
]  # fmt: skip
"""Scripts' processes, which lack the knobs' declarations, call these functions by name."""
_attention = contextlib.ExitStack()
"""Closing it ends the current restriction of attention."""
atexit.register(_attention.close)
FLASH_IMPLEMENTATIONS = {"flash_attention_3": "FA3", "flash_attention_4": "FA4"}
"""torch's names for the packages that compute attention in its stead."""
FORMS = ("foreach", "fused")
"""The forms that optimizers of torch have besides the plain one."""
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4  # from glibc's malloc.h
_TOP_PAD_BYTES = 256 * 2**20


def multiply_in_fp8(model: nn.Module, config: TrainConfig) -> Undo:
    """Replaces a model's linear layers by torchao's, which multiply in FP8; the weights stay.

    Each tensor has a scale that is computed in each product, so there is no state besides the weights. Sizes of layers
    must be multiples of 16, as `torch._scaled_mm` requires; the samples of a batch are padded to such a multiple.
    Classes derived from `nn.Linear` stay, since other code may read their weights without calling forward.

    Raises:
        ImportError: torchao is not installed.
    """
    if not config.fp8_linear:
        return nothing
    from torch import nn
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    def fits(layer: nn.Module, name: str) -> bool:
        if name and type(layer) is nn.Linear:  # a model that is one layer has no parent to replace it in
            return layer.in_features % 16 == layer.out_features % 16 == 0
        return False

    convert_to_float8_training(model, module_filter_fn=fits, config=Float8LinearConfig(pad_inner_dim=True))
    return never


def set_threads(count: int | None, _: torch.device) -> Undo:
    """Sets the CPU threads of an operation; None changes nothing."""
    if count is None:
        return nothing
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    return unless_changed(torch.get_num_threads, lambda: torch.set_num_threads(before))


def let_cudnn_search(on: bool, device: torch.device) -> Undo:
    """Sets whether cuDNN tries its algorithms for each convolution."""
    import torch

    before = torch.backends.cudnn.benchmark
    if before == on or not (on or device.type == "cuda"):
        return nothing
    torch.backends.cudnn.benchmark = on
    cudnn = torch.backends.cudnn
    return unless_changed(lambda: cudnn.benchmark, lambda: setattr(cudnn, "benchmark", before))


def accumulate_in_fp16(on: bool, _: torch.device) -> Undo:
    """Sets whether products of fp16 are added up in fp16."""
    import torch

    matmul = torch.backends.cuda.matmul
    before = matmul.allow_fp16_accumulation
    matmul.allow_fp16_accumulation = on
    return unless_changed(
        lambda: matmul.allow_fp16_accumulation, lambda: setattr(matmul, "allow_fp16_accumulation", before)
    )


def try_nvgemm(on: bool, _: torch.device) -> Undo:
    """Adds NVIDIA's kernels to those that Inductor times for a matrix product; its caches keep the two apart."""
    if not on:
        return nothing
    from torch._inductor import config

    before = config.max_autotune_gemm_backends
    if "NVGEMM" in before.upper():  # twice would be another key in Inductor's caches
        return nothing
    config.max_autotune_gemm_backends = f"{before},NVGEMM"
    return lambda: setattr(config, "max_autotune_gemm_backends", before)


def set_allocator(allocator: str, device: torch.device) -> Undo:
    """Tunes the allocator if the knob is ``tuned``."""
    if allocator != "tuned":
        return nothing
    tune_allocator(device)
    return never


def tune_allocator(device: torch.device) -> None:
    """Makes the allocator keep its memory: growing segments on CUDA, no mmap and no trimming in glibc's malloc.

    By default, glibc serves every large tensor by a fresh mmap, whose pages fault in one by one.
    """
    if device.type == "cuda":
        import torch

        if torch.version.hip is None:
            kept = [one for one in asked_of_allocator() if not one.startswith("expandable_segments")]
            _apply_to_allocator(",".join([*kept, "expandable_segments:True"]))
    elif device.type == "cpu" and hasattr(libc, "mallopt"):  # glibc alone has it
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(_M_TOP_PAD, _TOP_PAD_BYTES)


def asked_of_allocator() -> list[str]:
    """The settings of CUDA's allocator in the environment, from the newer variable or the older."""
    variable = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    return [setting.strip() for setting in variable.split(",") if setting.strip()]


def _apply_to_allocator(settings: str) -> None:
    import torch

    setter = getattr(torch._C, "_accelerator_setAllocatorSettings", None)  # since 2.10; the other one warns there
    (setter or torch.cuda.memory._set_allocator_settings)(settings)


def restrict_attention(backend: str, _: torch.device) -> Undo:
    """Restricts scaled dot-product attention to one backend, with the math backend as a fallback.

    Later versions of FlashAttention are packages, which take the place of torch's own.

    It holds for the whole process, because checkpointing must recompute with the same backend. The key of torch's
    compiled code on disk does not include this setting, so it is added as a tag.
    """
    import torch
    from torch.nn import attention
    from torch.nn.attention import SDPBackend, sdpa_kernel

    _attention.close()
    if backend == "default":
        return nothing
    if (implementation := FLASH_IMPLEMENTATIONS.get(backend)) is not None:
        attention.activate_flash_attention_impl(implementation)
        _attention.callback(attention.restore_flash_attention_impl, _raise_warn=False)
        chosen = SDPBackend.FLASH_ATTENTION
    else:
        chosen = getattr(SDPBackend, backend.upper())
    _attention.enter_context(sdpa_kernel([chosen, SDPBackend.MATH], set_priority=True))
    settings = torch.compiler.config
    _attention.callback(setattr, settings, "cache_key_tag", settings.cache_key_tag)
    settings.cache_key_tag += f" attention={backend}"
    return _attention.close


def switch_optimizer(optimizer: Optimizer, implementation: str) -> Undo:
    """Switches an optimizer to its foreach or fused form, as if it had been made so.

    Checkpoints, pickles and copies keep the script's own form: another run, with or without autotune, can resume from
    them.

    Raises:
        ValueError: `why_no_form` has a reason.
    """
    from torch.optim import Optimizer

    if implementation != "default" and (why := why_no_form(optimizer, implementation)) is not None:
        raise ValueError(why)
    kind = type(optimizer)
    optimizer = weakref.proxy(optimizer)  # it keeps the undo, and would keep itself
    undos: list[Undo] = [lambda: _recast(optimizer)]
    chosen: dict[str, bool] = {}
    if implementation != "default":
        chosen = {form: form == implementation for form in FORMS if form in optimizer.defaults}
        own = [{name: group.get(name) for name in chosen} for group in (optimizer.defaults, *optimizer.param_groups)]

        def own_of(number: int) -> dict[str, Any]:
            return own[number] if number < len(own) else own[0]  # a group added since has the defaults

        def undo_form() -> None:  # by position, because loading a checkpoint recreates groups
            for number, settings in enumerate((optimizer.defaults, *optimizer.param_groups)):
                settings.update(own_of(number))

        def choose(_: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
            return {**saved, "param_groups": [{**group, **chosen} for group in saved["param_groups"]]}

        def keep_own(_: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
            groups = [{**group, **own_of(number)} for number, group in enumerate(saved["param_groups"], 1)]
            on_device = {weight for group in groups if _counts_on_device(group) for weight in group["params"]}
            state = {
                weight: kept if weight in on_device or not hasattr(kept.get("step"), "cpu")
                else {**kept, "step": kept["step"].cpu()}
                for weight, kept in saved["state"].items()
            }  # fmt: skip
            return {**saved, "state": state, "param_groups": groups}

        def pickled() -> dict[str, Any]:
            saved = keep_own(optimizer, Optimizer.__getstate__(optimizer))
            state = copy.copy(optimizer.state)  # a dictionary with defaults
            state.update(saved["state"])
            return {**saved, "state": state, "defaults": {**optimizer.defaults, **own[0]}}

        for settings in (optimizer.defaults, *optimizer.param_groups):
            settings.update(chosen)
        if kind.__getstate__ is Optimizer.__getstate__:  # which leaves out attributes, and so this one
            undos.append(put(optimizer, "__getstate__", pickled))
        undos += [
            put(optimizer, "_step_supports_amp_scaling", implementation == "fused"),
            undo_form,
            optimizer.register_load_state_dict_pre_hook(choose).remove,
            optimizer.register_state_dict_post_hook(keep_own).remove,
        ]
    if implementation == "fused":
        undos += [
            optimizer.register_load_state_dict_post_hook(lay_out_state).remove,
            optimizer.register_step_pre_hook(lay_out_gradients).remove,
        ]
    try:
        _recast(optimizer)  # state that was made or loaded before the parameters moved
        if implementation == "fused":
            lay_out_state(optimizer)
    except BaseException:
        in_reverse(undos[1:])()
        raise
    return in_reverse(undos) if chosen else nothing


def why_no_form(optimizer: Optimizer, form: str) -> str | None:
    """Why an optimizer cannot step in a form, as far as is known; None if it can.

    Torch refuses some arguments, types and devices only in a step, so the form steps on weights of one element. A
    class with a step of its own may do anything with it: under a GradScaler, a fused form gets scaled gradients.
    """
    import torch

    step = inspect.unwrap(type(optimizer).step)
    # Torch hangs its hooks on the step of the first class that is made, which may inherit its step.
    kinds = (kind for kind in reversed(type(optimizer).__mro__) if "step" in vars(kind))
    maker: Any = next(kind for kind in kinds if inspect.unwrap(vars(kind)["step"]) is step)
    groups = optimizer.param_groups
    if form not in optimizer.defaults:
        return f"{type(optimizer).__name__} has no such form"
    if not maker.__module__.startswith("torch.optim"):
        return "the optimizer's step is not one of torch's own"
    if any(group.get("differentiable") for group in groups):
        return "the optimizer is differentiable"
    if form == "fused" and (why := why_gradients_unfit(optimizer)) is not None:
        return why
    forms = {name: name == form for name in FORMS}
    distinct = {  # rates of layers differ, but not in kind
        str([{name: value for name, value in group.items() if name != "params" and type(value) is not float},
             {(weight.device, weight.dtype) for weight in group["params"]}]): group
        for group in groups
    }  # fmt: skip
    try:
        trial = maker([{**one, **forms, "params": _like(one["params"])} for one in distinct.values()], lr=1e-3)
        with torch.no_grad():  # the step itself, without the hooks that torch and we put around it
            step(trial)
    except Exception as error:  # noqa: BLE001 - whatever torch, or a kernel that is missing, raises
        return f"its {form} form fails here ({type(error).__name__}: {error})"
    return None


def _like(weights: list[torch.Tensor]) -> list[torch.Tensor]:
    """Weights of one element with a gradient, one for each device and type among some weights."""
    import torch

    made = [
        torch.zeros(1, device=device, dtype=dtype) for device, dtype in {(one.device, one.dtype) for one in weights}
    ]
    for weight in made:
        weight.requires_grad_().grad = torch.zeros_like(weight)
    return made


def why_gradients_unfit(optimizer: Optimizer) -> str | None:
    """Why the gradients of a step do not suit torch's fused form; None if they do, or if there are none yet."""
    if any(weight.grad is not None and weight.grad.is_sparse for weight in weights_of(optimizer)):
        return "some gradients are sparse"
    if _has_late_weights(optimizer):
        return (
            "fused SGD with momentum fails if weights without gradients train later; give it only those that train now"
        )
    return None


def is_deterministic() -> bool:
    """Whether the user's code asks torch for deterministic results."""
    import torch

    return torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled()


def _has_late_weights(optimizer: Optimizer) -> bool:
    """Whether momentum begins later for some weights than for others, if ever, as in layers that are frozen at first.

    Torch's fused SGD fails at the step that begins it. After a step, momentum shows which weights have begun; before
    the first one, gradients do. Without any, weights that are frozen now count as later ones.
    """
    groups = [group for group in optimizer.param_groups if "fused" in group and group.get("momentum")]
    weights = [weight for group in groups for weight in group["params"]]
    begun = [weight for weight in weights if optimizer.state.get(weight, {}).get("momentum_buffer") is not None]
    begun = begun or [weight for weight in weights if weight.grad is not None]
    begun = begun or [weight for weight in weights if weight.requires_grad]
    return 0 < len(begun) < len(weights)


def _counts_on_device(group: dict[str, Any]) -> bool:
    """Whether a form counts its steps on the device."""
    return bool(group.get("fused") or group.get("capturable"))


def _recast(optimizer: Optimizer) -> None:
    """Moves an optimizer's state to where its form needs it, in place: schedulers and others hold its groups.

    Steps are counted on the host unless the form counts on the device. Otherwise torch would leave the counts on the
    device, and wait for it once for each weight.
    """
    import torch

    for group in optimizer.param_groups:
        for weight in (weight for weight in group["params"] if weight in optimizer.state):
            state = optimizer.state[weight]
            for name, value in state.items():
                if not isinstance(value, torch.Tensor):
                    continue
                if name == "step":
                    state[name] = value.to(weight.device, torch.float32) if _counts_on_device(group) else value.cpu()
                elif value.shape == weight.shape:
                    state[name] = value.to(weight.device)


def form_of(_model: nn.Module | None, optimizer: Optimizer | None, *_: object) -> str | None:
    """The form of an optimizer's groups: ``fused``, ``foreach``, ``default``; ``several`` where they differ."""
    if optimizer is None:
        return None
    forms = {
        next((form for form in ("fused", "foreach") if group.get(form)), "default") for group in optimizer.param_groups
    }
    return forms.pop() if len(forms) == 1 else "several"
