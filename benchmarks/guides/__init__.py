"""The workloads of five hand-written tuning guides, with what each guide starts from and what it advises.

Each of the modules in `GUIDES` has

- ``build``, whose workload's baseline is ``BEFORE``: what the guide's reader trains with;
- ``GUIDE``: what it advises instead; the effective batch is the same but for ``lm_pretrain``, which says why;
- ``VARIANTS``, by name: what it advises for other cases;
- ``VARIANT_PARAMETERS``: the arguments of ``build`` for those variants that change what is trained.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

GUIDES = ("cnn_lstm", "asl_transformer", "landmarks_finetune", "ctc_tips", "lm_pretrain")
FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "autotune-benchmarks"
Scale = Literal["auto", "cpu", "full"]


def chosen_scale(scale: Scale) -> Literal["cpu", "full"]:
    """The scale that is meant: ``auto`` is the guide's own size where torch finds a GPU, else that for two cores.

    Raises:
        ValueError: When there is no such scale.
    """
    import torch  # here, so that the names above cost nothing

    if scale not in {"auto", "cpu", "full"}:
        raise ValueError(f"scale={scale!r} was given, but auto, cpu or full was expected")
    if scale == "auto":
        return "full" if torch.cuda.is_available() else "cpu"
    return scale


def written_once(name: str, write: Callable[[Path], None]) -> Path:
    """A folder of files that are the same on every machine; written if it is not there.

    Args:
        name: Of the folder; tells all that its files depend on.
        write: Fills an empty folder.
    """
    folder = FOLDER / name
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Another process may be writing it too: each writes its own, and the first to be done gives it the name.
    unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{name}."))
    try:
        write(unfinished)
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished)
        if not folder.exists():
            raise
    return folder
