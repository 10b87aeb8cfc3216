"""The settings of torch that hold for a whole process, remembered so that they can be put back."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from .precision import convolution_in_tf32, matmul_precision, products
from .telling import restrict_attention


class ProcessSettings:
    """Changes settings, and puts back each one that nothing else has changed since.

    Args:
        change: Changes them.
        variables: The environment variables that ``change`` sets.
    """

    def __init__(self, change: Callable[[], None], variables: Mapping[str, str]) -> None:
        self._variables = {name: (value, os.environ.get(name)) for name, value in variables.items()}
        self._before, self._put_back_products = _settings(), products()
        change()
        self._after = _settings()

    def put_back(self) -> None:
        """Puts back threads, cuDNN's search, TF32, attention and variables."""
        import torch

        now = _settings()
        changed = {name for name in now if self._before[name] != self._after[name] == now[name]}
        if "threads" in changed:
            torch.set_num_threads(self._before["threads"])
        if "search" in changed:
            torch.backends.cudnn.benchmark = self._before["search"]
        if "products" in changed:
            self._put_back_products()
        restrict_attention("default", torch.device("cpu"))
        for name, (value, former) in self._variables.items():
            if os.environ.get(name) == value:
                os.environ.pop(name)
                os.environ.update({name: former} if former is not None else {})


def _settings() -> dict[str, Any]:
    import torch

    return {
        "threads": torch.get_num_threads(),
        "search": torch.backends.cudnn.benchmark,
        "products": (matmul_precision(), convolution_in_tf32()),
    }
