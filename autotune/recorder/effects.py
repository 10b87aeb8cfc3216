"""Checks in a script's first steps that the changes made to it took effect.

Nothing here computes or changes numbers: it reads the loader's iterator, the weights, the optimizer's functions, and
the autograd graph of the loss.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..torch_settings.compiled import compiled_graphs
from ..torch_settings.copies import is_pinned
from ..torch_settings.in_force import read
from ..torch_settings.naming import arguments_of, tensors_in
from ..torch_settings.precision import HALF, torch_dtype
from ..torch_settings.undo import in_reverse, put

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

    from .changes import Changes
    from .stream import Stream

MOST_LOSSES, MOST_NODES = 8, 20_000
"""Losses whose graphs are read, since the first ones may belong to other models; and nodes of each graph, more than a
network of a thousand layers has."""
OTHER_ALLOCATORS = re.compile(r"/lib(jemalloc|tcmalloc\w*|mimalloc)[^/]*\.so")
_COMPILES = "_compiles_by_autotune"  # attribute of a compiled call, once it has compiled something
_KERNELS = {
    **dict.fromkeys(("flash_attention", "flash_attention_3", "flash_attention_4"), "Flash"),
    "efficient_attention": "Efficient", "cudnn_attention": "Cudnn",
}  # fmt: skip
"""Part of the name of each attention kernel's backward pass."""
_FORMS = {"fused": "_fused_", "foreach": "_multi_tensor_"}
"""Prefix of the functions of torch.optim that compute each form."""


