"""Loads a workload from `module:attr`: the import, the call, and checks of its return value."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from autotune.errors import ConfigError, TargetError, WorkloadError
from autotune.knobs import Parameters, Scalar, TrainConfig
from autotune.timing.failing import exhausted
from autotune.units import quoted
from autotune.workload.by_value import is_sent, load_sent
from autotune.workload.user_errors import described, wrap_user_error
from autotune.workload.workload import Workload

Build = Callable[..., Any]
_FRAMEWORKS = {"lightning.pytorch", "pytorch_lightning", "transformers.trainer"}
"""Modules with the classes that `autotune.workload.adapters` adapts; without them, there is nothing to adapt."""


def split_target(target: str) -> tuple[str, str]:
    """The module (or path) and the attribute of ``module:attr`` or ``path.py:attr``.

    Raises:
        TargetError: The target does not have that form.
    """
    module, colon, attribute = target.rpartition(":")
    is_path = module.endswith(".py")
    if not colon or not module or not attribute or (module.startswith(".") and not is_path):
        raise TargetError(
            f"expected a function as module:function or path/to/file.py:function, got {target!r}; "
            "name one: --model train:build"
        )
    return module, attribute


def require_target(target: str) -> None:
    """Checks without importing it that the file or the package of a target is there.

    Raises:
        TargetError: It is not, or the target does not have the form of one.
    """
    module, _ = split_target(target)
    if module.endswith(".py"):
        _locate(Path(module).resolve(), target)
        return
    package = module.partition(".")[0]
    try:
        here = Path.cwd()
    except FileNotFoundError:  # it has been deleted; the import finds out
        return
    if package not in sys.modules and not (
        PathFinder.find_spec(package, [str(here)]) or importlib.util.find_spec(package)
    ):
        raise _no_module(package, here, target)


def _no_module(name: str, folder: Path, target: str) -> TargetError:
    return TargetError(
        f"{target!r}: expected a module that can be imported, but there is no module {name!r} in {folder} or "
        "among the installed packages; run autotune in the folder that holds it, or give a path: --model "
        "folder/train.py:build"
    )


def import_target(target: str) -> Build:
    """The build callable that a target names; the working directory is importable, as under uvicorn.

    Raises:
        TargetError: The module or the attribute does not exist, or is not callable.
        WorkloadError: The module's own code raised during the import.
    """
    if is_sent(target):
        name, build = load_sent(target)
        return _callable(build, name)
    named, attribute = split_target(target)
    path = Path(named).resolve() if named.endswith(".py") else None
    folder, module_name = _locate(path, target) if path else (Path.cwd(), named)
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise _no_module(error.name, folder, target) from None
        raise wrap_user_error(error, f"{target!r}: importing {module_name!r} failed") from error
    except SystemExit as error:
        remedy = 'put code that must not run on import under `if __name__ == "__main__":`'
        raise wrap_user_error(error, f"{target!r}: importing {module_name!r} ended the process", remedy) from error
    except Exception as error:
        raise wrap_user_error(error, f"{target!r}: importing {module_name!r} failed") from error
    origin = getattr(module, "__file__", None)
    if path is not None and (origin is None or Path(origin).resolve() != path):
        owner = origin or "Python itself"
        raise TargetError(f"{target!r}: the module name {module_name!r} already belongs to {owner}; rename {path.name}")
    return _find_build(module, attribute, target)


def _locate(path: Path, target: str) -> tuple[Path, str]:
    """The folder to import from, and the module's name there: a file inside a package is imported as part of it."""
    if not path.is_file():
        raise TargetError(
            f"{target!r}: expected a file before the colon, but there is no {path}; look for it: ls {path.parent}"
        )
    names = [] if path.stem == "__init__" else [path.stem]
    folder = path.parent
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    if dotted := [name for name in names if "." in name]:
        raise TargetError(f"{target!r}: {dotted[0]!r} cannot be imported, since its name holds a dot; rename it")
    return folder, ".".join(names)


def _find_build(module: Any, attribute: str, target: str) -> Build:
    """The callable at a dotted attribute of a module."""
    value = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            names = [
                name
                for name, member in getattr(value, "__dict__", {}).items()
                if callable(member) and getattr(member, "__module__", None) == module.__name__ and name[0] != "_"
            ]
            raise TargetError(
                f"{target!r}: expected a function {part!r} in {getattr(module, '__file__', None) or module.__name__}, "
                f"which defines {', '.join(names[:8]) or 'no function'}; write one, or name another with --model"
            )
        value = getattr(value, part)
    return _callable(value, target)


