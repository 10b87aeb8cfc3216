"""Applies a TrainConfig to torch: the same functions serve the bursts and the user's own training.

That is what makes a measured gain come true: there is no second implementation that could differ.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, IterableDataset

from autotune.config import TrainConfig
from autotune.errors import ConfigError
from autotune.result import Result, read_result

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_TOP_PAD_BYTES = 256 * 2**20
_SDPA = {
    "math": SDPBackend.MATH, "flash_attention": SDPBackend.FLASH_ATTENTION,
    "efficient_attention": SDPBackend.EFFICIENT_ATTENTION, "cudnn_attention": SDPBackend.CUDNN_ATTENTION,
}  # fmt: skip
Model = TypeVar("Model", bound=nn.Module)


def load(path: str | Path, *, device: str | torch.device | None = None) -> Tuned:
    """The tuned configuration of a result file, ready to be used in training.

    Args:
        path: A result file.
        device: Where to train; the kind of device that was measured when None.

    Raises:
        ResultFileError: When the file is missing, broken or of another schema.
        ConfigError: When this machine has no such device.
    """
    result = read_result(path)
    return Tuned(result.best.config, device=device or result.constraints.device, result=result)


class Tuned:
    """A TrainConfig at work.

    Attributes:
        config: The configuration.
        device: The device to train on.
        result: The result file that it came from, if any.
    """

    def __init__(
        self, config: TrainConfig, *, device: str | torch.device = "cpu", result: Result | None = None
    ) -> None:
        self.config = config
        self.device = torch_device(device)
        self.result = result

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
        if self.config.compile_mode is not None and "batch_sampler" not in kwargs:
            settings.setdefault("drop_last", _fills_a_batch(dataset, settings["batch_size"]))
        if "batch_sampler" in kwargs:
            settings.pop("batch_size", None)
        return DataLoader(dataset, **settings)

    def prepare(self, model: Model, optimizer: Optimizer | None = None) -> tuple[Model, Optimizer | None]:
        """Moves, lays out and compiles the model, and switches the optimizer's implementation, in place.

        Process-wide settings (threads, allocator, TF32, cuDNN, attention backend) are set too. The optimizer may
        have been made before or after; state that it has already follows the parameters.

        Raises:
            ConfigError: When the optimizer has no such implementation, or attention no such backend.
        """
        self.apply_process_settings()
        model.to(self.device)
        if self.config.memory_format == "channels_last":
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
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
        try:
            left: int | None = len(loader)  # type: ignore[arg-type]
        except TypeError:
            left = None
        while left is None or left > 0:
            size = self.accumulation_steps if left is None else min(self.accumulation_steps, left)
            group = MicroBatches(batches, size, self.to_device)
            if not group.has_first:
                return
            yield group
            group.finish()
            if left is not None:
                left -= size

    def to_device(self, batch: Any) -> Any:
        """The batch on the device: tensors in mappings, lists and tuples; anything with ``.to``; the rest as it is."""
        if isinstance(batch, torch.Tensor):
            if batch.dim() == 4 and self.config.memory_format == "channels_last" and batch.is_floating_point():
                return batch.to(self.device, non_blocking=self.config.non_blocking, memory_format=torch.channels_last)
            return batch.to(self.device, non_blocking=self.config.non_blocking)
        if isinstance(batch, Mapping) and not hasattr(batch, "to"):
            moved = {key: self.to_device(value) for key, value in batch.items()}
            return moved if type(batch) is dict else type(batch)(moved)  # type: ignore[call-arg]
        if isinstance(batch, tuple) and hasattr(batch, "_fields"):
            return type(batch)(*(self.to_device(value) for value in batch))
        if isinstance(batch, (list, tuple)):
            return type(batch)(self.to_device(value) for value in batch)
        return batch.to(self.device) if hasattr(batch, "to") else batch

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """``torch.autocast`` for the tuned precision; does nothing for fp32 and tf32."""
        if self.config.precision not in _HALF:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=_HALF[self.config.precision])

    def scaler(self, **kwargs: Any) -> torch.amp.GradScaler:
        """A ``GradScaler``, enabled for fp16 only; keyword arguments such as ``growth_interval`` go to it."""
        return torch.amp.GradScaler(self.device.type, enabled=self.config.precision == "fp16", **kwargs)

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


class MicroBatches:
    """The micro-batches of one optimizer step: iterate once; ``len()`` is how many to expect."""

    def __init__(self, batches: Iterator[Any], size: int, move: Callable[[Any], Any]) -> None:
        self._batches = batches
        self._size = size
        self._move = move
        self._drawn = 0
        # The first is drawn at once: only so is the end of an unsized loader no empty group.
        self._first = next(batches, _END)

    @property
    def has_first(self) -> bool:
        """Whether there is anything in this group."""
        return self._first is not _END

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        while self._drawn < self._size:
            batch = self._first if self._drawn == 0 else next(self._batches, _END)
            self._drawn += 1
            if batch is _END:
                return
            self._first = _END
            yield self._move(batch)

    def finish(self) -> None:
        """Draws what the caller left, so that the next group starts where it should."""
        for _ in self:
            pass


_END = object()


def torch_device(device: str | torch.device) -> torch.device:
    """A device that exists here; ``rocm`` is torch's ``cuda``.

    Raises:
        ConfigError: When this machine or this build of torch has no such device.
    """
    wanted = torch.device("cuda" if str(device) == "rocm" else device)
    available = {
        "cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(),
    }  # fmt: skip
    if not available.get(wanted.type, False):
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
    """TF32 for matmul and convolution, through the one interface that this torch has: mixing two raises."""
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        torch.backends.cudnn.conv.fp32_precision = "tf32"  # type: ignore[attr-defined]
        torch.backends.cudnn.rnn.fp32_precision = "tf32"  # type: ignore[attr-defined]
    else:  # before torch 2.9
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True


def _compile(model: nn.Module, mode: str) -> None:
    """Compiles the model's call in place, so that ``state_dict()`` keeps its keys.

    This is ``nn.Module.compile`` but for the function in between: torch does not trace functions of its own files, so a
    model whose class is torch's (``nn.Sequential``) would silently run eagerly.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return model._call_impl(*args, **kwargs)

    model._compiled_call_impl = torch.compile(call, mode=mode)  # type: ignore[assignment]


def _set_implementation(optimizer: Optimizer, implementation: str) -> None:
    """Switches an optimizer to its foreach or fused form, as if it had been made so."""
    if implementation == "default":
        return
    if implementation not in optimizer.defaults:
        raise ConfigError(f"optimizer_impl={implementation} was asked for, but {type(optimizer).__name__} has none")
    chosen = {"foreach": implementation == "foreach", "fused": implementation == "fused"}
    for settings in (optimizer.defaults, *optimizer.param_groups):
        settings.update({name: value for name, value in chosen.items() if name in settings})
    if implementation == "fused":
        optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]


def _restrict_attention(model: nn.Module, backend: SDPBackend) -> None:
    """Lets scaled dot-product attention inside this model use one backend, with the math one to fall back on."""
    forward = model.forward

    def forward_with_backend(*args: Any, **kwargs: Any) -> Any:
        with sdpa_kernel([backend, SDPBackend.MATH], set_priority=True):
            return forward(*args, **kwargs)

    model.forward = forward_with_backend


def _fills_a_batch(dataset: Dataset[Any], batch_size: int) -> bool:
    """Whether dropping the incomplete batch leaves anything."""
    if isinstance(dataset, IterableDataset):
        return True
    return len(dataset) >= batch_size  # type: ignore[arg-type]
