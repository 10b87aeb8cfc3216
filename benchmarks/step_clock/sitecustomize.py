"""Counts an unchanged script's steps from outside, by torch's own hook alone: nothing of autotune is used.

Python imports this before a script's first line. `STEP_CLOCK` in the environment says, as JSON, which file to keep the
count in (``file``), and what a step is: ``steps`` of any optimizer, or ``backwards``, for scripts that change their
weights themselves. The file holds doubles: the seconds that the process was stopped, which whoever stops it writes; the
steps so far, when the last of them ended, and the seconds that the script has evaluated by then. Of both clocks those
are left out in which it was stopped.

Evaluating is what a script does in ``torch.no_grad()`` or ``torch.inference_mode()`` of its own, or its framework's;
not what torch's own functions do there, such as clipping.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import json
import mmap
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

    with open(orders["file"], "r+b") as file:
        shared = memoryview(mmap.mmap(file.fileno(), 0)).cast("d")  # stopped, steps, ended, evaluated
    evaluated, depth, since = 0.0, 0, 0.0

    def now() -> float:
        return perf_counter() - float(shared[0])

    def tick(*_: Any) -> None:
        shared[1] += 1
        shared[2], shared[3] = now(), evaluated

    def entering(enter: Any) -> Any:
        def entered(self: Any) -> Any:
            nonlocal depth, since
            self.is_of_script = not _is_torchs(sys._getframe(1))
            if self.is_of_script:
                since = since if depth else now()
                depth += 1
            return enter(self)

        return entered

    def leaving(leave: Any) -> Any:
        def left(self: Any, *args: Any) -> Any:
            nonlocal depth, evaluated
            if self.is_of_script:
                depth -= 1
                evaluated += 0.0 if depth else now() - since
            return leave(self, *args)

        return left

    for mode in (torch.no_grad, torch.inference_mode):
        mode.__enter__ = entering(mode.__enter__)  # type: ignore[method-assign]
        mode.__exit__ = leaving(mode.__exit__)  # type: ignore[method-assign]
    if orders["counts"] == "steps":
        optimizer.register_optimizer_step_post_hook(tick)
        return
    backward: Any = torch.Tensor.backward

    def ticking(*args: Any, **kwargs: Any) -> Any:
        returned = backward(*args, **kwargs)
        tick()
        return returned

    torch.Tensor.backward = ticking  # type: ignore[method-assign]


def _is_torchs(frame: Any) -> bool:
    """Whether a function of torch's own computes without gradients; a decorator's frame tells whose it is."""
    if frame.f_code.co_name == "decorate_context":
        return str(getattr(frame.f_locals.get("func"), "__module__", "")).startswith("torch.")
    return f"{os.sep}torch{os.sep}" in frame.f_code.co_filename


if "STEP_CLOCK" in os.environ:
    sys.meta_path.insert(0, _AfterTorch())
