"""Shared by all integrations: applying knobs that frameworks lack, tuned loaders, and warnings of missing knobs."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import warnings
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from autotune.errors import UsageError
from autotune.knobs import DATALOADER_ARGUMENTS, HALF, KNOBS, OWN_MODES, ddp_arguments, keep_gradients, variables
from autotune.recorder.drawing import Own
from autotune.torch_settings.process_settings import why_no_form
from autotune.torch_settings.undo import remember
from autotune.training.given import require_parts
from autotune.training.tuned import Tuned, TunedLoader
from autotune.workload.adapters.loaders import LoaderParts, read_loader
from autotune.workload.user_errors import described

if TYPE_CHECKING:
    from torch.optim import Optimizer

UNCLIPPED = "it does not clip gradients that a fused optimizer unscales"
Missing = dict[str, str]
"""Knobs that are not in effect, and why."""


def package_of(*names: str) -> str:
    """The name of a framework's package: one that is already imported, else the first that is installed.

    Raises:
        ModuleNotFoundError: None is installed; the error names the first.
    """
    for name in sorted(names, key=lambda name: name not in sys.modules):
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(name).__name__
    return importlib.import_module(names[0]).__name__


def tell(framework: str, tuned: Tuned, missing: Mapping[str, str]) -> tuple[str, ...]:
    """Warns, in one sentence, of the knobs that are not in effect, including ``device``; returns their names."""
    if missing:
        tuned_values = {**tuned.config.model_dump(), "device": str(tuned.device)}
        details = "; ".join(f"{knob}={tuned_values[knob]} ({why})" for knob, why in missing.items())
        warnings.warn(f"{framework} does not apply what was tuned: {details}", stacklevel=3)
    return tuple(missing)


def require_tuned(tuned: object) -> None:
    """Checks that an integration is given what `autotune.load` returns.

    Raises:
        UsageError: It is something else.
    """
    if not isinstance(tuned, Tuned):
        raise UsageError(f"expected what autotune.load returns, got {described(tuned)}; pass autotune.load(path)")


def half_precision(tuned: Tuned) -> tuple[str | None, Missing]:
    """The mixed precision, ``bf16``, ``fp16`` or None, and what no framework can apply.

    Raises:
        UsageError: `tuned` is something else.
    """
    require_tuned(tuned)
    precision = tuned.config.precision
    if precision == "fp16" and tuned.device.type == "cpu":
        return None, {"precision": "it mixes fp16 on a GPU only; fp32 is used"}
    return (precision if precision in HALF else None), {}


def other_copies(tuned: Tuned) -> Missing:
    """``non_blocking``, if it is off: the framework never waits for copies from pinned memory to a GPU."""
    config = tuned.config
    if tuned.device.type == "cuda" and config.pin_memory and not config.non_blocking:
        return {"non_blocking": "it never waits for a copy from pinned memory"}
    return {}


def ddp_settings(tuned: Tuned) -> tuple[dict[str, Any], Missing]:
    """Arguments of ``DistributedDataParallel`` by which several ranks exchange gradients; none for a single rank.

    Also returns what a framework cannot apply. Frameworks skip the exchange in the very first micro-batch, which makes
    DDP fail an assertion under ``static_graph`` (seen with torch 2.13); `Tuned.accumulate` does not skip it.
    """
    config = tuned.config
    if config.ranks == 1:
        return {}, {}
    os.environ.update(variables(config))  # the process group does not exist yet
    if config.strategy == "fsdp":
        return {}, {"strategy": "what was measured is torch's FSDP2 on repeated blocks: ask it for its own"}
    missing: Missing = {}
    if config.exchange_dtype == "bf16":
        missing["exchange_dtype"] = "register torch's bf16_compress_hook on the model that it wraps"
    if config.static_graph and config.accumulation_steps > 1:
        missing["static_graph"] = "it accumulates from the first micro-batch on, on which DDP's static graph fails"
        config = config.replace(static_graph=False)
    return ddp_arguments(config), missing


def ddp_words(tuned: Tuned, accepted: Container[str], prefix: str = "") -> tuple[dict[str, Any], Missing]:
    """`ddp_settings` in a framework's words; what it has no word for is missing. Without a value, torch's own holds."""
    settings, missing = ddp_settings(tuned)
    words = {f"{prefix}{name}": value for name, value in settings.items()}
    lacks = [name for name, value in settings.items() if value and f"{prefix}{name}" not in accepted]
    given = {word: value for word, value in words.items() if word in accepted and value is not None}
    return given, missing | dict.fromkeys(lacks, "it has no word for it")


def compiles_itself(tuned: Tuned) -> bool:
    """Whether Accelerate, by itself or under transformers, may compile.

    For fp32 on CUDA it would switch TF32 on, and it supports only Inductor's modes.
    """
    config = tuned.config
    fp32_on_cuda = tuned.device.type == "cuda" and config.precision == "fp32"
    return config.compile_mode not in {None, *OWN_MODES} and not fp32_on_cuda


def differences(values: Mapping[str, tuple[Any, Any]]) -> Missing:
    """The knobs whose values differ in ``{knob: (tuned value, value in effect)}``, and the value in effect."""
    return {knob: f"it is {actual}" for knob, (expected, actual) in values.items() if actual != expected}


def uneven(batches: float | None, accumulation: int) -> Missing:
    """Says that the last step of an epoch weighs less, if the epoch's batches do not divide by the accumulation."""
    rest = (batches or 0) % accumulation
    if not rest > 0:  # NaN, for batches without end
        return {}
    count = "1 batch is" if rest == 1 else f"{rest:.0f} batches are"
    why = f"{count} left for the last step of an epoch, and it divides by {accumulation} all the same"
    return {"accumulation_steps": why}


