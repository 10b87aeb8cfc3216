"""Times an unchanged script from outside, by torch's own hook alone: nothing of autotune is used.

Python imports this before a script's first line. `STEP_CLOCK` in the environment says, as JSON, where to write the
times (``file``), between which steps (``first``, ``last``), and what is a step: ``steps`` of any optimizer, or
``backwards``, for scripts that change their weights themselves. After the last one the process ends.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import json
import os
import sys
from time import perf_counter
from typing import Any


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Puts the clock up as soon as torch is imported, however often it was only looked for before."""

    is_asking = False

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002
        if fullname != "torch" or self.is_asking:
            return None
        self.is_asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.is_asking = False
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            sys.meta_path.remove(self)
            _put_up(json.loads(os.environ["STEP_CLOCK"]))

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _put_up(orders: dict[str, Any]) -> None:
    """Counts steps from here on."""
    import torch
    from torch.optim import optimizer

    count, began = 0, 0.0

    def tick(*_: Any) -> None:
        nonlocal count, began
        count += 1
        if count == orders["first"]:
            began = perf_counter()
        elif count == orders["last"]:
            with open(orders["file"], "w", encoding="utf-8") as out:
                json.dump({"seconds": perf_counter() - began}, out)
            sys.stdout.flush()
            os._exit(0)

    if orders["counts"] == "steps":
        optimizer.register_optimizer_step_post_hook(tick)
        return
    backward: Any = torch.Tensor.backward

    def ticking(*args: Any, **kwargs: Any) -> Any:
        returned = backward(*args, **kwargs)
        tick()
        return returned

    torch.Tensor.backward = ticking  # type: ignore[method-assign]


if "STEP_CLOCK" in os.environ:
    sys.meta_path.insert(0, _AfterTorch())
