"""How torch is told what a knob says: the same functions serve bursts, your own training, and unchanged scripts."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import inspect
import os
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from .blocks import no_cache_in_training, recomputed, repeated_blocks, without_cache
from .layout import follow_weights, lay_out  # noqa: F401 - the second is called by its name, as those below

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

HALF = ("bf16", "fp16")
"""Precisions of 16 bits: autocast computes in them."""
GRAPHED = ("reduce-overhead", "max-autotune", "cudagraphs")
"""Modes that replay CUDA graphs."""
OWN_MODES = ("cudagraphs", "blocks", "loss")
"""Modes that are none of Inductor's: CUDA graphs of eager kernels, a backend of torch's own; and the default mode for
each repeated block, rather than for the whole model, or for the loss with the model in it."""
_RECOMPILES = 8
"""Torch's own limit (`torch._dynamo.config.recompile_limit`), above which it goes on eagerly."""
_WITHIN = "_within_by_autotune"  # attribute of a forward: names of what was put around it
_attention = contextlib.ExitStack()
"""Leaves the restriction of attention that is in force."""
atexit.register(_attention.close)
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4  # of glibc's malloc.h
_TOP_PAD_BYTES = 256 * 2**20


class Knobs(Protocol):
    """The knobs of a config that models are told of."""

    @property
    def accumulation_steps(self) -> int:
        """Micro-steps of an optimizer step."""

    @property
    def compile_mode(self) -> str | None:
        """Of torch.compile; None: eager."""

    @property
    def fp8_linear(self) -> bool:
        """Whether linear layers multiply in FP8."""

    @property
    def memory_format(self) -> str:
        """How images lie in memory."""

    @property
    def precision(self) -> str:
        """In which matrices are multiplied."""

    @property
    def checkpointing(self) -> str:
        """What is computed again in backward, rather than kept."""


def torch_dtype(precision: str) -> torch.dtype:
    """The type that matrices are multiplied in; tf32 is a way to multiply fp32."""
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """``torch.autocast``; does nothing for fp32 and tf32."""
    import torch

    return torch.autocast(device.type, dtype=torch_dtype(precision)) if precision in HALF else contextlib.nullcontext()


def matmul_precision() -> str | None:
    """What the older interface says; None where torch refuses to, the newer one having been used as well."""
    import torch

    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def set_tf32(precision: str, device: torch.device) -> None:
    """TF32 for matmul and convolution, or none for matmul; convolutions have it by torch's own default.

    Beside half precision, what is left in fp32 computes as the user's module has set it.

    By the older interface on purpose: after the newer one alone (``fp32_precision``), reading the matmul precision, as
    Inductor does, raises; after this one both can be read, whichever of them the user's code has set before.
    """
    import torch

    if precision == "tf32":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
    elif precision == "fp32" and device.type == "cuda" and matmul_precision() != "highest":
        torch.set_float32_matmul_precision("highest")


def multiply_in_fp8(model: nn.Module, config: Knobs) -> None:
    """Puts torchao's linear layers, which multiply in FP8, in the place of a model's own; their weights stay theirs.

    With a scale for each tensor, found anew in each product, so that there is no state besides the weights. Sizes of
    layers must be multiples of 16, as `torch._scaled_mm` asks; the samples of a batch are padded to one. Classes that
    are derived from `nn.Linear` stay, since others may read their weights past their forward.

    Raises:
        ImportError: There is no torchao.
    """
    if not config.fp8_linear:
        return
    from torch import nn
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    def fits(layer: nn.Module, name: str) -> bool:
        if name and type(layer) is nn.Linear:  # a model that is one layer has no name, nor a place to put another
            return layer.in_features % 16 == layer.out_features % 16 == 0
        return False

    convert_to_float8_training(model, module_filter_fn=fits, config=Float8LinearConfig(pad_inner_dim=True))


def set_threads(count: int | None, _: torch.device) -> None:
    """CPU threads of an operation; None leaves what is."""
    if count is not None:
        import torch

        torch.set_num_threads(count)


def let_cudnn_search(on: bool, device: torch.device) -> None:
    """Whether cuDNN tries its algorithms for each convolution."""
    if on or device.type == "cuda":
        import torch

        torch.backends.cudnn.benchmark = on


def set_allocator(allocator: str, device: torch.device) -> None:
    """Tunes the allocator where that is wanted."""
    if allocator == "tuned":
        tune_allocator(device)


