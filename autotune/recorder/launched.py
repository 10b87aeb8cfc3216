"""A whole training with a result's settings: changes apply as the script reaches them, and nothing is timed.

A launch reaches every child interpreter, such as a script that evaluates, or trains another model first.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from ..torch_settings.naming import (
    batches_of,
    class_of,
    find_models,
    has_own_iterator,
    is_own_batch_sampler,
    length_of,
    loader_key,
    loader_kind,
    steps_any,
)
from ..torch_settings.undo import Undo, in_reverse, kept_on, put
from . import hooks
from .attributes import is_same
from .batches import Watched
from .changes import Changes
from .drawing import Drawing, Own
from .hooks import harmless
from .matching import Match, note
from .ranks import count_ranks, this_rank
from .realised import Notes
from .samplers import AHEAD, own_samplers_of
from .stream import ITERATE
from .surroundings import differences

if TYPE_CHECKING:
    from torch.optim import Optimizer


MAX_EARLY_STEPS = 10
"""Steps before training reads any data that decide nothing: more are a training whose data come from no loader."""
ENDS_FIRST = 100
"""A priority at the end of a process: at 10, multiprocessing closes the queues by which workers hear that they end."""
_LOADER, _MODELS, _OPTIMIZER = "the loader", "the models", "the optimizer"
"""Parts of a training, each of which stays as it is if a change to it fails."""


def begin(orders: dict[str, Any]) -> None:
    """Applies the orders, like a script that calls `autotune.apply`; other orders take the place of former ones."""
    if _applied and _applied[0].orders == orders:
        return  # a notebook's cell is run again
    while _applied:
        _applied.pop().end()
    _applied.append(Launched(orders))


_applied: list[Launched] = []


class Launched:
    """Applies the changes to the training that was measured; other training stays as it is.

    Args:
        orders: The orders, by these keys:

            - ``changes``: description of the changes, see `Changes`
            - ``loop``: the description from the look at the tuned script
            - ``strict``: whether the script ends if it trains in another place
            - ``left_out``: a sentence for each setting that is not applied
            - ``shared``: folder in which each process that trains writes a file; without it, the process prints
            - ``realised``: what to note about the training; without it, nothing

    Attributes:
        orders: The orders.
    """

    def __init__(self, orders: dict[str, Any]) -> None:
        self.orders = orders
        self._loop = orders["loop"]
        self._is_strict = orders.get("strict", False)
        self._left_out: list[str] = orders.get("left_out", [])
        self._shared: str | None = orders.get("shared")
        self._match = Match(self._loop)
        self._is_measured: bool | None = None  # unknown until an optimizer exists
        self._trains = 0  # the id of the process that trains what was measured, perhaps a forked one; 0: none does
        self._early_steps = 0
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._stand_ins: dict[str, StandIn] = {}
        self._read: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()  # through stand-ins
        self._aside: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()  # read where gradients are disabled
        self._failures: dict[tuple[Any, ...], str] = {}  # by the places where they came up
        self._unchanged: set[str] = set()  # parts whose changes have failed
        self._starts_anew = False
        self._stood_in = 0  # the id of the process that has read through a stand-in
        self._why_restarted: str | None = None
        self._held_back_why: str | None = None
        self._kinds = {loader_kind(key) for key in self._loop["loaders"]}
        self._lengths = {key.split()[1] for key in self._loop["loaders"]}
        self._device = torch.device(self._loop["device"])
        noted = orders.get("realised")
        self._notes = Notes(noted, self._device) if noted is not None else None
        self._changes = Changes(orders["changes"])
        self._changes.exchange(self._match.is_model)  # before it is clear what a process trains
        self._enter_process()
        self._undos = [
            self._changes.leave_exchange,
            self._changes.undo,
            hooks.on_step(self._on_step),
            hooks.on_iterate(self._on_iterate),
        ]
        if self._changes.wants_models:
            self._undos.append(hooks.when_called(self._loop["models"], self._on_called))
        if "batch_size" in self._changes.loader:
            self._undos.append(self._count_batches(self._changes.loader["batch_size"]))
        atexit.register(self._report)

    def end(self) -> None:
        """Reports, undoes the changes, except of a `DistributedDataParallel` that was made so, and stops watching."""
        if self._trains:
            self._report()
        in_reverse(self._undos)()
        atexit.unregister(self._report)
        atexit.unregister(_end_workers)
        if self._notes is not None:
            self._notes.leave()
        _end_workers(self._stand_ins, self._read)

    def _enter_process(self) -> None:
        self._changes.on_process(self._device)
        self._changes.on_copies()

    def _count_batches(self, size: int) -> Undo:
        """Makes ``len(loader)`` count batches of another size, since schedules use it."""
        original = DataLoader.__len__

        @functools.wraps(original)
        def length(loader: DataLoader[Any]) -> int:
            changed = self._changed_length(loader, size)
            return original(loader) if changed is None else changed

        return put(DataLoader, "__len__", length)

    @harmless
    def _changed_length(self, loader: DataLoader[Any], size: int) -> int | None:
        """The batches of this size in a loader that feeds training; None for other loaders."""
        # An evaluation's loader may be alike, and its length be asked for where gradients are enabled.
        is_tuned = (
            StandIn in kept_on(loader) or loader not in self._aside or str(length_of(loader.dataset)) in self._lengths
        )
        if not (is_tuned and self._feeds(loader)) or has_own_iterator(loader) or is_own_batch_sampler(loader):
            return None
        if _LOADER in self._unchanged:
            return None
        sampler, _, drops = batches_of(loader)
        drawn: Any = loader.dataset if isinstance(loader.dataset, IterableDataset) else sampler
        samples = length_of(drawn)
        return samples and (samples // size if drops else -(-samples // size))

    def _feeds(self, loader: DataLoader[Any]) -> bool:
        """Whether a loader is like the tuned ones, and gradients are enabled."""
        if not torch.is_grad_enabled():
            return False
        return loader_kind(loader_key(loader)) in self._kinds and self._may_be_measured()

    def _may_be_measured(self) -> bool:
        """Whether this process trains what was measured, or may still do so."""
        if self._is_measured is None:
            possible = self._match.is_possible()
            self._is_measured = possible or None
            return possible is not False
        return self._is_measured

    def _on_iterate(self, loader: DataLoader[Any], iterate: hooks.Iterate) -> Iterator[Any]:
        changed = self._changed_pass(loader, iterate)
        return iterate(loader) if changed is None else changed

    @harmless
    def _changed_pass(self, loader: DataLoader[Any], iterate: hooks.Iterate) -> Iterator[Any] | None:
        """Starts a pass that is changed or noted; None for a loader that feeds no training."""
        if torch.is_grad_enabled():
            self._match.drawn_from(loader)
        else:
            self._aside.add(loader)
            if self._notes is not None:
                self._notes.evaluates()
        if not self._feeds(loader):
            return None
        if self._notes is None:
            return self._batches(loader, iterate)
        batch_size = None if has_own_iterator(loader) else self._changes.loader.get("batch_size")
        return self._notes.reads(loader, lambda: self._batches(loader, iterate), batch_size)

    def _batches(self, loader: DataLoader[Any], iterate: hooks.Iterate) -> Iterator[Any]:
        """Starts a pass through a loader that feeds training, changed where possible."""
        if has_own_iterator(loader):
            return iterate(loader)
        if self._changes.wants_models:
            self._change(_MODELS, lambda: self._changes.on_models(find_models(self._loop["models"])))
        changed = self._change(_LOADER, lambda: self._changed_batches(loader)) if self._changes.loader else None
        return self._handed_on(iterate(loader) if changed is None else changed)

    def _changed_batches(self, loader: DataLoader[Any]) -> Iterator[Any]:
        is_known = StandIn in kept_on(loader)
        stand_in = self._stand_in(loader)
        batches = stand_in.read(loader, goes_on=is_known)
        self._why_restarted = stand_in.why_restarted or self._why_restarted
        return batches

    def _change(self, part: str, change: Callable[[], Any]) -> Any:
        """Changes a part of the training; once that has failed, the part stays as the script has made it.

        Raises:
            SystemExit: It has failed on one of several ranks. The others would wait for it forever; torchrun ends them.
        """
        if part in self._unchanged:
            return None
        try:
            return change()
        except Exception as error:  # a device that has failed, a script's own strange parts
            reason = f"{type(error).__name__}: {error}"
            if count_ranks() > 1:
                raise SystemExit(f"autotune: {part} could not be changed on rank {this_rank()} ({reason})") from error
            self._unchanged.add(part)
            self.give_up(reason)
            return None

    @harmless
    def _on_called(self, models: list[nn.Module]) -> None:
        self._match.knows(models)
        if self._match.draws:
            self._change(_MODELS, lambda: self._changes.on_models(models))

    def _stand_in(self, loader: DataLoader[Any]) -> StandIn:
        """The stand-in that is read in place of a loader: its former one, or a free one of a similar loader."""
        arguments, key = self._changes.arguments(loader, self._held_back(loader)), loader_key(loader)
        stand_in: StandIn | None = kept_on(loader).get(StandIn, self._stand_ins.get(key))
        if stand_in is None or not stand_in.takes_over(arguments):
            persists = bool(arguments.get("persistent_workers"))
            self._starts_anew |= stand_in is not None and not stand_in.is_read and persists
            stand_in = StandIn(arguments, _say_once)
            if self._stood_in != os.getpid():
                # The script has dropped its loader by the end, and multiprocessing would kill these workers: their
                # temporary files would stay. Its own processes run no `atexit`. In others, torch's comes before it.
                self._stood_in = os.getpid()
                Finalize(self, _end_workers, (self._stand_ins, self._read), exitpriority=ENDS_FIRST)
                atexit.register(_end_workers, self._stand_ins, self._read)
        kept_on(loader)[StandIn] = stand_in
        self._read.add(loader)
        self._stand_ins.pop(key, None)
        self._stand_ins[key] = stand_in
        while len(self._stand_ins) > len(self._loop["loaders"]):  # drops those of data no longer trained on
            self._stand_ins.pop(next(iter(self._stand_ins)))
        return stand_in

    def _held_back(self, loader: DataLoader[Any]) -> list[str]:
        """Arguments that stay as the script has them: samplers that were not looked at may react to the training."""
        ahead = {name: self._changes.loader[name] for name in AHEAD if name in self._changes.loader}
        seen = self._loop.get("samplers", ())
        classes = map(class_of, own_samplers_of(loader)) if ahead else ()
        unseen = next((name for name in classes if name not in seen), None)
        if unseen is None:
            return []
        if differing := [name for name, value in ahead.items() if getattr(loader, name) != value]:
            self._held_back_why = (
                f"{' and '.join(differing)} stayed as in the script, since its sampler may react to the training "
                f"('autotune run' of this script sees whether {unseen} does)"
            )
        return list(ahead)

    def _handed_on(self, batches: Iterator[Any]) -> Iterator[Any]:
        copies = self._changes.copies
        return batches if copies is None else Watched(batches, copies.drawn)

    @harmless
    def _on_step(self, optimizer: Optimizer) -> None:
        """Applies the changes at the first step of each optimizer: by then the script has set itself up."""
        if optimizer in self._known:
            if self._notes is not None and self._trains:
                self._notes.stepped()
            return
        if self._early_steps < MAX_EARLY_STEPS and self._match.is_early(optimizer):
            self._early_steps += 1
            return
        self._known.add(optimizer)
        if not self._match.steps(optimizer):
            if self._is_measured is None:
                self._leave_as_it_is()
            return
        if self._trains != os.getpid():
            self._begin_training()
        self._enter_process()  # overrides what the script has set meanwhile, as bursts do; again in each fold
        if self._notes is not None:
            self._notes.stepped()
        self._change(_OPTIMIZER, lambda: self._changes.on_optimizer(optimizer))
        if self._changes.on_model and not self._changes.wants_models:
            self._change(_MODELS, lambda: self._change_models_of(optimizer))

    def _change_models_of(self, optimizer: Optimizer) -> None:
        if not steps_any(optimizer, self._changes.models):
            self._changes.on_models(self._match.models_of(optimizer))

    def _begin_training(self) -> None:
        """Reports, at the first step in a process, that it trains what was measured."""
        if not self._trains:
            self._compare()
        self._is_measured, self._trains = True, os.getpid()
        if self._notes is not None:
            self._notes.restart()
        note(self._shared, matches=True)

    def _leave_as_it_is(self) -> None:
        """Leaves a process that trains something else unchanged."""
        self._is_measured = False
        self._changes.leave_process()
        note(self._shared, matches=False)

    def _compare(self) -> None:
        """Warns if this place differs from where the script was tuned, or ends the script."""
        place_differences = differences(self._loop.get("place", {}))
        if not place_differences:
            return
        elsewhere = f"the result was measured elsewhere ({'; '.join(place_differences)})"
        if self._is_strict:
            raise SystemExit(f"autotune: {elsewhere}; tune here, or leave out --strict")
        if this_rank() == 0:
            _say(f"{elsewhere}: expect a different speed")

    def give_up(self, reason: str) -> None:
        """Leaves out what has failed, with a warning: training continues. Called while the error is handled."""
        place = _place_of(sys.exc_info()[1])
        if place not in self._failures:
            self._failures[place] = reason
            if self._notes is not None:
                self._notes.give_up()  # they would count as a training with the whole result
            _say(f"a part of the result could not be applied ({reason}); training continues")  # on each rank

    def _report(self) -> None:
        """Reports at exit which settings never took effect in a process that has trained."""
        if self._trains:
            for sentence in self._left_out:
                _say(sentence)
            if missing := self._missing():
                _say(f"{' and '.join(missing)}: this training is not the one that was measured")
        elif self._is_measured is False and self._shared is None:
            _say("the tuned model and its data were not seen together: this process trained as it is")

    def _missing(self) -> list[str]:
        missing = [f"a part of the result could not be applied ({reason})" for reason in self._failures.values()]
        if self._changes.loader and not (self._stood_in or missing):
            missing.append("no loader like the one that was tuned was seen")
        if self._starts_anew:
            missing.append("the loader was made again from other parts, so that its workers could not persist")
        if self._held_back_why is not None:
            missing.append(self._held_back_why)
        if self._why_restarted is not None:
            missing.append(f"{self._why_restarted}, so that workers could not persist")
        if self._changes.wants_models and not self._failures:
            missing.append("the model that was tuned was not seen")
        if self._changes.refused_form is not None:
            missing.append(f"the optimizer kept its own form ({self._changes.refused_form})")
        threads = self._changes.changed.get("num_threads")
        if threads is not None and torch.get_num_threads() != threads:
            missing.append(f"the script keeps setting {torch.get_num_threads()} threads")
        return missing


def _place_of(error: BaseException | None) -> tuple[Any, ...]:
    """An error's class, and the line that has raised it: its text may differ each time."""
    lines = list(traceback.walk_tb(error.__traceback__)) if error is not None else []
    return type(error), *((frame.f_code, line) for frame, line in lines[-1:])


