"""Lightning: keyword arguments of ``Trainer``, a callback that applies the rest, and a DataModule's train loader.

Works with the package ``lightning`` and with ``pytorch_lightning``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from autotune.integrations import common
from autotune.integrations.common import Missing
from autotune.integrations.fabric import placement
from autotune.knobs import framework_arguments
from autotune.torch_settings.undo import put
from autotune.training import live
from autotune.training.tuned import Tuned
from autotune.workload.adapters.loaders import read_loader

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def trainer_kwargs(tuned: Tuned, **yours: Any) -> dict[str, Any]:
    """Keyword arguments of ``Trainer``. Your own are added, and take precedence; your callbacks come first.

    They set accelerator, devices, precision, accumulate_grad_batches and benchmark. `tuned_callback`, which is among
    the callbacks, applies the other knobs. Warns of each knob that Lightning cannot apply.
    """
    words, missing = placement(tuned)
    settings, missing_exchange = common.ddp_settings(tuned)
    missing |= missing_exchange
    if settings:
        package = common.package_of(*_PACKAGES)
        words["strategy"] = importlib.import_module(f"{package}.strategies").DDPStrategy(**settings)
    callbacks = yours.pop("callbacks", None) or []
    callbacks = list(callbacks) if isinstance(callbacks, Sequence) else [callbacks]
    common.tell("Lightning", tuned, missing | common.other_copies(tuned))
    return {
        **words,
        **framework_arguments("lightning", tuned.config),
        "benchmark": tuned.config.cudnn_benchmark or None,  # None leaves the setting unchanged, as bursts did
        **yours,
        "callbacks": [*callbacks, tuned_callback(tuned)],
    }


def tuned_datamodule(tuned: Tuned, datamodule: Any) -> Any:
    """Applies the tuned settings to the loader of a LightningDataModule (or LightningModule), and returns the module.

    If the result has an evaluation batch size, `val_dataloader` and `test_dataloader` use it, except for a loader with
    ``drop_last``, which is left alone.

    Samples are drawn and collated as before. The batches of your own batch sampler stay unchanged, as does anything but
    a single DataLoader; when the data loads, a warning names each knob that is not in effect.
    """
    common.require_tuned(tuned)
    original = datamodule.train_dataloader

    @functools.wraps(original)
    def train_dataloader() -> Any:
        loader = original()
        missing = common.loader_differences(tuned, loader)
        if isinstance(loader, DataLoader):
            loader, missing = common.tuned_loader(tuned, loader, _accumulation(datamodule))
        common.tell("Lightning", tuned, missing)
        return loader

    datamodule.train_dataloader = train_dataloader
    if tuned.result is not None and tuned.result.evaluation is not None:
        for name in ("val_dataloader", "test_dataloader"):
            setattr(datamodule, name, _evaluating(tuned, getattr(datamodule, name)))
    return datamodule


def _accumulation(owner: Any) -> int | None:
    """Micro-steps of an optimizer step of the trainer; None without a trainer, or if the module steps by itself."""
    try:
        trainer = owner.trainer
    except RuntimeError:  # of a LightningModule that has none
        return None
    if trainer is None or not getattr(trainer.lightning_module, "automatic_optimization", True):
        return None
    return int(trainer.accumulate_grad_batches)


def _evaluating(tuned: Tuned, original: Any) -> Any:
    """A hook whose evaluation loaders have the tuned evaluation batch size."""

    @functools.wraps(original)
    def loaders() -> Any:
        original_loaders = original()
        if isinstance(original_loaders, (list, tuple)):
            return type(original_loaders)(common.evaluation_loader(tuned, loader) for loader in original_loaders)
        return common.evaluation_loader(tuned, original_loaders)

    return loaders


def tuned_callback(tuned: Tuned) -> Any:
    """A Lightning ``Callback`` that applies layout, optimizer, compiling, attention, threads and allocator.

    It compiles `training_step` as a whole, except ``self.log``. When training starts, it warns of each knob that is not
    in effect, and keeps their names in ``not_in_effect``. When training ends, it reverts its changes to the module.
    """
    common.require_tuned(tuned)
    return _callback_class("TunedCallback", _Hooks, _bases())(tuned)


def live_callback(out: str | Path | None = None, allow: str = "") -> Any:
    """A Lightning ``Callback`` that tunes the running training, as `autotune.live` does.

    Args:
        out: Path beside which the log for ``autotune watch`` is written; without it there is no log.
        allow: Settings to try although they change what is learned: ``precision``.
    """
    return _callback_class("LiveCallback", _Live, _bases())(out, allow)


def _bases() -> tuple[type, ...]:
    imported = [sys.modules[name] for name in _PACKAGES if name in sys.modules]
    return tuple(package.Callback for package in imported or [importlib.import_module(common.package_of(*_PACKAGES))])


@functools.cache
def _callback_class(name: str, hooks: type, bases: tuple[type, ...]) -> Any:
    return type(name, (hooks, *bases), {"__module__": __name__, "__doc__": hooks.__doc__})


class _Live:
    """Tunes a running Lightning training."""

    def __init__(self, out: str | Path | None, allow: str) -> None:
        super().__init__()
        self._out, self._allow = out, allow

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        """Begins before `configure_optimizers`, which may ask the trainer for its steps: that makes the loader."""
        if stage == "fit":
            live.begin(self._out, self._allow)


class _Step(nn.Module):
    """A function as a module: `Tuned.prepare` compiles it, as it does with a model."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


