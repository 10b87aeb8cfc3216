"""Python imports this before a script's first line. It starts the recorder, and changes nothing else."""

from __future__ import annotations

import sys


def _arrive() -> None:
    import importlib
    import os

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != here]
    own = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")  # the one that would have run without autotune
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = own
    finally:
        _let_in(os.path.dirname(os.path.dirname(here)))


def _let_in(folder: str) -> None:
    """Imports the recorder by its path, under a unique package name, regardless of installed packages."""
    import importlib
    import types

    package = types.ModuleType("_autotune")  # autotune's own `__init__` needs packages that may be missing here
    package.__path__ = [folder]
    sys.modules["_autotune"] = package
    importlib.import_module("_autotune.recorder.arrival").arrive()


_arrive()
