"""A TrainConfig as a plain PyTorch training loop: what a careful user would write who has only the config's values.

Nothing of autotune's own loop or of `training.tuned` is used, only the registry's names of a DataLoader's arguments: a
mistake there shows up as a difference to this.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset, default_collate

from autotune import TrainConfig, Workload
from autotune.knobs.registry import loader_arguments
from benchmarks.stopwatch import OnStep

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
"""Of glibc's malloc.h."""


class Loop:
    """Trains a workload under a config, epoch after epoch; `set_process` comes before it, and before the workload.

    Args:
        workload: Freshly built; its model is changed in place.
        config: How to train it.
        device: ``cpu``, ``cuda`` or ``mps``.

    Attributes:
        epochs: Whole epochs so far.
        batches: Micro-batches so far.
        last_loss: Of the last micro-batch.
    """

    def __init__(self, workload: Workload, config: TrainConfig, device: str) -> None:
        self.workload = workload
        self.config = config
        self.device = torch.device(device)
        model = workload.model.to(self.device)
        if config.memory_format == "channels_last":
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = make_optimizer(workload, config.optimizer_impl)
        model.train()
        with_loss = config.compile_mode == "loss"
        self.model = compiled(checkpointed(model, config.checkpointing), None if with_loss else config.compile_mode)
        self.loss = torch.compile(workload.loss) if with_loss else workload.loss
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.precision == "fp16")
        collates_once = config.data_placement != "loader"
        self.loader: Iterable[tuple[int, Any]] = (
            Collated(workload, config, self.device) if collates_once else make_loader(workload, config)
        )
        self.epochs = 0
        self.batches = 0
        self.last_loss = torch.tensor(float("nan"))

    def train(self, on_step: OnStep) -> None:
        """Trains until `on_step`, which gets the samples of each optimizer step, says that it is enough."""
        for samples in self.steps():
            if on_step(samples):
                return

    def steps(self) -> Iterator[int]:
        """Optimizer steps without end; yields the samples of each. An epoch's last step takes what is left of it.

        Raises:
            RuntimeError: When an epoch holds no batch.
        """
        while True:
            samples, accumulated, batches_before = 0, 0, self.batches
            for count, batch in self.loader:
                self.backward(batch, first=accumulated == 0)
                samples += count
                accumulated += 1
                if accumulated == self.config.accumulation_steps:
                    self.update()
                    yield samples
                    samples, accumulated = 0, 0
            if accumulated:
                self.update()
                yield samples
            if self.batches == batches_before:
                raise RuntimeError("the loader yields no batch")
            self.epochs += 1

    def backward(self, batch: Any, *, first: bool) -> None:
        """One micro-step: the loss of a batch and its gradients; `first` in an optimizer step."""
        batch = self.to_device(batch)
        with precision(self.config, self.device), attention(self.config):
            loss = self.loss(self.model, batch)
        if first and self.workload.keeps_gradients:
            self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss / self.config.accumulation_steps).backward()  # type: ignore[no-untyped-call]
        self.last_loss = loss.detach()
        self.batches += 1

    def update(self) -> None:
        """The optimizer step that the accumulated gradients are for."""
        if self.workload.clip_grad_norm is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.workload.model.parameters(), self.workload.clip_grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if not self.workload.keeps_gradients:
            self.optimizer.zero_grad(set_to_none=True)

    def to_device(self, batch: Any) -> Any:
        """A batch of tensors, in lists, tuples and dicts, on the device."""
        if isinstance(batch, dict):
            return {name: self.to_device(part) for name, part in batch.items()}
        if isinstance(batch, (list, tuple)):
            parts = [self.to_device(part) for part in batch]
            return type(batch)(*parts) if hasattr(batch, "_fields") else parts
        if not hasattr(batch, "to"):
            return batch
        moved = batch.to(self.device, non_blocking=self.config.non_blocking)
        images = isinstance(moved, torch.Tensor) and moved.dim() == 4 and moved.is_floating_point()
        if images and self.config.memory_format == "channels_last":
            moved = moved.contiguous(memory_format=torch.channels_last)
        return moved

    def synchronize(self) -> None:
        """Waits until the device has done all that it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()


def compiled(model: nn.Module, mode: str | None) -> Any:
    """The model, compiled in the config's way."""
    if mode == "cudagraphs":
        return torch.compile(model, backend="cudagraphs")
    if mode == "blocks":
        for container, name, block in blocks(model):
            container._modules[name] = torch.compile(block)  # type: ignore[assignment]
        return model
    return torch.compile(model, mode=mode) if mode is not None else model


def checkpointed(model: nn.Module, checkpointing: str) -> nn.Module:
    """The model, whose blocks are computed again in backward where the config says so."""
    if checkpointing == "blocks":
        for _, _, block in blocks(model):
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    return model