def _callable(value: Any, target: str) -> Build:
    """The value of a target, if it can be called for a workload."""
    from torch import nn

    if not callable(value) or isinstance(value, nn.Module):
        raise TargetError(
            f"{target!r}: expected a function that returns a Workload, got {described(value)}; "
            "wrap it in `def build():`"
        )
    return value  # type: ignore[no-any-return]


def load_workload(target: str, parameters: Parameters | None = None) -> Workload:
    """Imports the target, calls it with the parameters, and adapts what it returns.

    Raises:
        TargetError: The target does not exist, or does not take these parameters.
        WorkloadError: The user's code raised, or its return value cannot be adapted.
    """
    build = import_target(target)
    if is_sent(target):
        target = load_sent(target)[0]
    parameters = parameters or {}
    check_signature(build, target, {name: (value,) for name, value in parameters.items()})
    import torch

    seed = torch.initial_seed()
    try:
        built = build(**parameters)
    except (Exception, SystemExit) as error:
        if exhausted(error, "cpu") is not None:
            remedy = "the model does not fit into this machine's memory: free some, or make it smaller"
            raise wrap_user_error(error, f"{target} raised", remedy) from error
        raise wrap_user_error(error, f"{target} raised") from error
    workload = adapt(built, target)
    if torch.initial_seed() != seed:  # a transformers.Trainer sets the seed: every burst would draw the same samples
        torch.manual_seed(seed)
    return workload


def adapt(built: Any, target: str) -> Workload:
    """A Workload from the return value of `build()`: a Workload, a ``(model, dataset, loss)`` tuple, or a framework's.

    Raises:
        WorkloadError: The value is none of these, or its parts are of the wrong kind.
    """
    if not isinstance(built, Workload) and not _FRAMEWORKS.isdisjoint(sys.modules):
        from autotune.workload.adapters import from_framework

        built = from_framework(built, target)
    if isinstance(built, tuple) and len(built) == 3:
        built = Workload(*built)
    if not isinstance(built, Workload):
        raise WorkloadError(
            f"{target}: expected an autotune.Workload, a tuple (model, dataset, loss), a LightningModule with its data "
            f"or a transformers.Trainer, got {described(built)}; end it with: return model, dataset, loss"
        )
    _check_parts(built, target)
    _check_dataset(built, "dataset", target)
    if built.evaluation is not None:
        _check_dataset(built, "evaluation", target)
    return built


def check_signature(build: Build, target: str, parameters: Mapping[str, Collection[Scalar]]) -> None:
    """Checks that `build` has a default for each argument, and takes all of `parameters` with their values.

    Raises:
        TargetError: An argument has no default, or `build` does not take a parameter, or not a text for a number.
    """
    try:
        signature = inspect.signature(build)
    except (TypeError, ValueError):  # some builtins have none
        return
    kinds = signature.parameters.values()
    named = {p.name: p for p in kinds if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}}
    required = [p.name for p in kinds if p.default is p.empty and p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD}]
    if missing := [name for name in required if name not in parameters or name not in named]:
        raise TargetError(f"{target} needs the argument {missing[0]!r}; give it a default: build() is called without")
    takes_any = any(p.kind is p.VAR_KEYWORD for p in kinds)
    if not takes_any and (unknown := [name for name in parameters if name not in named]):
        raise TargetError(f"{target} takes no argument {unknown[0]!r}; it takes {', '.join(named) or 'none'}")
    for name in parameters.keys() & named.keys():
        default, texts = named[name].default, [value for value in parameters[name] if isinstance(value, str)]
        if texts and isinstance(default, (int, float)):
            raise TargetError(
                f"{target}: expected values like its default {default!r} for the argument {name!r}, got "
                f"{quoted(texts[0])}; pass others"
            )


