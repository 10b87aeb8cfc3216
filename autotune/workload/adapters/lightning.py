"""Makes a Workload from a LightningModule with its data: the loss is its `training_step`, the optimizer its own.

The module is attached to a real Trainer that never runs, so that a step or `configure_optimizers` can read anything
from ``self.trainer``. `self.log` does nothing in bursts.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from autotune.errors import WorkloadError
from autotune.knobs import Precision
from autotune.torch_settings.naming import length_of
from autotune.torch_settings.undo import put
from autotune.workload.adapters.loaders import baseline, loader_notes, require_loader, workload_parts
from autotune.workload.user_errors import described
from autotune.workload.workload import Workload

MAX_EPOCHS = 1000
"""Lightning's own default, which schedules of learning rates depend on."""
_PRECISIONS: dict[str, Precision] = {"32-true": "fp32", "bf16-mixed": "bf16", "16-mixed": "fp16"}
_TRANSFERS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
_NOT_RUN = (
    "on_train_batch_start", "on_train_batch_end", "on_train_epoch_start", "on_train_epoch_end", "backward",
    "on_before_backward", "on_after_backward", "on_before_zero_grad", "optimizer_zero_grad", "on_before_optimizer_step",
    "optimizer_step", "configure_gradient_clipping", "lr_scheduler_step",
)  # fmt: skip
"""Hooks of a training step that bursts do not call."""


class TrainingStep(nn.Module):
    """Calls a module's `training_step`, so that the whole step is compiled, as in Lightning."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, *arguments: Any) -> Any:
        """The loss in the return value of the step."""
        output = self.module.training_step(*arguments)
        return output.get("loss") if isinstance(output, Mapping) else output

    def to(self, *args: Any, **kwargs: Any) -> TrainingStep:
        """Moves the module by its own method, which keeps its ``device`` up to date."""
        self.module.to(*args, **kwargs)
        return self

    def train(self, mode: bool = True) -> TrainingStep:
        """Keeps the modules' modes, as Lightning does: a frozen part stays in evaluation mode."""
        self.training = mode
        return self


def from_module(package: Any, module: Any, data: Any, trainer: Any, target: str) -> Workload:
    """A Workload from a module and its data.

    Args:
        package: ``lightning.pytorch`` or ``pytorch_lightning``, the package of the module.
        module: The LightningModule.
        data: Its LightningDataModule or its train DataLoader; None when the module has a `train_dataloader`.
        trainer: Defines the baseline: accumulation, precision, clipping. None: Lightning's defaults.
        target: The name for errors.

    Raises:
        WorkloadError: The module steps by itself, has several optimizers, or loads in a way that bursts cannot.
    """
    _check(module, target)
    notes = _trainer_notes(package, trainer)
    trainer = _attach(package, module, data, trainer)
    source, loader = _load(module, data, package)
    parts = require_loader(loader, target, source)
    batches = length_of(parts.loader)
    steps_of_epoch = None if batches is None else math.ceil(batches / trainer.accumulate_grad_batches)
    _make_optimizer(module, trainer, target, steps_of_epoch)  # reports its errors now
    notes += [f"{name}() of {type(module).__name__}" for name in _NOT_RUN if overrides(module, name, package)]
    return Workload(
        TrainingStep(module),
        loss=_loss_of(module, _transfers(module, data, package)),
        optimizer=lambda _: _make_optimizer(module, trainer, target, steps_of_epoch),
        baseline=baseline(
            parts,
            accumulation_steps=trainer.accumulate_grad_batches,
            precision=_precision(trainer, target),
            cudnn_benchmark=torch.backends.cudnn.benchmark,
            non_blocking=True,  # as Lightning copies wherever memory is pinned
        ),
        clip_grad_norm=None if _clips_by_value(trainer) else (trainer.gradient_clip_val or None),
        keeps_gradients=True,  # Lightning drops them between training_step and backward
        name=type(module).__name__,
        notes=(*notes, *loader_notes(parts)),
        **workload_parts(parts),
    )


