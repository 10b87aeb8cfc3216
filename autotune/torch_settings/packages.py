"""What some knobs need beside torch, as far as the Python that trains has it: packages, and a C++ compiler."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

_LATER_ATTENTION = ("flash_attn_interface", "flash_attn.cute")
_SOUGHT = ("triton", "torchao", "cutlass_api", "cutlass.operators", *_LATER_ATTENTION)
CPP = "c++"
"""A C++ compiler, with which torch compiles for the CPU."""


def installed() -> list[str]:
    """What is installed and this release of torch can use; nothing is imported."""
    from torch.nn import attention

    can_replace_attention = hasattr(attention, "activate_flash_attention_impl")
    present = [name for name in _SOUGHT if _is_there(name) and (can_replace_attention or name not in _LATER_ATTENTION)]
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    compiler = shutil.which(os.environ.get("CXX", usual))  # as torch looks for it
    return [*present, *([CPP] if compiler is not None else [])]


def _is_there(name: str) -> bool:
    package, _, part = name.partition(".")
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a module without a spec, such as a stub, is there
        return True
    folders = (spec.submodule_search_locations or ()) if spec is not None else ()
    return spec is not None and (not part or any(Path(folder, part).is_dir() for folder in folders))