class _Hooks:
    """Applies a tuned configuration to a Lightning training.

    Attributes:
        tuned: What is applied.
        not_in_effect: Names of the knobs that are not in effect; filled when training starts.
    """

    def __init__(self, tuned: Tuned) -> None:
        self.tuned = tuned
        self.not_in_effect: tuple[str, ...] = ()
        self._missing: Missing = {}
        self._undo = contextlib.ExitStack()

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        """Applies the settings of the whole process."""
        if stage == "fit":
            self.tuned.apply_process_settings()

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Applies the other knobs; the module is on its device, and the optimizers exist."""
        config, device = self.tuned.config, pl_module.device
        whole = config.is_compiled and not config.compiles_blocks  # the step is compiled instead
        leave = []
        refused: Missing = {}
        if config.optimizer_impl == "fused" and trainer.precision == "16-mixed" and trainer.gradient_clip_val:
            leave.append("optimizer_impl")
            refused["optimizer_impl"] = common.UNCLIPPED
        self._undo.enter_context(common.calls_undone(pl_module))
        steps = _accumulation(pl_module)
        missing = common.apply(
            self.tuned, pl_module, trainer.optimizers, device=device, compiles=whole, leave=leave, micro_steps=steps
        )
        self._missing = missing | refused
        if whole:
            self._wrap_step(pl_module, device)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Warns of each knob that is not in effect; the loader exists by now."""
        words, _ = placement(self.tuned)
        accumulation = _accumulation(pl_module)
        missing = common.uneven(trainer.num_training_batches, accumulation or 1) | self._missing
        missing |= common.differences(
            {
                "precision": (words["precision"], trainer.precision),
                "accumulation_steps": (self.tuned.accumulation_steps, accumulation or self.tuned.accumulation_steps),
            }
        )
        missing |= common.loader_differences(self.tuned, trainer.train_dataloader)
        _tell_miscounted(self.tuned, trainer, accumulation)
        self.not_in_effect = common.tell("Lightning", self.tuned, missing)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        """Reverts what was replaced."""
        self._undo.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """Reverts what was replaced."""
        self._undo.close()

    def _wrap_step(self, pl_module: Any, device: torch.device) -> None:
        """Compiles `training_step`, which Lightning calls."""
        original = pl_module.training_step
        step = _Step(original)
        Tuned(self.tuned.config, device=device).apply(step)

        @functools.wraps(original)  # Lightning reads its signature
        def training_step(*args: Any, **kwargs: Any) -> Any:
            return step(*args, **kwargs)

        self._undo.callback(put(pl_module, "training_step", training_step))
        for name in ("log", "log_dict"):  # the trainer's bookkeeping, no computation
            quiet = torch.compiler.disable(getattr(pl_module, name))  # type: ignore[no-untyped-call]
            self._undo.callback(put(pl_module, name, quiet))


def _tell_miscounted(tuned: Tuned, trainer: Any, accumulation: int | None) -> None:
    """Warns of the user's settings that count micro-batches, where those of a step are not the baseline's."""
    loader = trainer.train_dataloader
    if tuned.result is None or trainer.fast_dev_run or not isinstance(loader, DataLoader):
        return
    # A val_check_interval that is a time is no attribute.
    limits = {name: getattr(trainer, name, None) for name in ("limit_train_batches", "val_check_interval")}
    counts = [f"{name}={limit}" for name, limit in limits.items() if type(limit) is int]
    if accumulation is not None:  # else the module also steps its schedulers by itself
        often = (one.frequency for one in trainer.lr_scheduler_configs if one.interval == "step" and one.frequency > 1)
        counts += [f"a scheduler's frequency={frequency}" for frequency in often]
    baseline = tuned.result.baseline.config
    before = baseline.accumulation_steps, baseline.batch_size
    now = accumulation or tuned.accumulation_steps, read_loader(loader).batch_size or baseline.batch_size
    if not counts or now == before:
        return
    count, fit = ("counts", "it still fits") if len(counts) == 1 else ("count", "they still fit")
    sizes = "a step now has {} of {} samples instead of {} of {}".format(*now, *before)
    warnings.warn(f"{' and '.join(counts)} {count} micro-batches: {sizes}; check that {fit}", stacklevel=3)
