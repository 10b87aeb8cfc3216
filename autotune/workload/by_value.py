"""Sends a function to the bursts by value: from a notebook's cell, a running script, or a closure.

It is sent with everything that it needs: functions and classes of other cells, data that it closes over, the module
search path, and torch's settings. In a burst all of that is `__main__` again, so the user's script is not imported, and
only the function runs. The bytes may differ between kernels: a workload is identified by its name and its fingerprint,
never by its bytes.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import IsolationError, UsageError
from autotune.torch_settings.precision import convolution_in_tf32, matmul_precision
from autotune.workload.user_errors import wrap_user_error

ENDING = ".sent"
_CELL_PREFIXES = ("<ipython-input", "<stdin", "<python-input")
_loaded: dict[str, tuple[str, Callable[..., Any]]] = {}


@dataclass(frozen=True)
class Sent:
    """A function on its way to the bursts.

    Attributes:
        build: The function.
        target: Its name in results: ``digits.ipynb:build``, ``train.py:build``, ``models.digits:build``.
    """

    build: Callable[..., Any]
    target: str

    @classmethod
    def of(cls, build: Callable[..., Any]) -> Sent:
        """Wraps a function under a name that is the same in every kernel."""
        plain = _plain(build)
        name = getattr(plain, "__qualname__", None) or type(plain).__qualname__
        module = getattr(plain, "__module__", None) or type(plain).__module__
        return cls(build, f"{_main_name() if module == '__main__' else module}:{name}")

    def write(self, path: Path) -> None:
        """Writes the function with everything that it needs.

        Raises:
            UsageError: Something that the function needs cannot be sent.
            IsolationError: The file cannot be written.
        """
        try:
            with path.open("wb") as file:
                pickle.dump(_surroundings(self.target), file)
                _pickler(file, self.build).dump(self.build)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise IsolationError(
                f"{self.target} could not be written to {path.parent} ({error.strerror or error}); "
                "free some space, or point TMPDIR at a folder that has more"
            ) from error
        except Exception as error:
            path.unlink(missing_ok=True)
            what = next(_unsendable(self.build), None)
            because = f"what it uses as {what} cannot" if what is not None else "it cannot"
            text = " ".join(str(error).split())[:200]
            raise UsageError(
                f"{self.target} runs in other processes, and {because} be sent there ({type(error).__name__}: {text}); "
                "create it inside the function, or put the function into a module and pass 'module:build'"
            ) from error


def is_sent(target: str) -> bool:
    """Whether a target is the file of a function that was sent."""
    return target.endswith(ENDING)


def load_sent(path: str) -> tuple[str, Callable[..., Any]]:
    """The target's name and its function, from a file of `Sent.write`; each process reads it once.

    Raises:
        WorkloadError: A module that the function needs could not be imported here.
    """
    if path not in _loaded:
        with open(path, "rb") as file:
            surroundings = pickle.load(file)  # noqa: S301 - written a moment ago by the process that started this one
            sys.path[:] = [*surroundings["path"], *(place for place in sys.path if place not in surroundings["path"])]
            linecache.cache.update(surroundings["sources"])
            _apply_torch_settings(surroundings["torch"])
            _main_globals(surroundings["package"])
            try:
                build = pickle.load(file)  # noqa: S301
            except (Exception, SystemExit) as error:
                name = surroundings["target"]
                raise wrap_user_error(error, f"{name}: what it needs could not be loaded") from error
        _loaded[path] = surroundings["target"], build
    return _loaded[path]


class _Globals(dict[str, Any]):
    """Stands for the globals of `__main__` in the pickle; it is unpickled as those of the new `__main__`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _main_globals, ()


def _main_globals(package: str | None = None) -> dict[str, Any]:
    """The globals of a new `__main__`, which replaces this process's own.

    It must be a module: torch.compile looks up a function's globals by the module's name.

    Args:
        package: Base of relative imports inside functions.
    """
    main = sys.modules["__main__"]
    if not isinstance(main, _Main):
        main = sys.modules["__main__"] = _Main("__main__")
        main.__package__ = package
    return vars(main)