def overrides(owner: Any, name: str, package: Any) -> bool:
    """Whether a LightningModule or a LightningDataModule overrides a hook."""
    base = package.LightningModule if isinstance(owner, package.LightningModule) else package.LightningDataModule
    return name in vars(owner) or getattr(type(owner), name, None) is not getattr(base, name, None)


def _check(module: Any, target: str) -> None:
    """Raises where the module steps by itself, or takes no batch."""
    name = type(module).__name__
    if not module.automatic_optimization:
        raise WorkloadError(
            f"{target}: expected a LightningModule that leaves its optimizer steps to the trainer, got {name} with "
            "automatic_optimization = False; return an autotune.Workload whose loss does what its step does"
        )
    if "dataloader_iter" in inspect.signature(module.training_step).parameters:
        raise WorkloadError(
            f"{target}: expected training_step(batch, batch_idx), got {name}.training_step(dataloader_iter); "
            "let it take the batch"
        )


def _attach(package: Any, module: Any, data: Any, trainer: Any) -> Any:
    """Attaches the module and its data to a trainer, which holds settings and never trains."""
    from importlib import import_module

    name = package.__name__
    logger = import_module(f"{name}.loggers.logger").DummyLogger()  # answers self.logger.experiment.anything()
    if trainer is None:
        trainer = package.Trainer(
            accelerator="cpu", devices=1, logger=logger, max_epochs=MAX_EPOCHS, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
    trainer.logger = logger
    if trainer.max_epochs is None:
        trainer.fit_loop.max_epochs = MAX_EPOCHS if trainer.max_steps == -1 else -1
    trainer.state.fn = import_module(f"{name}.trainer.states").TrainerFn.FITTING
    trainer.training = True
    trainer.strategy.connect(module)
    given = {"train_dataloaders" if isinstance(data, DataLoader) else "datamodule": data}
    trainer._data_connector.attach_data(module, **given)
    for part in module.modules():
        if isinstance(part, package.LightningModule):
            part.log = part.log_dict = _ignore
    return trainer


def _ignore(*_args: Any, **_kwargs: Any) -> None:
    """Replaces ``self.log``, which needs a running trainer."""


def _load(module: Any, data: Any, package: Any) -> tuple[str, Any]:
    """Prepares and sets up data and module in Lightning's order; returns the loader's origin and the loader."""
    both = [data, module] if isinstance(data, package.LightningDataModule) else [module]
    for part in both:
        part.prepare_data()
    for part in both:
        part.setup("fit")
    module.configure_model()
    if isinstance(data, DataLoader):
        return "build()", data
    return f"{type(both[0]).__name__}.train_dataloader()", both[0].train_dataloader()


def _make_optimizer(module: Any, trainer: Any, target: str, steps_of_epoch: int | None) -> Optimizer:
    """A new optimizer from the module's own `configure_optimizers`, with its schedules.

    Raises:
        WorkloadError: There is not exactly one optimizer.
    """
    configured = module.configure_optimizers()
    optimizers = list(optimizers_in(configured))
    if len(optimizers) != 1:
        got = f"{len(optimizers)} optimizers" if optimizers else described(configured)
        raise WorkloadError(
            f"{target}: expected one optimizer from configure_optimizers(), got {got}; "
            "return an autotune.Workload whose optimizer holds all parameters"
        )
    with contextlib.ExitStack() as stack:
        stack.callback(put(module, "configure_optimizers", lambda: configured))
        trainer.strategy.setup_optimizers(trainer)  # makes self.optimizers() and self.lr_schedulers() work
    trainer.fit_loop.teardown()  # estimated_stepping_batches may have begun to load
    _follow_schedules(optimizers[0], list(trainer.lr_scheduler_configs), steps_of_epoch)
    return optimizers[0]


def _follow_schedules(optimizer: Optimizer, schedules: list[Any], steps_of_epoch: int | None) -> None:
    """Steps the schedules of learning rates after each step of the optimizer, or after each epoch, as Lightning does.

    Args:
        optimizer: The optimizer, whose steps are counted.
        schedules: The schedules; those that follow a metric do not move.
        steps_of_epoch: Optimizer steps of the baseline's epoch; None where its end is not known.
    """
    lengths = {"step": 1, "epoch": steps_of_epoch}
    periods = [
        (entry.scheduler, entry.frequency * length)
        for entry in schedules
        if (length := lengths[entry.interval]) is not None and not entry.reduce_on_plateau
    ]
    numbers = itertools.count(1)

    def follow(*_: Any) -> None:
        number = next(numbers)
        for schedule, period in periods:
            if number % period == 0:
                with contextlib.suppress(ValueError):  # some end with the training they were made for
                    schedule.step()

    if periods:
        optimizer.register_step_post_hook(follow)


def optimizers_in(configured: Any) -> Iterator[Optimizer]:
    """The optimizers in a return value of `configure_optimizers`: one, several, dicts, or with schedulers."""
    if isinstance(configured, Optimizer):
        yield configured
    elif isinstance(configured, Mapping):
        yield from optimizers_in(configured.get("optimizer"))
    elif isinstance(configured, (list, tuple)):
        beside_schedulers = len(configured) == 2 and isinstance(configured[0], (list, tuple))
        for part in configured[0] if beside_schedulers else configured:
            yield from optimizers_in(part)


def _precision(trainer: Any, target: str) -> Precision:
    if trainer.precision not in _PRECISIONS:
        raise WorkloadError(
            f"{target}: expected a Trainer with one of the precisions {', '.join(_PRECISIONS)}, "
            f"got {trainer.precision}; leave the trainer out, or give it one of these"
        )
    return _PRECISIONS[trainer.precision]


def _takes_index(module: Any) -> bool:
    """Whether `training_step` takes the batch's index too."""
    parameters = inspect.signature(module.training_step).parameters.values()
    positional = [p for p in parameters if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}]
    return len(positional) > 1 or any(p.kind is p.VAR_POSITIONAL for p in parameters)


