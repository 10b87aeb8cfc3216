"""Checks what your own training passes: otherwise torch fails later, with an error that does not name the mistake."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from autotune.errors import UsageError
from autotune.workload.target import dataset_remedy
from autotune.workload.user_errors import described


def require_parts(model: object, optimizer: object) -> None:
    """Checks that a model, and an optimizer of its weights or None, are passed in this order.

    Raises:
        UsageError: They are something else, or do not belong together.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"expected an nn.Module as model, got {described(model)}; pass the model first, then its optimizer"
        )
    if optimizer is None:
        return
    if not isinstance(optimizer, Optimizer):
        raise UsageError(
            f"expected a torch.optim.Optimizer as optimizer, got {described(optimizer)}; pass the optimizer itself"
        )
    # A frozen model may come with the optimizer of its head, and a half-precision one with that of fp32 copies.
    own = [weight for weight in model.parameters() if weight.requires_grad]
    ids, types = {id(weight) for weight in own}, {weight.dtype for weight in own}
    stepped = [weight for group in optimizer.param_groups for weight in group["params"]]
    if own and not any(id(weight) in ids or weight.dtype not in types for weight in stepped):
        raise UsageError(
            "expected an optimizer of the model's parameters, got one that holds none of them; make it from "
            "model.parameters()"
        )


def require_dataset(dataset: object) -> None:
    """Checks that a DataLoader can be made of a dataset.

    Raises:
        UsageError: It cannot.
    """
    if (remedy := dataset_remedy(dataset)) is not None:
        raise UsageError(f"expected a map-style or iterable Dataset as dataset, got {described(dataset)}; {remedy}")