def tune_allocator(device: torch.device) -> None:
    """Makes the allocator keep its memory: growing segments on CUDA, no mmap and no trimming in glibc's malloc.

    Without it, glibc serves every large tensor by a fresh mmap, whose pages fault in one by one.
    """
    if device.type == "cuda":
        import torch

        if torch.version.hip is None:
            kept = [one for one in asked_of_allocator() if not one.startswith("expandable_segments")]
            _tell_allocator(",".join([*kept, "expandable_segments:True"]))
    elif device.type == "cpu" and sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:  # other C libraries, such as musl, have none
            mallopt(_M_MMAP_MAX, 0)
            mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
            mallopt(_M_TOP_PAD, _TOP_PAD_BYTES)


def asked_of_allocator() -> list[str]:
    """The settings that the environment asks of CUDA's allocator, by the newer variable or the older."""
    asked = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    return [setting.strip() for setting in asked.split(",") if setting.strip()]


def _tell_allocator(settings: str) -> None:
    import torch

    tell = getattr(torch._C, "_accelerator_setAllocatorSettings", None)  # since 2.10; the other one warns there
    (tell or torch.cuda.memory._set_allocator_settings)(settings)


def compile_model(model: nn.Module, config: Knobs) -> None:
    """Compiles the model's call in place, or the calls of its repeated blocks, so that ``state_dict()`` keeps its keys.

    Blocks that are alike share their compiled code, which torch finds by what it has compiled before.
    """
    mode = config.compile_mode
    if mode is None:
        return
    if mode != "blocks":
        keep_gradients(model, config)
        # In the loss the model is compiled as a part of it, and by itself wherever else it is called.
        own = {"cudagraphs": {"backend": "cudagraphs"}, "loss": {}}
        _compile_call(model, **own.get(mode, {"mode": mode}))
        return
    for part in without_cache(model):
        wrap_forward(part, no_cache_in_training)
    for number, group in enumerate(repeated_blocks(model)):
        for block in group:
            _compile_call(block, f"call_block_{number}", **_limit_of(group))


def compile_loss(loss: Callable[..., Any], config: Knobs) -> Callable[..., Any]:
    """A function of a model and a batch, compiled with the model in it; as it is, unless that is the mode."""
    if config.compile_mode != "loss":
        return loss
    import torch

    def call(*args: Any, **kwargs: Any) -> Any:
        return loss(*args, **kwargs)  # an object that is called, or a partial one, cannot be compiled itself

    return torch.compile(call)


def _compile_call(model: nn.Module, name: str = "call", **how: Any) -> None:
    """Compiles what a module's call does.

    This is ``nn.Module.compile`` but for the function in between: torch does not trace functions of its own files, so a
    model whose class is torch's (``nn.Sequential``) would silently run eagerly. Its compiled code belongs to the
    function's code, of which there is one for each name: blocks of another kind are no reason to compile for sizes that
    vary. What `torch.jit.trace` records, for an export say, is the model's own call: it refuses compiled code.
    """
    import torch

    def call(*args: Any, **kwargs: Any) -> Any:
        return model._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    def chosen(*args: Any, **kwargs: Any) -> Any:
        return (call if torch.jit.is_tracing() else compiled)(*args, **kwargs)  # type: ignore[attr-defined, no-untyped-call]

    call.__code__ = _code(call.__code__, name)
    compiled = torch.compile(call, **how)
    model._compiled_call_impl = chosen


@functools.cache
def _code(code: types.CodeType, name: str) -> types.CodeType:
    return code.replace(co_name=name)


def _limit_of(group: list[nn.Module]) -> dict[str, int]:
    """Room to compile each block of a group on its own, should torch tell them apart; newer versions take it."""
    import torch

    takes_it = "recompile_limit" in inspect.signature(torch.compile).parameters
    return {"recompile_limit": max(_RECOMPILES, 2 * len(group))} if takes_it else {}


def checkpoint_blocks(model: nn.Module, config: Knobs) -> None:
    """Lets the repeated blocks keep their inputs only: in backward, each is computed again with the same dropout."""
    if config.checkpointing != "blocks":
        return
    for part in without_cache(model):
        wrap_forward(part, no_cache_in_training)
    for group in repeated_blocks(model, recomputable=True):
        for block in group:
            wrap_forward(block, recomputed)


def keep_gradients(model: nn.Module, config: Knobs) -> None:
    """Lets a model's gradients live through the micro-batches of a step, where a CUDA graph is replayed for each."""
    if config.compile_mode in GRAPHED and config.accumulation_steps > 1:
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(_own_gradient)  # type: ignore[no-untyped-call]


