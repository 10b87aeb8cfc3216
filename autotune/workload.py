"""Workload: what the user trains, and how `module:attr` leads to it.

`build()` runs again in every burst, in the burst's own process: nothing is pickled. Defining a Workload
does not import torch; `load_workload` does, because the user's module will.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.config import Parameters, TrainConfig
from autotune.errors import TargetError, WorkloadError

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.data import Dataset, Sampler

Build = Callable[..., Any]
_PACKAGE_FOLDER = str(Path(__file__).parent)


@dataclass(frozen=True)
class Workload:
    """What is trained: `build()` returns one.

    Attributes:
        model: An ``nn.Module`` on the CPU; it is moved to the device by autotune.
        dataset: A map-style or iterable dataset.
        loss: ``(model, batch) -> scalar Tensor``; the batch is already on the device.
        optimizer: ``(params) -> Optimizer``; AdamW when None. Its state is part of the memory.
        batch_size: Micro-batch that you train with today.
        accumulation_steps: Micro-steps of one optimizer step that you train with today.
        baseline: The whole config that you train with today, instead of the two above.
        collate_fn: As for ``DataLoader``.
        sampler: As for ``DataLoader``; without one a map-style dataset is shuffled.
        worker_init_fn: As for ``DataLoader``.
        clip_grad_norm: Applied in every burst: it costs time in training too.
        sample_size: ``sample -> relative size``, for variable-length data.
        name: Shown to people; the target's name when None.
    """

    model: nn.Module
    dataset: Dataset[Any]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    optimizer: Callable[[Any], Optimizer] | None = None
    batch_size: int = 32
    accumulation_steps: int = 1
    baseline: TrainConfig | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    sampler: Sampler[Any] | None = None
    worker_init_fn: Callable[[int], None] | None = None
    clip_grad_norm: float | None = None
    sample_size: Callable[[Any], float] | None = None
    name: str | None = None

    @property
    def baseline_config(self) -> TrainConfig:
        """The config that the user trains with today.

        Raises:
            ConfigError: When `batch_size` or `accumulation_steps` is out of range.
        """
        if self.baseline is not None:
            return self.baseline
        return TrainConfig().replace(batch_size=self.batch_size, accumulation_steps=self.accumulation_steps)

    def make_optimizer(self) -> Optimizer:
        """A fresh optimizer over the model's trainable parameters."""
        import torch

        params = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        return self.optimizer(params) if self.optimizer is not None else torch.optim.AdamW(params)


def split_target(target: str) -> tuple[str, str]:
    """The module (or path) and the attribute of ``module:attr`` or ``path.py:attr``.

    Raises:
        TargetError: When the target is not of that form.
    """
    module, colon, attribute = target.rpartition(":")
    if not colon or not module or not attribute:
        raise TargetError(
            f"--model expects module:attr or path/to/file.py:attr, such as train:build, but {target!r} came"
        )
    return module, attribute


def import_target(target: str) -> Build:
    """The build callable that a target names; the working directory is importable, as under uvicorn.

    Raises:
        TargetError: The module or the attribute does not exist, or is not callable.
        WorkloadError: The module's own code raised while it was imported.
    """
    module_name, attribute = split_target(target)
    if module_name.endswith(".py"):
        path = Path(module_name).resolve()
        if not path.is_file():
            raise TargetError(f"{target!r}: there is no file {path}; check the path before the colon")
        folder, module_name = str(path.parent), path.stem
    else:
        folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise TargetError(
                f"{target!r}: there is no module {error.name!r} in {folder} or among the installed packages; "
                "run autotune in the folder that holds it, or give a path such as folder/train.py:build"
            ) from None
        raise _user_error(error, f"importing {module_name!r} failed") from error
    except (Exception, SystemExit) as error:
        raise _user_error(error, f"importing {module_name!r} failed") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [name for name, value in vars(found).items() if callable(value) and not name.startswith("_")]
            raise TargetError(
                f"{target!r}: the module has no attribute {part!r}; callables in it: {', '.join(public[:8]) or 'none'}"
            )
        found = getattr(found, part)
    if not callable(found):
        raise TargetError(
            f"{target!r} is a {type(found).__name__}, but a callable that returns a Workload was expected; "
            "wrap it in a function"
        )
    return found  # type: ignore[no-any-return]


def load_workload(target: str, parameters: Parameters | None = None) -> Workload:
    """Imports the target, calls it with the parameters, and adapts what it returns.

    Raises:
        TargetError: The target leads nowhere, or does not take these parameters.
        WorkloadError: The user's code raised, or returned what cannot be adapted.
    """
    build = import_target(target)
    parameters = parameters or {}
    check_signature(build, target, parameters)
    try:
        built = build(**parameters)
    except (Exception, SystemExit) as error:
        raise _user_error(error, f"{target} raised") from error
    return adapt(built, target)


