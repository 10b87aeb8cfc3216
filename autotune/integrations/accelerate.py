"""Accelerate: keyword arguments of ``Accelerator``, and a `prepare` that applies the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.integrations import common
from autotune.knobs import framework_arguments
from autotune.torch_settings.naming import length_of
from autotune.training.ranks import this_rank

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

    from autotune.training.tuned import Tuned


def accelerator_kwargs(tuned: Tuned, **yours: Any) -> dict[str, Any]:
    """Keyword arguments of ``Accelerator``. Your own are added, and take precedence.

    They set precision, accumulation, non_blocking, compiling and the CPU; `prepare` applies the other knobs. Warns of
    each knob that Accelerate cannot apply.
    """
    from accelerate.utils import DataLoaderConfiguration, DistributedDataParallelKwargs, TorchDynamoPlugin

    half, missing = common.half_precision(tuned)
    config = tuned.config
    if tuned.device.index and this_rank().alone:
        missing["device"] = "it takes the first that is visible: set CUDA_VISIBLE_DEVICES"
    words: dict[str, Any] = {
        "mixed_precision": half or "no",
        **framework_arguments("accelerate", config),
        "dataloader_config": DataLoaderConfiguration(non_blocking=config.non_blocking),
        "cpu": tuned.device.type == "cpu",
    }
    if common.compiles_itself(tuned):
        words["dynamo_plugin"] = TorchDynamoPlugin(backend="inductor", mode=config.compile_mode)
    settings, missing_exchange = common.ddp_words(tuned, DistributedDataParallelKwargs.__dataclass_fields__)
    if settings:
        words["kwargs_handlers"] = [DistributedDataParallelKwargs(**settings)]
    common.tell("Accelerate", tuned, missing | missing_exchange)
    return {**words, **yours}


def prepare(
    tuned: Tuned, accelerator: Any, model: nn.Module, optimizer: Optimizer, loader: DataLoader[Any], *others: Any
) -> Any:
    """Applies layout, optimizer, attention, threads and allocator, then calls ``accelerator.prepare``.

    Compiles the model if the accelerator does not. Use ``accelerator.accumulate(model)`` in the loop.

    Args:
        tuned: What to apply.
        accelerator: Made with `accelerator_kwargs`. A warning names each knob that it sets otherwise.
        model: Changed in place.
        optimizer: Changed in place.
        loader: Of the training samples; replaced by a tuned one.
        others: Schedulers and other loaders; prepared unchanged.

    Returns:
        The prepared model, optimizer, loader and others.

    Raises:
        UsageError: Some argument is something else.
    """
    common.require_in_order(tuned, model, optimizer, loader)
    values: dict[str, tuple[Any, Any]] = {
        "precision": (common.half_precision(tuned)[0] or "no", accelerator.mixed_precision),
        "accumulation_steps": (tuned.accumulation_steps, accelerator.gradient_accumulation_steps),
        "non_blocking": (tuned.config.non_blocking, accelerator.non_blocking),
    }
    plugin = accelerator.state.dynamo_plugin
    if compiles := plugin.backend.value != "NO":
        values["compile_mode"] = (tuned.config.compile_mode, plugin.mode)
    accumulation = accelerator.gradient_accumulation_steps
    missing = common.apply(
        tuned, model, [optimizer], device=accelerator.device, compiles=compiles, micro_steps=accumulation
    )
    made, kept = common.tuned_loader(tuned, loader, accumulation, common.splitting(accelerator))
    prepared = accelerator.prepare(model, optimizer, made, *others)
    kept |= common.draw_as(prepared[2], made)
    ends = accelerator.gradient_state.sync_with_dataloader  # otherwise the next epoch completes the step
    uneven = common.uneven(length_of(prepared[2]), accumulation) if ends else {}
    common.tell("Accelerate", tuned, uneven | missing | common.differences(values) | kept)
    return prepared
