"""Python imports this before a script's first line; it lets the recorder in, and leaves all else as it was."""

import sys


def _arrive():
    import importlib.util
    import os

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != here]
    own = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")  # the one that would have run without us
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = own
    finally:
        _load(importlib.util, os.path.dirname(here))


def _load(util, folder):
    """Imports the recorder by its path, whatever is installed here, under a name that nobody else has."""
    import os

    place = os.path.join(folder, "__init__.py")
    spec = util.spec_from_file_location("_autotune_recorder", place, submodule_search_locations=[folder])
    package = util.module_from_spec(spec)
    sys.modules["_autotune_recorder"] = package
    spec.loader.exec_module(package)
    from _autotune_recorder.arrival import arrive

    arrive()


_arrive()
