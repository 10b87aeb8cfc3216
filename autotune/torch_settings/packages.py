"""The packages beside torch that some knobs need, as far as the Python that trains has them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_LATER_ATTENTION = ("flash_attn_interface", "flash_attn.cute")
_SOUGHT = ("triton", "torchao", "cutlass_api", "cutlass.operators", *_LATER_ATTENTION)


def installed() -> list[str]:
    """The packages that are installed and that this release of torch can use; none is imported."""
    from torch.nn import attention

    can_replace_attention = hasattr(attention, "activate_flash_attention_impl")
    return [name for name in _SOUGHT if _is_there(name) and (can_replace_attention or name not in _LATER_ATTENTION)]


def _is_there(name: str) -> bool:
    package, _, part = name.partition(".")
    spec = importlib.util.find_spec(package)
    folders = (spec.submodule_search_locations or ()) if spec is not None else ()
    return spec is not None and (not part or any(Path(folder, part).is_dir() for folder in folders))
