"""Makes a Workload from a ``transformers.Trainer``: its model, data, collator, loss, optimizer and arguments."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset

from autotune.errors import WorkloadError
from autotune.knobs import HALF, TrainConfig
from autotune.torch_settings.naming import weights_of
from autotune.workload.adapters.loaders import LoaderParts, baseline, loader_notes, require_loader, workload_parts
from autotune.workload.workload import Workload

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


IDS = "input_ids"


def from_trainer(trainer: Any, target: str) -> Workload:
    """A Workload from a Trainer that is ready for ``train()``.

    Raises:
        WorkloadError: The Trainer has no train dataset, or batches in a way that bursts cannot.
    """
    if trainer.train_dataset is None:
        raise WorkloadError(f"{target}: expected a Trainer with a train_dataset, got one without; give it one")
    parts = require_loader(trainer.get_train_dataloader(), target, "the Trainer")
    model = trainer.model.to("cpu")  # a new Trainer has moved it already; autotune moves it itself
    _checkpoint_activations(model, trainer.args)
    fields = workload_parts(parts)
    return Workload(
        model,
        loss=_loss_of(trainer),
        optimizer=_optimizer_of(trainer),
        baseline=_baseline(trainer, parts),
        clip_grad_norm=trainer.args.max_grad_norm or None,
        sample_size=_token_count if _has_token_lists(fields["dataset"]) else None,
        name=type(model).__name__,
        notes=(*_notes(trainer), *loader_notes(parts)),
        **fields,
    )


def _baseline(trainer: Any, parts: LoaderParts) -> TrainConfig:
    """The config that the arguments define, for one device."""
    args, accelerator = trainer.args, trainer.accelerator
    precision = accelerator.mixed_precision if accelerator.native_amp else "no"
    if precision not in HALF:
        precision = "tf32" if args.tf32 else "fp32"
    return baseline(
        parts,
        batch_size=max(1, (parts.batch_size or 1) // max(1, args.n_gpu)),  # several GPUs share it
        accumulation_steps=args.gradient_accumulation_steps,
        precision=precision,
        compile_mode=(args.torch_compile_mode or "default") if args.torch_compile else None,
        cudnn_benchmark=torch.backends.cudnn.benchmark,
        non_blocking=args.accelerator_config.non_blocking,
    )


def _loss_of(trainer: Any) -> Callable[[nn.Module, Any], torch.Tensor]:
    """The Trainer's own loss, with the number of labels that it divides by."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        inputs = copy.copy(batch)  # some losses remove the labels from it
        _, items = trainer.get_batch_samples(iter([inputs]), 1, next(model.parameters()).device)
        result: torch.Tensor = trainer.compute_loss(model, inputs, num_items_in_batch=items)
        return result

    return loss


def _optimizer_of(trainer: Any) -> Callable[[Any], Optimizer]:
    """Makes the Trainer's optimizer anew at each call: from its arguments, or as a copy of the one it was given."""
    given: Optimizer | None = trainer.optimizer

    def make(_params: Any) -> Optimizer:
        if given is not None:
            return copy.deepcopy(given, {id(parameter): parameter for parameter in weights_of(given)})
        trainer.optimizer = None
        made: Optimizer = trainer.create_optimizer()
        return made

    return make


def _checkpoint_activations(model: Any, args: Any) -> None:
    """Turns activation checkpointing on, as ``train()`` does first, if the arguments request it."""
    if not args.gradient_checkpointing:
        return
    options = dict(args.gradient_checkpointing_kwargs or {})
    if hasattr(model, "activation_checkpointing_enable"):
        rest = {name: options.pop(name) for name in ("every_n_layers", "offload") if name in options}
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=options or None, **rest)
    else:  # the older name
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options or None)


def _has_token_lists(dataset: Any) -> bool:
    """Whether samples hold lists of tokens, whose size no tensor shows."""
    if isinstance(dataset, IterableDataset):
        return False
    sample = dataset[0]
    return isinstance(sample, Mapping) and IDS in sample and not isinstance(sample[IDS], torch.Tensor)


def _token_count(sample: Any) -> float:
    return float(len(sample[IDS]))


def _notes(trainer: Any) -> list[str]:
    """Notes on what ``train()`` does and bursts do not."""
    from transformers import Trainer

    args = trainer.args
    kinds = [type(callback) for callback in trainer.callback_handler.callbacks]
    notes = [f"the callback {kind.__name__}" for kind in kinds if not kind.__module__.startswith("transformers.")]
    if type(trainer).training_step is not Trainer.training_step:
        notes.append(f"training_step() of {type(trainer).__name__}: its compute_loss() is called")
    given = {
        "neftune_noise_alpha": args.neftune_noise_alpha is not None,
        "use_liger_kernel": args.use_liger_kernel,
        f"torch_compile_backend={args.torch_compile_backend}": args.torch_compile_backend not in {None, "inductor"},
    }
    return [*notes, *itertools.compress(given, given.values())]
