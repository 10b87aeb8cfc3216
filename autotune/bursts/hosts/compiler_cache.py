"""Compiled code that outlives a run: torch's own cache, and the headers that Inductor precompiles for C++ code."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path

WRITING_SECONDS = 120.0
"""A header that is incomplete for longer is what a killed compiler has left; writing one takes 8 s on two CPUs."""

INCOMPLETE = {b"", b"gpcWrite"}
"""First eight bytes of a precompiled header that GCC is still writing: it replaces them at the end, and ignores the
file until then."""


def compiler_cache() -> Path:
    """The cache folder of all bursts, which is torch's own default: the user's training then starts warm."""
    return Path(tempfile.gettempdir()) / f"torchinductor_{_user_name()}"


def share_headers(temporary: Path) -> None:
    """Lets processes with this temporary folder use the headers that earlier runs have precompiled.

    Before its first C++ code, Inductor compiles headers of 150 MB. It keeps them in the temporary folder, not in its
    cache, and never replaces an incomplete one; so they have a folder of autotune's own. On two CPUs a first small
    model takes 11 s with them, and 20 s without.
    """
    kept, place = compiler_cache() / "autotune_headers", temporary / compiler_cache().name
    with contextlib.suppress(OSError):  # then each run compiles its own
        kept.mkdir(parents=True, exist_ok=True)
        for header in kept.glob("*.gch"):
            if time.time() - header.stat().st_mtime > WRITING_SECONDS and _begins(header) in INCOMPLETE:
                header.unlink()
        place.mkdir(exist_ok=True)
        (place / "precompiled_headers").symlink_to(kept, target_is_directory=True)


def _begins(header: Path) -> bytes:
    with header.open("rb") as file:
        return file.read(8)


def _user_name() -> str:
    """The name that torch puts into its cache folder's name."""
    import getpass

    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # a user without an entry in the password file, or without that file
        return f"uid_{os.getuid()}" if hasattr(os, "getuid") else "unknown_user"
