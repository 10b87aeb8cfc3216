"""Lightning Fabric: keyword arguments of ``Fabric``, and a `setup` that applies the rest.

Works with the packages ``lightning`` and ``lightning_fabric``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from autotune.integrations import common
from autotune.integrations.common import Missing

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

    from autotune.training.tuned import Tuned

PRECISIONS = {"bf16": "bf16-mixed", "fp16": "16-mixed", None: "32-true"}


def fabric_kwargs(tuned: Tuned, **yours: Any) -> dict[str, Any]:
    """Keyword arguments of ``Fabric``: accelerator, devices, precision. Your own are added, and take precedence.

    Your own loop accumulates gradients: ``for micro_batches in tuned.accumulate(loader)``. Warns of that, and of each
    knob that Fabric cannot apply. `setup` applies the other knobs.
    """
    words, missing = placement(tuned)
    settings, missing_exchange = common.ddp_settings(tuned)
    missing |= missing_exchange
    if settings:
        package = common.package_of("lightning.fabric", "lightning_fabric")
        words["strategy"] = importlib.import_module(f"{package}.strategies").DDPStrategy(**settings)
    if tuned.accumulation_steps > 1:
        missing["accumulation_steps"] = "it leaves that to your loop: for micro_batches in tuned.accumulate(loader)"
    common.tell("Fabric", tuned, missing)
    return {**words, **yours}


def setup(
    tuned: Tuned, fabric: Any, model: nn.Module, optimizer: Optimizer, loader: DataLoader[Any]
) -> tuple[Any, Any, Any]:
    """Applies layout, optimizer, compiling, attention, threads and allocator, then calls Fabric's own setup.

    Several ranks then exchange gradients as in ``tuned.accumulate``: with the last micro-batch of a step. Warns of each
    knob that is not in effect.

    Args:
        tuned: What to apply.
        fabric: A launched ``Fabric``.
        model: Changed in place.
        optimizer: The model's optimizer; changed in place.
        loader: The loader of the training samples; a loader with the tuned settings replaces it.

    Returns:
        Fabric's model, optimizer and loader.

    Raises:
        UsageError: Some argument is something else.
    """
    common.require_in_order(tuned, model, optimizer, loader)
    precision, actual = placement(tuned)[0]["precision"], fabric.strategy.precision.precision
    unclipped = tuned.config.optimizer_impl == "fused" and actual == "16-mixed"  # whether your loop clips is unknown
    leave = {"optimizer_impl": common.UNCLIPPED} if unclipped else {}
    missing = leave | common.apply(tuned, model, [optimizer], device=fabric.device, leave=tuple(leave))
    missing |= common.differences({"precision": (precision, actual)})
    loader, kept = common.tuned_loader(tuned, loader)
    common.tell("Fabric", tuned, missing | kept | common.other_copies(tuned))
    model, optimizer = fabric.setup(model, optimizer)
    for part in model.modules():  # DDP is inside Fabric's own module
        tuned.exchanges(part)
    return model, optimizer, fabric.setup_dataloaders(loader)


def placement(tuned: Tuned) -> tuple[dict[str, Any], Missing]:
    """Arguments of Fabric and Lightning for device and precision; and the knobs that they cannot apply."""
    half, missing = common.half_precision(tuned)
    device, ranks = tuned.device, tuned.config.ranks
    words = {
        "accelerator": device.type,
        "devices": ranks if ranks > 1 or device.index is None or device.type != "cuda" else [device.index],
        "precision": PRECISIONS[half],
    }
    return words, missing
