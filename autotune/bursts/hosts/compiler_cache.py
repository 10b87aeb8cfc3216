"""Compiled code that outlives a run: torch's own cache, and the headers that Inductor precompiles for C++ code."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from pathlib import Path

from autotune.sandbox.system import LINUX

WRITING_SECONDS = 120.0
"""A header that is incomplete for longer is what a killed compiler has left; writing one takes 8 s on two CPUs."""

INCOMPLETE = {b"", b"gpcWrite"}
"""First eight bytes of a precompiled header that GCC is still writing: it replaces them at the end, and ignores the
file until then."""

FREE_BYTES = 2**30
"""Headers are kept where this much is free: those of one torch have 150 MB."""


def compiler_cache() -> Path:
    """The cache folder of all bursts, which is torch's own default: the user's training then starts warm."""
    return Path(tempfile.gettempdir()) / f"torchinductor_{_user_name()}"


def share_headers(temporary: Path) -> None:
    """Lets processes with this temporary folder use the headers that earlier runs have precompiled.

    Before its first C++ code, Inductor compiles headers of 150 MB. It keeps them in the temporary folder, not in its
    cache, and never replaces an incomplete one; so they have a folder of autotune's own. On two CPUs a first small
    model takes 11 s with them, and 20 s without.

    Where they cannot be kept, each run compiles its own. That includes Clang: its headers name the place where they
    were made, which goes with the run.
    """
    if not LINUX or "clang" in os.environ.get("CXX", ""):
        return
    kept, link = compiler_cache() / "autotune_headers", temporary / compiler_cache().name / "precompiled_headers"
    with contextlib.suppress(OSError):
        kept.mkdir(parents=True, exist_ok=True)  # anew, where the cache was cleared while the run goes on
        for header in kept.glob("*.gch"):
            _remove_part(header)
        link.parent.mkdir(exist_ok=True)
        usable = os.access(kept, os.W_OK | os.X_OK) and shutil.disk_usage(kept).free > FREE_BYTES
        if usable and not link.exists():
            link.symlink_to(kept, target_is_directory=True)
        elif link.is_symlink() and not usable:
            link.unlink()


def _remove_part(header: Path) -> None:
    """Removes what a killed compiler has left; another run may do so at the same time."""
    with contextlib.suppress(OSError), header.open("rb") as file:
        if time.time() - os.fstat(file.fileno()).st_mtime > WRITING_SECONDS and file.read(8) in INCOMPLETE:
            header.unlink()


def _user_name() -> str:
    """The name that torch puts into its cache folder's name."""
    import getpass

    try:
        return re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (ImportError, KeyError, OSError):  # a user without an entry in the password file, or without that file
        return f"uid_{os.getuid()}" if hasattr(os, "getuid") else "unknown_user"