def adapt(built: Any, target: str) -> Workload:
    """A Workload from what `build()` returned: a Workload, or a ``(model, dataset, loss)`` tuple.

    Raises:
        WorkloadError: When it is neither, or its parts are of the wrong kind.
    """
    if isinstance(built, tuple) and len(built) == 3:
        built = Workload(*built)
    if not isinstance(built, Workload):
        came = f"a tuple of {len(built)}" if isinstance(built, tuple) else f"a {type(built).__name__}"
        raise WorkloadError(
            f"{target} must return an autotune.Workload or a tuple (model, dataset, loss), but {came} came; "
            "see 'How to write a build()' in the README"
        )
    _check_parts(built, target)
    return built


def user_trace(error: BaseException) -> str:
    """The traceback cut to the user's own frames: ours, torch's and the import machinery's are left out."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_foreign(frame.filename)]
    lines = traceback.format_list(own) if own else []
    return "".join([*lines, *traceback.format_exception_only(type(error), error)]).rstrip()


def wrap_user_error(error: BaseException, what: str) -> WorkloadError:
    """A WorkloadError that says what failed, with the user's own frames where their code raised."""
    return _user_error(error, what)


def _user_error(error: BaseException, what: str) -> WorkloadError:
    summary = "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()[-1]
    return WorkloadError(f"{what}: {summary[:500]}; mend it and run again", trace=user_trace(error)[-8000:])


def _is_foreign(filename: str) -> bool:
    """Whether a frame belongs to autotune, torch or Python itself rather than to the user."""
    parts = Path(filename).parts
    return (
        filename.startswith((_PACKAGE_FOLDER, "<frozen", "<string"))
        or ("site-packages" in parts and "torch" in parts)
        or filename.startswith(str(Path(traceback.__file__).parent / "importlib"))
    )


def check_signature(build: Build, target: str, parameters: Collection[str]) -> None:
    """`build` takes only keyword arguments with defaults, and all the named ones.

    Raises:
        TargetError: When an argument has no default, or a named one is not taken.
    """
    try:
        signature = inspect.signature(build)
    except (TypeError, ValueError):  # some builtins have none
        return
    kinds = signature.parameters.values()
    required = [p.name for p in kinds if p.default is p.empty and p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD}]
    if missing := [name for name in required if name not in parameters]:
        raise TargetError(f"{target} needs the argument {missing[0]!r}; give it a default: build() is called without")
    takes_any = any(p.kind is p.VAR_KEYWORD for p in kinds)
    if not takes_any and (unknown := [name for name in parameters if name not in signature.parameters]):
        raise TargetError(
            f"{target} takes no argument {unknown[0]!r}; it takes {', '.join(signature.parameters) or 'none'}"
        )


def _check_parts(workload: Workload, target: str) -> None:
    """Each part is of the kind that the contract names; costs no computation."""
    from torch import nn

    def wrong(part: str, expected: str, came: object, remedy: str) -> WorkloadError:
        return WorkloadError(f"{target}: {part} must be {expected}, but a {type(came).__name__} came; {remedy}")

    model, dataset = workload.model, workload.dataset
    if not isinstance(model, nn.Module):
        raise wrong("model", "an nn.Module", model, "return (model, dataset, loss) in this order")
    if not (hasattr(dataset, "__getitem__") or hasattr(dataset, "__iter__")):
        raise wrong("dataset", "a map-style or iterable Dataset", dataset, "give the Dataset, not a path or a loader")
    if hasattr(dataset, "batch_sampler"):
        raise wrong("dataset", "a Dataset", dataset, "pass loader.dataset: autotune makes the DataLoader itself")
    callables = {
        "loss": workload.loss, "optimizer": workload.optimizer, "collate_fn": workload.collate_fn,
        "worker_init_fn": workload.worker_init_fn, "sample_size": workload.sample_size,
    }  # fmt: skip
    for part, value in callables.items():
        if not callable(value) and not (value is None and part != "loss"):
            raise wrong(part, "a callable", value, "pass the function itself, not its result")
    if workload.baseline is not None and not isinstance(workload.baseline, TrainConfig):
        raise wrong("baseline", "an autotune.TrainConfig", workload.baseline, "write TrainConfig(batch_size=…)")
    workload.baseline_config  # noqa: B018 - raises when batch_size or accumulation_steps is out of range
    parameters = list(model.parameters())
    if not any(parameter.requires_grad for parameter in parameters):
        raise WorkloadError(f"{target}: the model has no trainable parameter; set requires_grad on what is trained")
    if elsewhere := {str(p.device) for p in parameters if p.device.type != "cpu"}:
        raise WorkloadError(
            f"{target}: the model must be on the CPU, but parameters are on {', '.join(sorted(elsewhere))}; "
            "leave out .to(device): autotune moves it"
        )
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__") and len(dataset) == 0:
        raise WorkloadError(f"{target}: the dataset is empty (len() is 0); check its path or its filter")
