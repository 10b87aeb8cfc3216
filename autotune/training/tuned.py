"""Applies a TrainConfig to torch, with the same functions in bursts and in the user's own training.

So your training realises the measured gain: there is no second implementation that could differ.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from autotune.errors import ConfigError
from autotune.knobs import DATALOADER_ARGUMENTS, ModelFacts, TrainConfig, going_with, loader_arguments
from autotune.recorder.drawing import Drawing, Own
from autotune.recorder.realised import note_training
from autotune.results.result import Result
from autotune.results.trainings import order_of
from autotune.timing.loop import model_facts
from autotune.torch_settings.compiled import compile_loss
from autotune.torch_settings.naming import length_of
from autotune.torch_settings.precision import autocast
from autotune.training.copying import SideStream
from autotune.training.given import require_dataset, require_parts
from autotune.training.placement import PlacedDataset, unfit, unpacked
from autotune.training.ranks import Exchange, device_of_rank, join, on_all_ranks, shared_out, this_rank
from autotune.training.switching import InForce
from autotune.workload.batches import MicroBatches, move
from autotune.workload.fingerprint import model_differences

if TYPE_CHECKING:
    from torch.optim import Optimizer


Model = TypeVar("Model", bound=nn.Module)
_HEEDED = frozenset({"timeout", *(DATALOADER_ARGUMENTS[knob] for knob in going_with("num_workers"))})
"""Arguments of a DataLoader that act on its workers alone."""
IN_BURST = "AUTOTUNE_BURST"
"""Set while a script is being tuned: such a training is not noted."""


class Tuned:
    """Applies a TrainConfig to your training.

    Attributes:
        config: The configuration.
        device: The device to train on.
        result: The result that it came from, if it was loaded.
        source: The result's file.
        in_force: The settings of the model prepared last.
    """

    def __init__(
        self,
        config: TrainConfig,
        *,
        device: str | torch.device = "cpu",
        result: Result | None = None,
        source: str = "",
        strict: bool = False,
        realised: bool = False,
    ) -> None:
        self.config = config
        self.device = device_of_rank(torch_device(device))
        self.result = result
        self.source = source
        self._compared = False
        self._side_stream: SideStream | None = None
        self._placed: list[tuple[Any, Any, torch.device, PlacedDataset]] = []
        self._exchange = Exchange()
        self.strict = strict  # a model or optimizer that was not measured is an error
        self.realised = realised  # the rate of training is noted beside the result
        self.in_force: InForce | None = None

    @property
    def batch_size(self) -> int:
        """Samples of one micro-step."""
        return self.config.batch_size

    @property
    def accumulation_steps(self) -> int:
        """Micro-steps of one optimizer step."""
        return self.config.accumulation_steps

    @property
    def eval_batch_size(self) -> int:
        """Samples to evaluate at once: the result of ``--evaluation``, or the batch size of training."""
        evaluation = self.result.evaluation if self.result is not None else None
        return evaluation.batch_size if evaluation is not None else self.batch_size

    def dataloader_kwargs(self) -> dict[str, Any]:
        """The tuned keyword arguments of ``DataLoader``."""
        return loader_arguments(self.config)

    def dataloader(self, dataset: Dataset[Any], **kwargs: Any) -> DataLoader[Any]:
        """A ``DataLoader`` with the tuned settings; keyword arguments go to ``DataLoader`` and win.

        Under `torchrun`, or where ``torch.distributed`` has several ranks, each rank loads its own part of a map-style
        data set, with a ``DistributedSampler`` that starts each epoch by itself. The last batch may be incomplete,
        unless you pass ``drop_last=True``.

        Shuffling and random numbers are the same as with a plain ``DataLoader`` of your arguments; a warning appears
        where workers make that impossible. Where the data set is to be collated once (``data_placement``), the first
        batch does so, or warns that it cannot. The order of samples does not change.

        Each worker might read all of an iterable data set: one without a length gets no workers if the measured data
        set had a length.
        """
        require_dataset(dataset)
        rank = this_rank()
        return self.loader(dataset, **(kwargs if rank.alone else shared_out(dataset, kwargs, rank)))

    def loader(self, dataset: Dataset[Any], **kwargs: Any) -> TunedLoader:
        """The loader of `dataloader` in a single process; for code that shares samples itself, as frameworks do."""
        settings = self.dataloader_kwargs() | kwargs
        yours = kwargs if "num_workers" in kwargs else {}
        measured = self.result.workload.samples if self.result is not None else None
        is_other = measured is not None and length_of(dataset) is None
        if is_other and isinstance(dataset, IterableDataset) and not (yours or any(map(kwargs.get, _HEEDED))):
            settings["num_workers"] = 0  # where it has a length, torch warns of samples beyond that
        if settings["num_workers"] == 0:  # what only workers heed does not apply, unless you ask for no workers and it
            settings = {name: value for name, value in settings.items() if name not in _HEEDED - yours.keys()}
        if kwargs.get("batch_sampler") is not None:
            del settings["batch_size"]
        if self._places(dataset, settings):
            dataset, settings["collate_fn"] = self._place(dataset, settings.get("collate_fn")), unpacked
            if self.config.data_placement == "device":
                settings["pin_memory"] = False  # torch cannot pin what is on the device already
        loader = TunedLoader(dataset, **settings)
        loader.own = Own.given(kwargs)
        return loader

    def eval_dataloader(self, dataset: Dataset[Any], **kwargs: Any) -> DataLoader[Any]:
        """A ``DataLoader`` to evaluate with: every sample, in order, in batches of `eval_batch_size`.

        On several ranks, each reads every sample, so that sums must not be added up over ranks. To share the samples
        out, pass a ``DistributedSampler`` as `sampler`; any other sampler is not shared out. It loads as in training,
        except that an iterable data set gets no workers, each of which might read all of it. Keyword arguments go to
        ``DataLoader`` and win; those that only workers heed leave it the workers.
        """
        require_dataset(dataset)
        heeded = any(map(kwargs.get, _HEEDED))
        workers = {"num_workers": 0} if isinstance(dataset, IterableDataset) and not heeded else {}
        return self.loader(dataset, **{"batch_size": self.eval_batch_size, **workers, **kwargs})

    def _places(self, dataset: Any, settings: dict[str, Any]) -> bool:
        """Whether a loader's batches are selected from a data set that is collated once."""
        requested = self.config.data_placement != "loader" and settings["num_workers"] == 0
        batched = settings.get("batch_size") is not None or settings.get("batch_sampler") is not None
        return requested and batched and unfit(dataset) is None

    def _place(self, dataset: Any, collate: Any) -> PlacedDataset:
        """The placed data set: one for all loaders of the same data set."""
        if type(dataset) is PlacedDataset:  # isinstance() would ask the user's own class
            return dataset
        device = self.device if self.config.data_placement == "device" else torch.device("cpu")
        for placed_from, its_collate, its_device, placed in self._placed:
            # A bound method is a new object each time.
            if placed_from is dataset and its_collate == collate and its_device == device:
                return placed
        placed = PlacedDataset(dataset, collate or default_collate, device)
        self._placed.append((dataset, collate, device, placed))
        return placed

    def forget_placed(self, read: Iterable[Any]) -> None:
        """Drops the placed data sets but those that are still read, here and in each config `beside` this one."""
        kept = {id(dataset) for dataset in read}
        self._placed[:] = [entry for entry in self._placed if id(entry[3]) in kept]

    def prepare(self, model: Model, optimizer: Optimizer | None = None) -> tuple[Model, Optimizer | None]:
        """Moves the model, switches its layout and the optimizer's implementation, checkpoints and compiles, in place.

        It also sets process-wide settings (threads, allocator, TF32, cuDNN, attention). The optimizer's state follows
        the parameters, and so does a checkpoint that it loads later.

        Under `torchrun`, or where ``torch.distributed`` has several ranks, it returns a ``DistributedDataParallel``
        around your model. Call that one; yours is its ``module``, whose ``state_dict()`` has the same names as in a
        single process. With ``strategy=fsdp``, it returns your own model, whose parameters are split;
        ``torch.distributed.checkpoint.state_dict.get_model_state_dict`` gathers them.

        Raises:
            UsageError: They are no model and its optimizer.
            ConfigError: The optimizer has no such implementation; with `strict`, also when another model or optimizer
                was measured, for which there is otherwise a warning.
        """
        require_parts(model, optimizer)
        self.compare_workload(model, optimizer)
        rank = this_rank()
        self.device = device_of_rank(self.device)  # the process group may have started since `load`
        self.note_training(self.device)
        if not rank.alone:
            self.apply_process_settings()  # some are read when ranks meet
            join(self.device)
        self.apply(model, optimizer)
        if rank.alone:
            return model, optimizer
        shared = on_all_ranks(model, self.config, self.device, optimizer)
        self.exchanges(shared)
        return cast("Model", shared), optimizer

    def note_training(self, device: torch.device) -> None:
        """Notes the rate of training beside the result from now on, if `realised` is set.

        `prepare` calls it; call it yourself if you prepare the model without that.
        """
        if self.realised and self.result is not None and not os.environ.get(IN_BURST):
            note_training(order_of(self.result, self.source, self.config.effective_batch / self.config.ranks), device)

    def exchanges(self, model: nn.Module) -> None:
        """Lets `accumulate` decide when a ``DistributedDataParallel`` exchanges gradients.

        `prepare` calls it; call it yourself if you put the model on all ranks.
        """
        if isinstance(model, DistributedDataParallel):
            self._exchange.add(model)

    def apply(self, model: nn.Module, optimizer: Optimizer | None = None) -> None:
        """Does what `prepare` does in a single process; for code that puts the model on all ranks itself."""
        self.in_force = InForce(model, optimizer, self.device)
        self.in_force.switch(self.config)

    def compiled_loss(self, loss: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """The compiled form of a loss of model and batch, if the config compiles the loss; else the loss unchanged.

        That fuses the model's end with the operations after it, such as a softmax over a large vocabulary. It also
        compiles models whose parts the loss calls.
        """
        return compile_loss(loss, self.config)

    def accumulate(self, loader: Iterable[Any]) -> Iterator[MicroBatches]:
        """Yields groups of micro-batches, one group per optimizer step; each batch is moved when it is drawn.

        With a sized loader the last group may be shorter, and its ``len()`` is right for ``loss / len(micro_batches)``.
        Several ranks exchange gradients in the last backward pass of a group. If they leave a group early, all must
        leave it at the same micro-batch, as decided by an all_reduce, and then call ``optimizer.zero_grad()`` in place
        of ``optimizer.step()``.
        """
        around = self._exchange.only_last if self._exchange else None
        batches = iter(loader)
        remaining = length_of(loader) or 0
        while True:
            # Full groups without a size, or beyond it: several workers may each end with an incomplete batch.
            size = min(self.accumulation_steps, remaining) or self.accumulation_steps
            group = MicroBatches(batches, size, self.to_device, around)
            if not group.has_first:
                return
            yield group
            group.finish()
            remaining = max(0, remaining - size)

    def to_device(self, batch: Any) -> Any:
        """The batch on the device: tensors in mappings, sequences and dataclasses; anything with ``.to``."""
        config = self.config

        def copy(batch: Any) -> Any:
            return move(batch, self.device, non_blocking=config.non_blocking)

        if not config.device_prefetch or self.device.type != "cuda":
            return copy(batch)
        if self._side_stream is None:
            self._side_stream = SideStream(self.device)
        return self._side_stream.move(batch, copy)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """``torch.autocast`` for the tuned precision; does nothing for fp32 and tf32."""
        return autocast(self.config.precision, self.device)

    def scaler(self, **kwargs: Any) -> torch.amp.GradScaler:
        """A ``GradScaler``, enabled for fp16 only; keyword arguments such as ``growth_interval`` go to it."""
        return torch.amp.GradScaler(self.device.type, enabled=self.config.precision == "fp16", **kwargs)

    def compare_workload(self, model: nn.Module, optimizer: Optimizer | None) -> None:
        """Warns when another model or optimizer was measured; with `strict` it raises a `ConfigError`.

        Only the first model is looked at: a second one, such as a teacher, was not measured.
        """
        measured = self.result.workload.model if self.result is not None else None
        if self.result is None or measured is None or self._compared or not comparable(model, self.result):
            return
        self._compared = True
        if differences := model_differences(measured, ModelFacts(**model_facts([model], optimizer))):
            message = another_workload(self.source, "; ".join(differences))
            if self.strict:
                raise ConfigError(f"{message}; tune this workload, or load without strict")
            warnings.warn(message, stacklevel=3)

    def apply_process_settings(self) -> None:
        """Sets the process-wide settings: threads, allocator, TF32, cuDNN, attention. You may call it again."""
        InForce(None, None, self.device).switch(self.config)


def beside(tuned: Tuned, config: TrainConfig) -> Tuned:
    """Another config on the same device. Each data set that one of the two places is placed for both."""
    other = Tuned(config, device=tuned.device)
    other._placed = tuned._placed
    return other


def another_workload(source: str, why: str) -> str:
    """A sentence where a result is of another workload."""
    return (
        f"{source} was measured with another workload ({why}): expect a different gain; run 'autotune check {source} "
        "--model TARGET' to measure it"
    )


def comparable(model: torch.nn.Module, result: Result) -> bool:
    """Whether a model can be compared with the measured one.

    It cannot where the search changed arguments of ``build()``, which makes another model on purpose, nor where a lazy
    model has no weights before its first batch.
    """
    lazy = any(isinstance(weight, torch.nn.UninitializedParameter) for weight in model.parameters())
    return not lazy and result.best.parameters == result.baseline.parameters


def torch_device(device: str | torch.device) -> torch.device:
    """A device that exists here; ``rocm`` is torch's ``cuda``.

    Raises:
        ConfigError: When this machine or this build of torch has no such device.
    """
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    try:
        parsed = torch.device("cuda" if str(device) == "rocm" else device)
    except RuntimeError:  # unknown to torch
        parsed = None
    exists = parsed is not None and available.get(parsed.type, False)
    if parsed is None or not exists or (parsed.type == "cuda" and (parsed.index or 0) >= torch.cuda.device_count()):
        here = ", ".join(name for name, there in available.items() if there)
        raise ConfigError(
            f"expected a device that torch finds here ({here}), got {str(device)!r}; pass device= or --device"
        )
    return parsed


class TunedLoader(Drawing):
    """A loader that shuffles and draws random numbers as it would without the tuned settings."""

    own = Own()  # your own loader's, whose draws it reproduces
    _is_read = False

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if not (self.num_workers or self.own.workers):
            return super().__iter__()
        goes_on, self._is_read = self._is_read, True
        # Looked up now: the recorder, or the notes of a training, may have wrapped it.
        return self.read(self.own, None, DataLoader.__iter__, _warn, goes_on=goes_on)


def _warn(sentence: str) -> None:
    if this_rank().number == 0:
        warnings.warn(sentence, stacklevel=2)