def blocks(model: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    """Layers of one class that lie in a list of theirs, each with the list and its name there."""
    lists = [part for part in model.modules() if isinstance(part, (nn.ModuleList, nn.Sequential)) and len(part) > 1]
    return [
        (part, name, block)
        for part in lists
        if len({type(block) for block in part}) == 1 and any(True for _ in part[0].children())
        for name, block in part.named_children()
    ]


class Counted:
    """Collates to ``(samples, batch)``; a class, so that workers that are spawned can unpickle it."""

    def __init__(self, workload: Workload) -> None:
        self.collate = workload.collate_fn or default_collate

    def __call__(self, samples: list[Any]) -> tuple[int, Any]:
        """A batch with how many samples it holds."""
        return len(samples), self.collate(samples)


class Collated:
    """The whole data set as one batch, in memory or on the device; an epoch's batches are rows of it.

    Args:
        workload: Whose data set is read, once.
        config: Says where it lies, and how large batches are.
        device: That is trained on.
    """

    def __init__(self, workload: Workload, config: TrainConfig, device: torch.device) -> None:
        dataset: Any = workload.dataset
        self._samples = len(dataset)
        _, whole = Counted(workload)([dataset[index] for index in range(self._samples)])
        self._device = device if config.data_placement == "device" else torch.device("cpu")
        self._whole = _each_tensor(whole, lambda tensor: tensor.to(self._device))
        self._sampler = workload.sampler
        self._batch_size = config.batch_size
        self._drops = config.compile_mode is not None
        self._pins = config.pin_memory and device.type == "cuda"

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        order = torch.randperm(self._samples) if self._sampler is None else torch.tensor(list(self._sampler))
        for rows in torch.split(order, self._batch_size):
            if not self._drops or len(rows) == self._batch_size:
                chosen = rows.to(self._device)
                batch = _each_tensor(self._whole, lambda tensor: tensor[chosen])  # noqa: B023 - used at once
                yield len(rows), _each_tensor(batch, torch.Tensor.pin_memory) if self._pins else batch


def _each_tensor(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A batch of tensors, in lists, tuples and dicts, each of them changed."""
    if isinstance(batch, dict):
        return {name: _each_tensor(part, change) for name, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        parts = [_each_tensor(part, change) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else parts
    return change(batch)


def make_loader(workload: Workload, config: TrainConfig) -> DataLoader[Any]:
    """The DataLoader; a compiled model gets full batches only, since another shape would compile again."""
    return DataLoader(
        workload.dataset,
        shuffle=True if workload.sampler is None and not isinstance(workload.dataset, IterableDataset) else None,
        sampler=workload.sampler,
        collate_fn=Counted(workload),
        worker_init_fn=workload.worker_init_fn,
        drop_last=config.compile_mode is not None,
        **loader_arguments(config),
    )


def make_optimizer(workload: Workload, implementation: str) -> torch.optim.Optimizer:
    """The workload's optimizer; made again with ``foreach=True`` or ``fused=True`` where the config says so."""
    params = [parameter for parameter in workload.model.parameters() if parameter.requires_grad]
    optimizer = workload.optimizer(params) if workload.optimizer else torch.optim.AdamW(params)
    if implementation == "default":
        return optimizer
    forms = {"foreach": implementation == "foreach", "fused": implementation == "fused"}
    taken = inspect.signature(type(optimizer)).parameters
    forms = {name: on for name, on in forms.items() if name in taken}
    settings = {name: value for name, value in optimizer.defaults.items() if name in taken}
    groups = [group | forms for group in optimizer.param_groups]
    return type(optimizer)(groups, **(settings | forms))


def precision(config: TrainConfig, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Autocast for bf16 and fp16."""
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(config.precision)
    return torch.autocast(device.type, dtype=half) if half else contextlib.nullcontext()


def attention(config: TrainConfig) -> contextlib.AbstractContextManager[Any]:
    """The chosen kernel of scaled dot-product attention, with the plain one for what it cannot do."""
    if config.sdpa_backend == "default":
        return contextlib.nullcontext()
    chosen = getattr(SDPBackend, config.sdpa_backend.upper())
    return sdpa_kernel([chosen, SDPBackend.MATH], set_priority=True)


def set_process(config: TrainConfig, device: torch.device) -> None:
    """What holds for the whole process: threads, allocator, TF32, cuDNN's choice of kernels."""
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    if config.precision == "tf32":
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = config.cudnn_benchmark
    if config.allocator == "tuned":
        keep_memory(device)


def keep_memory(device: torch.device) -> None:
    """``allocator=tuned``: growing segments on CUDA; on a CPU with glibc no mmap, no trimming, 256 MiB at a time."""
    if device.type == "cuda":  # read when the first tensor is put there
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    elif sys.platform == "linux":
        libc = ctypes.CDLL("libc.so.6")
        for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 256 * 1024 * 1024)):
            if libc.mallopt(option, value) != 1:
                raise RuntimeError(f"mallopt({option}, {value}) was refused")