def _own_gradient(parameter: torch.Tensor) -> None:
    """Copies a gradient out of the memory of a CUDA graph, which the next micro-batch overwrites.

    The first micro-batch of a step leaves the graph's own tensor as the gradient, and torch refuses to add to it once
    the graph has run again. The copy is kept until the gradients are set to None; the next micro-batches add to it.
    """
    gradient = parameter.grad
    if gradient is not None and not getattr(gradient, "_is_own_copy", False):
        parameter.grad = gradient.clone()
        parameter.grad._is_own_copy = True  # type: ignore[attr-defined]  # lives as long as the tensor does


def restrict_attention(backend: str, _: torch.device) -> None:
    """Lets scaled dot-product attention use one backend, with the math one to fall back on.

    For the whole process: what is computed again in backward, under checkpointing, must use the same one. Torch keeps
    compiled code on disk by what was asked for, in which this does not show: a tag tells it apart.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    _attention.close()
    if backend != "default":
        chosen = getattr(SDPBackend, backend.upper())
        _attention.enter_context(sdpa_kernel([chosen, SDPBackend.MATH], set_priority=True))
        settings = torch.compiler.config
        _attention.callback(setattr, settings, "cache_key_tag", settings.cache_key_tag)
        settings.cache_key_tag += f" attention={backend}"


def wrap_forward(model: nn.Module, around: Any) -> None:
    """Puts ``around(forward, *args, **kwargs)`` in the place of a model's own forward; once, also of a copy's."""
    forward = model.forward
    within = getattr(forward, _WITHIN, ())
    if around.__qualname__ in within:  # a deep copy brings it along
        return
    own = forward.__func__ if isinstance(forward, types.MethodType) and forward.__self__ is model else None

    def wrapped(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return around(forward, *args, **kwargs) if own is None else around(own, self, *args, **kwargs)

    if own is not None:  # who reads the signature, as transformers do, finds the model's own
        functools.update_wrapper(wrapped, own)
    setattr(wrapped, _WITHIN, (*within, around.__qualname__))
    # A method of the model: a deep copy, such as an average of the weights, gets its own.
    model.forward = types.MethodType(wrapped, model)


def switch_optimizer(optimizer: Optimizer, implementation: str) -> None:
    """Switches an optimizer to its foreach or fused form, as if it had been made so, checkpoints included.

    Raises:
        ValueError: It has no such form.
    """
    chosen = {}
    if implementation != "default":
        if implementation not in optimizer.defaults:
            raise ValueError(f"{type(optimizer).__name__} has no such form")
        forms = {"foreach": implementation == "foreach", "fused": implementation == "fused"}
        chosen = {name: on for name, on in forms.items() if name in optimizer.defaults}
        optimizer._step_supports_amp_scaling = implementation == "fused"  # type: ignore[attr-defined]
    for settings in (optimizer.defaults, *optimizer.param_groups):
        settings.update(chosen)

    def choose(_: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
        return {**saved, "param_groups": [{**group, **chosen} for group in saved["param_groups"]]}

    optimizer.register_load_state_dict_pre_hook(choose)
    follow_weights()
    if optimizer.state:  # moves state that was made or loaded before the parameters moved
        optimizer.load_state_dict(optimizer.state_dict())


def autocast_forward(model: nn.Module, config: Knobs) -> None:
    """Lets a model that nobody else does it for compute in half precision; its loss is computed in full precision."""
    if config.precision not in HALF:
        return
    import torch

    device = next((weight.device for weight in model.parameters()), torch.device("cpu"))

    def in_half(forward: Any, *args: Any, **kwargs: Any) -> Any:
        with autocast(config.precision, device):
            out = forward(*args, **kwargs)
        return _in_fp32(out)

    wrap_forward(model, in_half)


def _in_fp32(out: Any) -> Any:
    """What a model returned, its tensors of half precision in fp32."""
    import torch

    if isinstance(out, torch.Tensor):
        return out.float() if out.dtype in {torch.bfloat16, torch.float16} else out
    if isinstance(out, tuple) and hasattr(out, "_fields"):
        return type(out)(*map(_in_fp32, out))
    if isinstance(out, (list, tuple)):
        return type(out)(map(_in_fp32, out))
    if isinstance(out, dict):  # also what transformers return: their own classes keep attributes and items alike
        for name, part in list(out.items()):
            if isinstance(changed := _in_fp32(part), torch.Tensor):
                out[name] = changed
    return out