class Effects:
    """Checks whether the changes of one job took effect.

    Args:
        changes: The changes; none of them is applied yet.
        device: The device that the script trains on.
        steps_later: Whether an optimizer is known to step, if perhaps not in the first steps: gradients overflow until
            a GradScaler has found its scale.
    """

    def __init__(self, changes: Changes, device: str, *, steps_later: bool = False) -> None:
        self._changes = changes
        self._changed = changes.changed
        self._device = device.partition(":")[0]
        self._steps_later = steps_later
        self._graphs = compiled_graphs()
        self._dtypes: set[Any] = set()
        self._nodes: set[str] = set()
        self._losses = 0
        self._pinned: bool | None = None
        self._forms: list[tuple[Optimizer, FormWatch]] = []
        self._is_over = False

    def drawn(self, batch: Any) -> None:
        """Notes a batch that is handed to the script."""
        if self._changes.copies is not None:
            self._changes.copies.drawn(batch)
        if self._pinned is None and "pin_memory" in self._changed and (tensors := list(tensors_in(batch))):
            self._pinned = any(map(is_pinned, tensors))

    def before_backward(self, loss: torch.Tensor) -> None:
        """Reads which operations computed a loss of the first steps from its graph."""
        if self._is_over:
            return
        if self._losses < MOST_LOSSES and not self._changed.keys().isdisjoint({"precision", "sdpa_backend"}):
            self._losses += 1
            names, dtypes = graph_of(loss)
            self._nodes |= names
            self._dtypes |= dtypes

    def before_step(self) -> None:
        """Watches changed optimizers before they step."""
        for known in () if self._is_over else self._changes.switched[len(self._forms) :]:
            optimizer = known()
            if optimizer is not None:
                self._forms.append((optimizer, FormWatch(optimizer, self._changes.knobs.optimizer_impl)))

    def missing(self, stream: Stream | None, *, reads_only: bool) -> dict[str, str]:
        """Returns the knobs that did not take effect, each with the reason."""
        import torch

        missing: dict[str, str] = {}
        if stream is not None:
            of_arguments = of_loader(self._changes.loader, stream, pinned=self._pinned, device=self._device)
            missing = {self._changes.taking[argument]: reason for argument, reason in of_arguments.items()}
        if reads_only:
            return missing
        optimizers = [optimizer for optimizer, _ in self._forms]
        now = read(self._changes.reads, self._changes.models, optimizers, torch.device(self._device))
        for name, value in self._changed.items():
            shows = getattr(self, self._changes.shows[name]) if name in self._changes.shows else None
            if name in self._changes.on_model.values() and self._changes.wants_models:
                missing[name] = "the model was not found, so that it could not be changed"
            elif name in self._changes.ddp and not self._changes.wrapped:
                missing[name] = "no DistributedDataParallel was made, so that none could be changed"
            elif shows is not None and (reason := shows(value)) is not None:
                missing[name] = reason
            elif value is not None and value not in HALF and now.get(name, value) != value:
                missing[name] = f"the script itself sets it to {now[name]}"
        return missing

    def close(self) -> None:
        """Stops checking: later work in this process belongs to other configs."""
        self._is_over = True
        while self._forms:
            self._forms.pop()[1].end()

    def computes_in(self, precision: str) -> str | None:
        """Whether the loss depends on this type; what a compiled graph computes inside cannot be seen from outside."""
        is_unseen = precision not in HALF or self._changes.is_compiled or not self._dtypes
        if is_unseen or torch_dtype(precision) in self._dtypes:
            return None
        seen = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in self._dtypes))
        return f"nothing that the loss depends on was computed in {precision}, only in {seen}"

    def compiles(self, mode: str | None) -> str | None:
        """Whether torch.compile compiled a part of the models."""
        if mode is None:
            return None
        calls = [call for model in self._changes.models if (call := _compiled_call_of(model)) is not None]
        if compiled_graphs() > self._graphs:
            for call in calls:
                setattr(call, _COMPILES, True)
        if compiled_graphs() > self._graphs or any(getattr(call, _COMPILES, False) for call in calls):
            return None  # code that another config has compiled before is not compiled again
        return f"torch.compile compiled nothing of the model ({why_not_compiled()})"

    def attends_with(self, backend: str) -> str | None:
        """Whether the loss depends on this kernel of attention."""
        if self._changes.is_compiled or not self._nodes or backend not in _KERNELS:
            return None
        kernels = [name for name in self._nodes if "ScaledDotProduct" in name]
        if any(_KERNELS[backend] in name for name in kernels):
            return None
        return f"attention was computed by {' and '.join(sorted(kernels)) or 'no kernel of torch for it'}"

    def steps_by(self, form: str) -> str | None:
        """Whether optimizers stepped by the functions of a form."""
        if not self._changes.switched and not self._steps_later:
            return self._changes.refused_form or "no optimizer of torch stepped, so that none could be changed"
        if self._changes.refused_form is not None or form not in _FORMS:
            return self._changes.refused_form
        for optimizer, watch in self._forms:
            if not watch.ran:
                return f"{type(optimizer).__name__} steps by a function of its own, which has no {form} form"
        return None

    def allocates(self, allocator: str) -> str | None:
        """Whether memory comes from an allocator that the settings reach."""
        if allocator != "tuned":
            return None
        if self._device == "cpu":
            return other_allocator()
        return expandable_reason() if self._device == "cuda" else None

    def overlaps(self, on: bool) -> str | None:
        """Whether a copy of a batch did not wait."""
        copies = self._changes.copies
        if not on or copies is None or copies.overlapped:
            return None
        return "no batch was copied out of page-locked memory by a .to() or .cuda() that waits"