def splitting(accelerator: Any) -> int:
    """The ranks that split a batch of the loader; 1 where each rank draws its own."""
    return int(accelerator.num_processes) if accelerator.split_batches else 1


def require_in_order(tuned: object, model: object, optimizer: object, loader: object) -> None:
    """Checks that what `autotune.load` returns, a model, its optimizer and its loader are passed in this order.

    Raises:
        UsageError: One of them is something else.
    """
    require_tuned(tuned)
    require_parts(model, optimizer)
    if not isinstance(getattr(loader, "base_dataloader", loader), DataLoader):
        raise UsageError(f"expected a DataLoader as loader, got {described(loader)}; pass model, optimizer, loader")


def apply(
    tuned: Tuned,
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    *,
    device: torch.device,
    compiles: bool = False,
    leave: Sequence[str] = (),
    micro_steps: int | None = None,
) -> Missing:
    """Does what `Tuned.prepare` does, for a model that a framework has placed and optimizers that it has made.

    Args:
        tuned: What to apply.
        model: Changed in place.
        optimizers: None, one, or several; changed in place.
        device: Where the framework trains.
        compiles: Whether the framework compiles the model, or the step.
        leave: Other knobs that the framework applies itself.
        micro_steps: Of an optimizer step; None: as tuned.

    Returns:
        The knobs that could not be applied.
    """
    tuned.compare_workload(model, optimizers[0] if optimizers else None)
    tuned.note_training(device)
    missing: Missing = {"device_prefetch": "it copies batches itself"} if tuned.config.device_prefetch else {}
    config = tuned.config.replace(**{knob: KNOBS[knob].default for knob in leave})
    config = config.replace(accumulation_steps=micro_steps or tuned.accumulation_steps)
    if compiles:
        keep_gradients(model, config)
        config = config.eager
    if config.compiles_loss:
        missing["compile_mode"] = "it compiles the model alone: wrap your loss in tuned.compiled_loss"
    if device.type != tuned.device.type:
        missing["device"] = f"it trains on {device}"
    for optimizer in optimizers or (None,):
        own, form = config, config.optimizer_impl
        if optimizer is not None and form != "default" and (why := why_no_form(optimizer, form)) is not None:
            missing["optimizer_impl"] = why
            own = config.replace(optimizer_impl="default")
        Tuned(own, device=device).apply(model, optimizer)
        model, config = nn.Identity(), config.eager  # the model is done with the first optimizer
    return missing


def calls_undone(model: nn.Module) -> contextlib.ExitStack:
    """Changes nothing; closing it restores the calls of a model and its parts, which `apply` replaces."""
    undo = contextlib.ExitStack()
    for part in model.modules():
        for name in ("forward", "_compiled_call_impl"):
            undo.callback(remember(part, name))
    return undo


