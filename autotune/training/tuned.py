"""Applies a TrainConfig to torch: the same functions serve the bursts and the user's own training.

That is what makes a measured gain come true: there is no second implementation that could differ.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import types
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader, Dataset

from autotune.errors import ConfigError
from autotune.knobs.config import TrainConfig
from autotune.results.result import Result
from autotune.training.differences import comparable
from autotune.workload.batches import MicroBatches, move
from autotune.workload.fingerprint import length_of, model_differences, model_facts

if TYPE_CHECKING:
    from torch.optim import Optimizer


_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_TOP_PAD_BYTES = 256 * 2**20
_SDPA = {
    "math": SDPBackend.MATH, "flash_attention": SDPBackend.FLASH_ATTENTION,
    "efficient_attention": SDPBackend.EFFICIENT_ATTENTION, "cudnn_attention": SDPBackend.CUDNN_ATTENTION,
}  # fmt: skip
Model = TypeVar("Model", bound=nn.Module)


class Tuned:
    """A TrainConfig at work.

    Attributes:
        config: The configuration.
        device: The device to train on.
        result: What it came from, if it was loaded.
        source: The file of that.
        strict: Whether another model or optimizer than the measured one is an error.
    """

    def __init__(
        self,
        config: TrainConfig,
        *,
        device: str | torch.device = "cpu",
        result: Result | None = None,
        source: str = "",
        strict: bool = False,
    ) -> None:
        self.config = config
        self.device = torch_device(device)
        self.result = result
        self.source = source
        self._compared = False
        self.strict = strict

    @property
    def batch_size(self) -> int:
        """Samples of one micro-step."""
        return self.config.batch_size

    @property
    def accumulation_steps(self) -> int:
        """Micro-steps of one optimizer step."""
        return self.config.accumulation_steps

    def dataloader_kwargs(self) -> dict[str, Any]:
        """The keyword arguments of ``DataLoader`` that were tuned."""
        config = self.config
        return {
            "batch_size": config.batch_size,
            "num_workers": config.num_workers,
            "prefetch_factor": config.prefetch_factor,
            "pin_memory": config.pin_memory,
            "persistent_workers": config.persistent_workers,
        }

    def dataloader(self, dataset: Dataset[Any], **kwargs: Any) -> DataLoader[Any]:
        """A ``DataLoader`` with the tuned settings; keyword arguments go to ``DataLoader`` and win.

        A compiled model gets no incomplete last batch (unless you pass ``drop_last``): another shape would
        compile again.
        """
        settings = self.dataloader_kwargs() | kwargs
        if settings["num_workers"] == 0:  # yours, to debug in one process: what was tuned for workers does not apply
            unused = {"prefetch_factor", "persistent_workers"} - kwargs.keys()
            settings = {name: value for name, value in settings.items() if name not in unused}
        if kwargs.get("batch_sampler") is not None:
            del settings["batch_size"]
        elif self.config.compile_mode is not None and settings["batch_size"] is not None:
            source = kwargs.get("sampler")
            length = length_of(dataset if source is None else source)
            settings.setdefault("drop_last", length is None or length >= settings["batch_size"])
        return DataLoader(dataset, **settings)

    def prepare(self, model: Model, optimizer: Optimizer | None = None) -> tuple[Model, Optimizer | None]:
        """Moves, lays out and compiles the model, and switches the optimizer's implementation, in place.

        Process-wide settings (threads, allocator, TF32, cuDNN) are set too. State that the optimizer has already
        follows the parameters, and so does a checkpoint that it loads later.

        Raises:
            ConfigError: When the optimizer has no such implementation; with `strict`, when another model or optimizer
                was measured, which is else warned of.
        """
        self.compare_workload(model, optimizer)
        self.apply_process_settings()
        model.to(self.device)
        if self.config.memory_format == "channels_last":
            _lay_out_channels_last(model)
        if optimizer is not None:
            _set_implementation(optimizer, self.config.optimizer_impl)
            if optimizer.state:  # moves state that was made or loaded before the parameters moved
                optimizer.load_state_dict(optimizer.state_dict())
        if self.config.sdpa_backend != "default":
            _restrict_attention(model, _SDPA[self.config.sdpa_backend])
        if self.config.compile_mode is not None:
            _compile(model, self.config.compile_mode)
        return model, optimizer

    def accumulate(self, loader: Iterable[Any]) -> Iterator[MicroBatches]:
        """Groups of micro-batches, one group an optimizer step; each batch is moved when it is drawn.

        With a sized loader the last group is as long as what is left, and its ``len()`` says so, for
        ``loss / len(micro_batches)``.
        """
        batches = iter(loader)
        left = length_of(loader) or 0
        while True:
            # Unsized, or more than were told (several workers may each end with an incomplete batch): full groups.
            size = min(self.accumulation_steps, left) or self.accumulation_steps
            group = MicroBatches(batches, size, self.to_device)
            if not group.has_first:
                return
            yield group
            group.finish()
            left = max(0, left - size)

    def to_device(self, batch: Any) -> Any:
        """The batch on the device: tensors in mappings, sequences and dataclasses; anything with ``.to``."""
        config = self.config
        channels_last = config.memory_format == "channels_last"
        return move(batch, self.device, non_blocking=config.non_blocking, channels_last=channels_last)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """``torch.autocast`` for the tuned precision; does nothing for fp32 and tf32."""
        if self.config.precision not in _HALF:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=_HALF[self.config.precision])

    def scaler(self, **kwargs: Any) -> torch.amp.GradScaler:
        """A ``GradScaler``, enabled for fp16 only; keyword arguments such as ``growth_interval`` go to it."""
        return torch.amp.GradScaler(self.device.type, enabled=self.config.precision == "fp16", **kwargs)

    def compare_workload(self, model: nn.Module, optimizer: Optimizer | None) -> None:
        """Warns when another model or optimizer was measured; with `strict` it raises a `ConfigError`.

        Only the first model is looked at: a second one, such as a teacher, was not measured.
        """
        measured = self.result.workload.model if self.result is not None else None
        if self.result is None or measured is None or self._compared or not comparable(model, self.result):
            return
        self._compared = True
        if differences := model_differences(measured, model_facts(model, optimizer)):
            told = (
                f"{self.source} was measured with another workload ({'; '.join(differences)}): expect another gain; "
                f"'autotune check {self.source} --model TARGET' tells what it is"
            )
            if self.strict:
                raise ConfigError(f"{told}; tune this workload, or load without strict")
            warnings.warn(told, stacklevel=3)

    def apply_process_settings(self) -> None:
        """Sets what holds for the whole process: threads, allocator, TF32, cuDNN. Calling it again does no harm."""
        if self.config.num_threads is not None:
            torch.set_num_threads(self.config.num_threads)
        if self.config.precision == "tf32":
            _allow_tf32()
        if self.config.cudnn_benchmark:
            torch.backends.cudnn.benchmark = True
        if self.config.allocator == "tuned":
            tune_allocator(self.device)


def torch_device(device: str | torch.device) -> torch.device:
    """A device that exists here; ``rocm`` is torch's ``cuda``.

    Raises:
        ConfigError: When this machine or this build of torch has no such device.
    """
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    try:
        wanted = torch.device("cuda" if str(device) == "rocm" else device)
    except RuntimeError:  # not a word that torch knows
        wanted = None
    exists = wanted is not None and available.get(wanted.type, False)
    if wanted is None or not exists or (wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count()):
        here = ", ".join(name for name, there in available.items() if there)
        raise ConfigError(
            f"the device {str(device)!r} was asked for, but torch finds only {here}; pass device= or --device"
        )
    return wanted


def tune_allocator(device: torch.device) -> None:
    """Makes the allocator keep its memory: growing segments on CUDA, no mmap and no trimming in glibc's malloc.

    Without it, glibc serves every large tensor by a fresh mmap, whose pages fault in one by one.
    """
    if device.type == "cuda":
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    elif device.type == "cpu" and sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:  # other C libraries, such as musl, have none
            mallopt(_M_MMAP_MAX, 0)
            mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
            mallopt(_M_TOP_PAD, _TOP_PAD_BYTES)


def _allow_tf32() -> None:
    """TF32 for matmul and convolution.

    By the older interface on purpose: after the newer one alone (``fp32_precision``), reading the matmul precision, as
    Inductor does, raises; after this one both can be read, whichever of them the user's code has set before.
    """
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True


def _lay_out_channels_last(model: nn.Module) -> None:
    """Channels-last for what has four dimensions; ``model.to(memory_format=…)`` would refuse a model with five."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dim() == 4:
            tensor.data = tensor.data.to(memory_format=torch.channels_last)
            if tensor.grad is not None:
                tensor.grad = tensor.grad.to(memory_format=torch.channels_last)