def _check_parts(workload: Workload, target: str) -> None:
    """Checks the kinds of the model, the callables and the baseline, without computing anything."""
    from torch import nn

    wrong = functools.partial(_wrong, target)
    model = workload.model
    if not isinstance(model, nn.Module):
        remedy = "call it" if isinstance(model, type) else "return (model, dataset, loss) in this order"
        raise wrong("model", "an nn.Module", model, remedy)
    callables = {
        "loss": workload.loss, "optimizer": workload.optimizer, "collate_fn": workload.collate_fn,
        "worker_init_fn": workload.worker_init_fn, "sample_size": workload.sample_size,
    }  # fmt: skip
    for part, value in callables.items():
        if not callable(value) and not (value is None and part != "loss"):
            raise wrong(part, "a callable", value, "pass the function itself, not its result")
    if str(getattr(workload.loss, "__module__", "")).startswith("torch.nn"):
        name = getattr(workload.loss, "__name__", type(workload.loss).__name__)
        raise WorkloadError(
            f"{target}: expected a loss of the model and a batch, got torch's {name}, which takes scores and labels; "
            "call it in a function of your own: def loss(model, batch)"
        )
    _check_baseline(workload, target)
    parameters = list(model.parameters())
    if not any(parameter.requires_grad for parameter in parameters):
        raise WorkloadError(f"{target}: the model has no trainable parameter; set requires_grad on what is trained")
    if elsewhere := {str(t.device) for t in (*parameters, *model.buffers()) if t.device.type != "cpu"}:
        raise WorkloadError(
            f"{target}: expected a model on the CPU, got one with parts on {', '.join(sorted(elsewhere))}; "
            "leave out .to(device): autotune moves it"
        )


def _wrong(target: str, part: str, expected: str, got: object, remedy: str) -> WorkloadError:
    return WorkloadError(f"{target}: expected {expected} as {part}, got {described(got)}; {remedy}")


def _check_baseline(workload: Workload, target: str) -> None:
    """Checks that the baseline is a config in range, and stated once."""
    if workload.baseline is not None and not isinstance(workload.baseline, TrainConfig):
        remedy = "write TrainConfig(batch_size=…)"
        raise _wrong(target, "baseline", "an autotune.TrainConfig", workload.baseline, remedy)
    try:
        config = workload.baseline_config
    except ConfigError as error:
        raise WorkloadError(f"{target}: {error}") from None
    for knob in ("batch_size", "accumulation_steps"):
        stated, used = getattr(workload, knob), getattr(config, knob)
        if stated in {used, getattr(Workload, knob)}:
            continue
        if workload.baseline is None:  # a text, which the config has converted
            raise _wrong(target, knob, "a whole number", stated, f"pass {knob}={used}")
        raise WorkloadError(
            f"{target}: {knob} is {stated}, but that of the baseline is {used}; state it in the baseline only"
        )


def dataset_remedy(dataset: object) -> str | None:
    """What to pass in place of an object that no DataLoader reads; None for a dataset."""
    from torch.utils.data import DataLoader, IterableDataset

    if isinstance(dataset, DataLoader):
        return "pass loader.dataset: autotune makes the DataLoader itself"
    if isinstance(dataset, (str, bytes, type)) or not (hasattr(dataset, "__getitem__") or hasattr(dataset, "__iter__")):
        return "pass the Dataset itself, not its path or its class"
    if not (isinstance(dataset, IterableDataset) or hasattr(dataset, "__getitem__")):
        return "derive it from torch.utils.data.IterableDataset, or DataLoader will not iterate it"
    return None


def _check_dataset(workload: Workload, part: str, target: str) -> None:
    """Checks that a DataLoader takes the dataset for training or evaluation, and that it is not empty."""
    from torch.utils.data import IterableDataset

    dataset: Any = getattr(workload, part)

    def wrong(remedy: str) -> WorkloadError:
        got = described(dataset)
        return WorkloadError(f"{target}: expected a map-style or iterable Dataset as {part}, got {got}; {remedy}")

    if (remedy := dataset_remedy(dataset)) is not None:
        raise wrong(remedy)
    if isinstance(dataset, Mapping) and 0 not in dataset:
        raise wrong('pass one of its splits, such as dataset["train"]')
    sampled = workload.sampler is not None and part == "dataset"
    if not (isinstance(dataset, IterableDataset) or hasattr(dataset, "__len__") or sampled):
        raise wrong("give it __len__, or give a sampler: it cannot be shuffled without")
    try:
        length = len(dataset) if hasattr(dataset, "__len__") else None
    except Exception as error:
        raise wrap_user_error(error, f"{target}: the len() of the dataset raised") from error
    if length == 0:
        raise WorkloadError(f"{target}: the dataset is empty (len() is 0); check its path or its filter")