def tuned_loader(
    tuned: Tuned, loader: DataLoader[Any], accumulation: int | None = None, ranks: int = 1, *, keeps: bool = False
) -> tuple[TunedLoader, Missing]:
    """A loader of the same samples, drawn and collated as before, with the tuned settings; and the missing knobs.

    The batches of the user's own batch sampler stay unchanged.

    Args:
        tuned: What to apply.
        loader: The user's loader.
        accumulation: Micro-steps of an optimizer step. If they are not the tuned ones, the loader keeps its batch size,
            so that a step keeps its samples. None where the framework does not decide it.
        ranks: How many ranks split a batch of the loader.
        keeps: Whether the loader keeps its batch size in any case.
    """
    parts = read_loader(loader)
    missing: Missing = {}
    settings: dict[str, Any] = {}
    if parts.batch_size is None:
        settings = {"batch_size": None} if parts.batches is None else {"batch_sampler": parts.batches}
        missing["batch_size"] = "the loader's own batches are kept"
    elif keeps or accumulation not in {None, tuned.accumulation_steps}:
        settings["batch_size"] = parts.batch_size
        missing = differences({"batch_size": (tuned.batch_size, parts.batch_size // ranks)})
    else:
        settings["batch_size"] = tuned.batch_size * ranks
    return _made_again(tuned, parts, settings), missing


def draw_as(prepared: Any, loader: TunedLoader) -> Missing:
    """Lets the loader that Accelerate has made of a tuned one draw random numbers as that does.

    Where it cannot, its workers do not persist: torch would draw their seed once instead of in each epoch.
    """
    made = getattr(prepared, "base_dataloader", prepared)
    if type(made) is DataLoader:
        made.__class__ = TunedLoader
        made.own = loader.own
    elif made is not loader and made.persistent_workers:
        vars(made)["persistent_workers"] = False  # torch refuses to set it
        return {"persistent_workers": f"with a {type(made).__name__} they would change the shuffles"}
    return {}


def evaluation_loader(tuned: Tuned, loader: Any) -> Any:
    """An evaluation loader with the same samples in the same order, in batches of the tuned evaluation size.

    A loader that makes its own batches stays unchanged, as does one that drops the last (of larger batches, it would
    drop more samples), and every loader if no such size was searched.
    """
    if tuned.result is None or tuned.result.evaluation is None or not isinstance(loader, DataLoader):
        return loader
    parts = read_loader(loader)
    if parts.batch_size is None or parts.drop_last:
        return loader
    settings: dict[str, Any] = {"batch_size": tuned.eval_batch_size}
    if isinstance(parts.loader.dataset, IterableDataset):  # each of training's workers might read all of it
        settings["num_workers"] = parts.loader.num_workers
    return _made_again(tuned, parts, settings)


def _made_again(tuned: Tuned, parts: LoaderParts, settings: dict[str, Any]) -> TunedLoader:
    """A loader of the same parts with the tuned settings, of which some are given; the framework shares out samples."""
    loader = parts.loader
    settings = settings | {
        "sampler": parts.sampler,
        "collate_fn": loader.collate_fn,
        "worker_init_fn": loader.worker_init_fn,
        "generator": loader.generator,
    }
    if parts.batch_size is not None:
        settings["drop_last"] = parts.drop_last
    if settings.get("num_workers", tuned.config.num_workers):  # torch refuses them without workers
        own = {"timeout": loader.timeout, "multiprocessing_context": loader.multiprocessing_context}
        settings |= {name: value for name, value in own.items() if tuned.dataloader_kwargs().get(name) is None}
    made = tuned.loader(loader.dataset, **settings)
    made.own = Own.of(loader)
    return made


def loader_differences(tuned: Tuned, loader: object) -> Missing:
    """The loader's settings that differ from the tuned ones."""
    if not isinstance(loader, DataLoader):
        return dict.fromkeys(DATALOADER_ARGUMENTS, "the train data comes from no single DataLoader")
    return differences(
        {knob: (getattr(tuned.config, knob), value) for knob, value in read_loader(loader).settings.items()}
    )
