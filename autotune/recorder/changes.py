"""Changes to a script from outside it: to its loaders, models, optimizers, and process."""

from __future__ import annotations

import functools
import inspect
import os
import types
import weakref
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, IterableDataset

from ..torch_settings import process_settings
from ..torch_settings.copies import Copies
from ..torch_settings.naming import batches_of, is_own_batch_sampler
from ..torch_settings.undo import Undo, in_reverse, kept_on, never, nothing, take_kept, unless_changed
from .ranks import exchange_by

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

OF_ORDER = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")
"""Arguments of DataLoader that decide the batches of samples."""
WITHOUT_WORKERS = (
    "dataset",
    "num_workers",
    "collate_fn",
    "worker_init_fn",
    "generator",
    "pin_memory",
    "pin_memory_device",
)
"""The other arguments that a loader without workers takes."""
_LASTING = ("restrict_attention",)
"""Changes to the process that a script's own set-up does not overwrite; made twice, they would compile all again."""


class Changes:
    """The changes of one config, as the parent's knobs name them.

    Args:
        description: The config, by these keys:

            - ``knobs``: a value for each knob
            - ``changed``: names of the knobs that differ from the script's own config
            - ``compiled``: whether torch.compile compiles a part of the training
            - ``reads``, ``shows``: by knob, a function of `in_force` and a method of `Effects` that see its effect
            - ``loader``: arguments of DataLoader; ``taking``: by argument, its knob
            - ``process``, ``optimizer``: by function of `process_settings`, its value
            - ``model``: by function of `process_settings`, its knob
            - ``ddp``: by knob, an argument of ``DistributedDataParallel`` and its value
            - ``variables``: environment variables, which are read when ranks meet
            - ``copies``: whether copies of batches do not wait

    Attributes:
        on_model: The functions that change models, each with its knob.
        wrapped: The ``DistributedDataParallel`` models made with these arguments.
        leave_exchange: Leaves later ``DistributedDataParallel`` models as the script makes them.
        copies: Makes copies of batches that do not wait; None where they are left as they are.
        switched: Optimizers that were changed, in the order of their first steps; a script may train many models.
        refused_form: Why an optimizer could not be changed; None where all could.
    """

    def __init__(self, description: dict[str, Any]) -> None:
        self.knobs = types.SimpleNamespace(**description.get("knobs", {}))
        self.changed: dict[str, Any] = {name: getattr(self.knobs, name) for name in description.get("changed", ())}
        self.loader: dict[str, Any] = description.get("loader", {})
        self.taking: dict[str, str] = description.get("taking", {})
        self.is_compiled: bool = description.get("compiled", False)
        self.reads: dict[str, str] = description.get("reads", {})
        self.shows: dict[str, str] = description.get("shows", {})
        self.ddp: dict[str, tuple[str, Any]] = description.get("ddp", {})
        self.variables: dict[str, str] = description.get("variables", {})
        self.wrapped: list[Any] = []
        self.leave_exchange: Undo = nothing
        self.copies = Copies() if description.get("copies") else None
        self._models: list[weakref.ref[nn.Module]] = []
        self.switched: list[weakref.ref[Optimizer]] = []
        self.refused_form: str | None = None
        self._process: dict[str, Any] = description.get("process", {})
        self.on_model: dict[str, str] = description.get("model", {})
        self._found_models = False
        self._optimizer: dict[str, Any] = description.get("optimizer", {})
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._undos: dict[str, Undo] = {}  # of the process; a model's and an optimizer's own are kept on them

    def exchange(self, suits: Callable[[nn.Module], bool] = lambda _: True) -> Changes:
        """Sets how gradients are exchanged, from here on; the ranks have not met yet.

        Args:
            suits: Whether the changes are meant for a model.
        """
        self._undos["variables"] = in_reverse([_put_variable(*one) for one in self.variables.items()])
        self.wrapped, self.leave_exchange = exchange_by(dict(self.ddp.values()), suits)
        return self

    @property
    def wants_models(self) -> bool:
        """Whether models are still to be changed."""
        return bool(self.on_model) and not self._found_models

    @property
    def models(self) -> list[nn.Module]:
        """The changed models that are still alive."""
        return [model for reference in self._models if (model := reference()) is not None]

    def on_process(self, device: torch.device) -> None:
        """Sets what holds for the whole process; called again where the script may have changed it meanwhile."""
        for function, value in self._process.items():
            if function in _LASTING and function in self._undos:
                continue
            undo = getattr(process_settings, function)(value, device)
            if undo is not never:  # all players of a process share it
                self._undos.setdefault(function, undo)

    def on_copies(self) -> None:
        """Makes copies of batches not wait from here on, if the config says so."""
        if self.copies is not None and "copies" not in self._undos:
            self._undos["copies"] = self.copies.install()

    def on_models(self, models: list[nn.Module]) -> None:
        """Changes the models, each once; if a change fails, all of them are as they were."""
        if not self.on_model:
            return
        self._found_models |= bool(models)
        self._models = [weakref.ref(model) for model in self.models]  # without those that are gone
        try:
            for model in models:
                if not any(model is one for one in self.models):
                    self._on_model(model)
        except BaseException:
            self._undo_models()
            raise

    def _on_model(self, model: nn.Module) -> None:
        undos: list[Undo] = []
        kept_on(model)[self] = in_reverse(undos)  # from the start: a later change may fail
        self._models.append(weakref.ref(model))
        for function in self.on_model:
            undo = getattr(process_settings, function)(model, self.knobs)
            if undo is not never:
                undos.append(undo)

    def _undo_models(self) -> None:
        for model in reversed(self.models):
            take_kept(model, self)()
        self._models = []

    def on_optimizer(self, optimizer: Optimizer) -> None:
        """Changes an optimizer, once; an optimizer without the requested form stays as it is."""
        if optimizer in self._known:
            return
        self._known.add(optimizer)
        try:
            undos = [
                getattr(process_settings, function)(optimizer, value) for function, value in self._optimizer.items()
            ]
            if undos:
                kept_on(optimizer)[self] = in_reverse(undos)
                self.switched.append(weakref.ref(optimizer))
        except ValueError as error:
            self.refused_form = str(error)

    def undo(self) -> None:
        """Undoes the changes to optimizers, models, copies and the process; they can be made again afterwards.

        Loaders stay changed, and so does what ranks have agreed on, or what only a new process can undo.
        """
        for reference in reversed(self.switched):
            if (optimizer := reference()) is not None:
                take_kept(optimizer, self)()
        self._undo_models()
        self.switched, self._known = [], weakref.WeakSet()
        self._found_models, self.refused_form = False, None
        self.leave_process()

    def leave_process(self) -> None:
        """Undoes the changes to the whole process, except those that other code has overwritten since."""
        while self._undos:
            self._undos.popitem()[1]()

    def arguments(self, loader: DataLoader[Any], without: Collection[str] = ()) -> dict[str, Any]:
        """The arguments to recreate a loader: the script's own, with the changes, but `without` some of them."""
        names = [name for name in inspect.signature(DataLoader).parameters if name not in OF_ORDER]
        arguments = {name: getattr(loader, name) for name in names if hasattr(loader, name)}
        arguments |= {name: value for name, value in self.loader.items() if name not in without}
        size = arguments.pop("batch_size", None)
        if not arguments["num_workers"]:
            arguments = {name: value for name, value in arguments.items() if name in WITHOUT_WORKERS}
        if is_own_batch_sampler(loader):
            arguments["batch_sampler"] = loader.batch_sampler
        else:
            sampler, own_size, drops = batches_of(loader)
            arguments["batch_size"] = size or own_size
            if own_size is not None:
                arguments["drop_last"] = drops
            if not _is_iterable(loader):
                arguments["sampler"] = sampler
        return arguments


def _put_variable(name: str, value: str) -> Undo:
    before = os.environ.get(name)
    os.environ[name] = value

    def undo() -> None:
        del os.environ[name]
        os.environ.update({name: before} if before is not None else {})

    return unless_changed(functools.partial(os.environ.get, name), undo)


def _is_iterable(loader: DataLoader[Any]) -> bool:
    return isinstance(loader.dataset, IterableDataset)