def _transfers(module: Any, data: Any, package: Any) -> list[tuple[str, Callable[..., Any]]]:
    """The hooks that change a batch on its way to the device: the data's own, or else the module's."""
    owners = [data, module] if isinstance(data, package.LightningDataModule) else [module]
    overriding = {name: [owner for owner in owners if overrides(owner, name, package)] for name in _TRANSFERS}
    return [(name, getattr(able[0], name)) for name, able in overriding.items() if able]


def _loss_of(module: Any, transfers: list[tuple[str, Callable[..., Any]]]) -> Callable[[nn.Module, Any], torch.Tensor]:
    """The loss from `training_step`, after the hooks that change the batch; counts the batches."""
    takes_index = _takes_index(module)
    indices = itertools.count()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        index = next(indices)
        if transfers:
            batch = copy.copy(batch)
            device = module.device
            with torch.autocast(device.type, enabled=False):  # Lightning's autocast begins with the step
                for name, hook in transfers:
                    batch = hook(batch, *([device] if name == "transfer_batch_to_device" else []), 0)
        result: torch.Tensor = model(batch, index) if takes_index else model(batch)
        return result

    return loss


def _trainer_notes(package: Any, trainer: Any) -> list[str]:
    """Notes on the user's trainer: its own callbacks, and clipping that bursts cannot do."""
    if trainer is None:
        return []
    kinds = [type(callback) for callback in trainer.callbacks]
    own = f"{package.__name__}."
    notes = [f"the callback {kind.__name__}" for kind in kinds if not kind.__module__.startswith(own)]
    return ["gradient_clip_algorithm='value' of the Trainer", *notes] if _clips_by_value(trainer) else notes


def _clips_by_value(trainer: Any) -> bool:
    return bool(trainer.gradient_clip_val and trainer.gradient_clip_algorithm == "value")