class _Main(types.ModuleType):
    """The `__main__` of a function that was sent."""


def _plain(build: Any) -> Any:
    """The function inside a partial."""
    while isinstance(build, functools.partial):
        build = build.func
    return build


def _pickler(file: Any, build: Any) -> Any:
    """Pickles definitions of `__main__` or of a function by value, and importable ones by name."""
    import cloudpickle

    pickler = cloudpickle.Pickler(file)
    # Functions of one namespace share one after pickling; this makes it the new `__main__`. The function's own globals
    # may not be those of `__main__`: a script that a console has run leaves its functions behind.
    own = getattr(_plain(build), "__globals__", {})
    for namespace in (vars(sys.modules["__main__"]), own):
        if namespace.get("__name__") == "__main__":
            pickler.globals_ref[id(namespace)] = _Globals(__name__="__main__")
    return pickler


def _main_name() -> str:
    """The name of `__main__`: the script, the notebook if its file is known, else ``notebook``."""
    main = vars(sys.modules["__main__"])
    if (file := main.get("__file__")) is not None:
        path = Path(file).resolve()
        return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
    notebooks = (str(main.get("__vsc_ipynb_file__", "")), os.environ.get("JPY_SESSION_NAME", ""))
    names = [Path(notebook).name.replace(":", "-") for notebook in notebooks if notebook.endswith(".ipynb")]
    return names[0] if names else "notebook"


def _surroundings(target: str) -> dict[str, Any]:
    """The surroundings of a function, besides what it refers to."""
    cells = {name: entry for name, entry in linecache.cache.items() if _is_cell(name) and len(entry) == 4}
    path = [os.path.abspath(place) for place in sys.path]
    package = vars(sys.modules["__main__"]).get("__package__")
    return {"target": target, "path": path, "package": package, "sources": cells, "torch": _torch_settings()}


def _is_cell(name: str) -> bool:
    """Whether a file name stands for code typed into a notebook or a console, which a burst cannot read."""
    return name.startswith(_CELL_PREFIXES) or f"{os.sep}ipykernel_" in name


def _torch_settings() -> dict[str, Any] | None:
    """Settings of torch in this process; None where torch was not imported."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    return {
        "threads": torch.get_num_threads(),
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "precision": matmul_precision(),  # None: only the newer interface was used
        "newer_precision": getattr(torch.backends.cuda.matmul, "fp32_precision", "none"),
        "convolution_in_tf32": convolution_in_tf32(),
        "benchmark": torch.backends.cudnn.benchmark,
        "deterministic": torch.backends.cudnn.deterministic,
        "algorithms": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
    }


def _apply_torch_settings(settings: dict[str, Any] | None) -> None:
    """Applies settings of torch in this process."""
    if settings is None:
        return
    import torch

    if torch.get_num_threads() != settings["threads"]:
        torch.set_num_threads(settings["threads"])
    if settings["precision"] is not None:
        torch.set_float32_matmul_precision(settings["precision"])
    elif settings["newer_precision"] == "tf32":
        torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.set_default_dtype(getattr(torch, settings["dtype"]))
    if settings["convolution_in_tf32"] is not None:
        torch.backends.cudnn.allow_tf32 = settings["convolution_in_tf32"]
    torch.backends.cudnn.benchmark = settings["benchmark"]
    torch.backends.cudnn.deterministic = settings["deterministic"]
    deterministic, warn_only = settings["algorithms"]
    torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)


def _unsendable(build: Any) -> Iterator[str]:
    """The names that a function uses directly and whose values cannot be sent."""
    try:
        used = inspect.getclosurevars(inspect.unwrap(build))
    except (TypeError, ValueError):  # no plain function
        return
    for name, value in {**used.nonlocals, **used.globals}.items():
        with open(os.devnull, "wb") as nowhere:
            try:
                _pickler(nowhere, build).dump(value)
            except Exception:  # noqa: BLE001 - a user's class may raise anything
                yield f"{name!r}"