def _compile(model: nn.Module, mode: str) -> None:
    """Compiles the model's call in place, so that ``state_dict()`` keeps its keys.

    This is ``nn.Module.compile`` but for the function in between: torch does not trace functions of its own files, so a
    model whose class is torch's (``nn.Sequential``) would silently run eagerly.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return model._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    model._compiled_call_impl = torch.compile(call, mode=mode)


def _set_implementation(optimizer: Optimizer, implementation: str) -> None:
    """Switches an optimizer to its foreach or fused form, as if it had been made so, checkpoints included."""
    chosen = {}
    if implementation != "default":
        if implementation not in optimizer.defaults:
            raise ConfigError(
                f"optimizer_impl={implementation} was asked for, but {type(optimizer).__name__} has no such form; "
                "use optimizer_impl=default"
            )
        forms = {"foreach": implementation == "foreach", "fused": implementation == "fused"}
        chosen = {name: on for name, on in forms.items() if name in optimizer.defaults}
        optimizer._step_supports_amp_scaling = implementation == "fused"  # type: ignore[attr-defined]
    for settings in (optimizer.defaults, *optimizer.param_groups):
        settings.update(chosen)

    def choose(_: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
        return {**saved, "param_groups": [{**group, **chosen} for group in saved["param_groups"]]}

    optimizer.register_load_state_dict_pre_hook(choose)
    optimizer.register_load_state_dict_post_hook(_lay_out_state)


def _lay_out_state(optimizer: Optimizer) -> None:
    """Gives state the strides of its parameter: the fused form pairs their elements by address, on trust."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            like_it = isinstance(value, torch.Tensor) and value.shape == parameter.shape
            if like_it and value.stride() != parameter.stride():
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _restrict_attention(model: nn.Module, backend: SDPBackend) -> None:
    """Lets scaled dot-product attention inside this model use one backend, with the math one to fall back on."""
    forward = model.forward
    own = forward.__func__ if isinstance(forward, types.MethodType) and forward.__self__ is model else None

    def forward_with_backend(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with sdpa_kernel([backend, SDPBackend.MATH], set_priority=True):
            return forward(*args, **kwargs) if own is None else own(self, *args, **kwargs)

    # A method of the model: a deep copy, such as an average of the weights, gets its own.
    model.forward = types.MethodType(forward_with_backend, model)