def _say_once(sentence: str) -> None:
    if this_rank() == 0:
        _say(sentence)


def _say(sentence: str) -> None:
    print(f"autotune: {sentence}", file=sys.stderr)


def _end_workers(stand_ins: dict[str, StandIn], read: Iterable[DataLoader[Any]]) -> None:
    """Ends the workers of stand-ins: of those that are kept, and of those of loaders that were read."""
    stand_ins.clear()
    for loader in read:
        kept_on(loader).pop(StandIn, None)


_FOLLOWED = ("sampler", "batch_sampler")


class StandIn:
    """A loader that replaces a script's own, and later ones that the script makes like it: its workers persist.

    Random numbers are drawn as by the script's own loader.

    Args:
        arguments: Arguments of `DataLoader`: the script's own with the changes.
        say: Receives a warning about draws that differ.
    """

    def __init__(self, arguments: dict[str, Any], say: Callable[[str], None]) -> None:
        self._arguments = arguments
        self._say = say
        self._sampler = _sampler_of(arguments)
        self._loader = Drawing(**arguments)
        self._reader: weakref.ref[Watched] | None = None

    @property
    def why_restarted(self) -> str | None:
        """Why workers that persist were restarted; None where they were not."""
        return self._loader.why_restarted

    @property
    def is_read(self) -> bool:
        """Whether an epoch is unfinished; not every script reaches its end: Lightning counts batches."""
        reader = self._reader() if self._reader is not None else None
        if reader is None or reader.is_over:
            return False
        batches = length_of(self._loader)
        return batches is None or reader.count < batches

    def takes_over(self, arguments: dict[str, Any]) -> bool:
        """Whether it can replace a loader with these arguments; if so, it adopts that loader's order.

        It must not be in use, and its workers must hold the same objects: data set and collate function.
        """
        if self.is_read or not self._is_alike(arguments):
            return False
        self._sampler = _sampler_of(arguments)
        return True

    def read(self, script: DataLoader[Any], *, goes_on: bool) -> Iterator[Any]:
        """Starts an epoch.

        Args:
            script: The script's own loader.
            goes_on: Whether that loader was read before.
        """
        reading = self._loader.read(Own.of(script), self._sampler, ITERATE, self._say, goes_on=goes_on)
        self._reader = weakref.ref(reading)
        return reading

    def _is_alike(self, arguments: dict[str, Any]) -> bool:
        if arguments.keys() != self._arguments.keys() or not arguments.get("persistent_workers"):
            return False
        # By identity: a data set may define equality in any way.
        held = (name for name in arguments if name not in _FOLLOWED)
        return all(is_same(arguments[name], self._arguments[name]) for name in held)


def _sampler_of(arguments: dict[str, Any]) -> Any:
    """The sampler of a loader's batches; None for an iterable data set."""
    if "batch_sampler" in arguments:
        return arguments["batch_sampler"]
    sampler, size = arguments.get("sampler"), arguments["batch_size"]
    return sampler if sampler is None or size is None else BatchSampler(sampler, size, arguments["drop_last"])