def of_loader(changed: Mapping[str, Any], stream: Stream, *, pinned: bool | None, device: str) -> dict[str, str]:
    """Returns the arguments of DataLoader that its iterator does not follow, each with the reason.

    Args:
        changed: The changed arguments.
        stream: The stream that the script draws from.
        pinned: Whether a batch had page-locked memory; None if unknown.
        device: Kind of the device.
    """
    from torch.utils.data import DataLoader

    iterator, given = stream.running, arguments_of(stream.loader, DataLoader)
    follows = {name: getattr(iterator, f"_{name}", given.get(name)) for name in changed}  # torch's iterators copy most
    if follows.get("batch_size", 0) is None:  # batches of the script's own
        del follows["batch_size"]
    missing = {
        name: f"the loader that was iterated has {name}={has}, not {changed[name]}"
        for name, has in follows.items()
        if (has or None) != (changed[name] or None)
    }
    if changed.get("pin_memory") and "pin_memory" not in missing and pinned is False and device == "cuda":
        missing["pin_memory"] = "no tensor of its batches is page-locked: their class has no pin_memory()"
    workers = getattr(iterator, "_workers", None)
    if "num_workers" in changed and workers is not None and not all(one.is_alive() for one in workers):
        missing["num_workers"] = "a worker of the loader has ended"
    return missing


class FormWatch:
    """Watches whether an optimizer steps by the functions of torch.optim that compute a form.

    Args:
        optimizer: One of torch's, or of a derived class.
        form: ``fused`` or ``foreach``; other forms are not watched.

    Attributes:
        ran: Whether they were called; true where there is nothing to watch.
        end: Stops watching.
    """

    def __init__(self, optimizer: Optimizer, form: str) -> None:
        places = {kind.__module__ for kind in type(optimizer).__mro__ if kind.__module__.startswith("torch.optim.")}
        modules = [sys.modules[place] for place in places - {"torch.optim.optimizer"} if place in sys.modules]
        start = _FORMS.get(form)
        named = [(one, name) for one in modules for name in vars(one) if start is not None and name.startswith(start)]
        functions = [(one, name) for one, name in named if callable(getattr(one, name))]
        self.ran = not functions
        undos = [put(module, name, self._watched(getattr(module, name))) for module, name in functions]
        self.end = in_reverse(undos)

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            self.ran = True
            return function(*args, **kwargs)

        return called


def _compiled_call_of(model: nn.Module) -> Any:
    """The compiled call of a model, or of its first block that has one; None if neither has."""
    calls = (vars(part).get("_compiled_call_impl") for part in model.modules())
    return next((call for call in calls if call is not None), None)


def graph_of(loss: torch.Tensor) -> tuple[set[str], set[Any]]:
    """Returns the names of the operations that computed a loss, and the floating-point types of their results.

    It does not read saved tensors, since that would recompute a checkpoint.
    """
    names: set[str] = set()
    dtypes: set[Any] = set()
    seen: set[Any] = set()
    pending = [loss.grad_fn]
    while pending and len(seen) < MOST_NODES:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        names.add(node.name())
        with contextlib.suppress(AttributeError, RuntimeError):  # private to torch
            dtypes |= {one.dtype for one in node._input_metadata if one.dtype.is_floating_point}
        pending += [following for following, _ in node.next_functions]
    return names, dtypes


def why_not_compiled() -> str:
    """Dynamo's reason for not compiling, in a few words."""
    utils = sys.modules.get("torch._dynamo.utils")
    reasons = [*utils.counters["unimplemented"], *utils.counters["graph_break"]] if utils is not None else []
    return " ".join(str(reasons[0]).split())[:200] if reasons else "it was not called as a module"


def other_allocator() -> str | None:
    """Why glibc's settings have no effect here; None where they have."""
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        if (library := OTHER_ALLOCATORS.search(maps.read())) is not None:
            return f"memory comes from {library[1]}, which glibc's settings do not reach"
    return None


def expandable_reason() -> str | None:
    """Why segments of CUDA's allocator do not grow; None where they do, or where the settings cannot be read."""
    import torch

    if (backend := torch.cuda.get_allocator_backend()) != "native":
        return f"CUDA's allocator is {backend}, which has no such setting"
    with contextlib.suppress(Exception):
        settings = torch.cuda.memory._snapshot()["allocator_settings"]
        if not settings.get("expandable_segments", True):
            return "the script itself sets CUDA's allocator"
    return None
