"""Python imports this before a script's first line; it lets the recorder in, and leaves all else as it was."""

from __future__ import annotations

import sys


def _arrive() -> None:
    import importlib
    import os

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != here]
    own = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")  # the one that would have run without us
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = own
    finally:
        _let_in(os.path.dirname(here))


def _let_in(folder: str) -> None:
    """Imports the recorder by its path, whatever is installed here, under a name that nobody else has."""
    import importlib.util
    import os

    place = os.path.join(folder, "__init__.py")
    spec = importlib.util.spec_from_file_location("_autotune_recorder", place, submodule_search_locations=[folder])
    if spec is None or spec.loader is None:
        return
    package = importlib.util.module_from_spec(spec)
    sys.modules["_autotune_recorder"] = package
    spec.loader.exec_module(package)
    importlib.import_module("_autotune_recorder.arrival").arrive()


_arrive()
