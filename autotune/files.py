"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Writes to a temporary name beside the file, flushed, then renamed; the folder is made if need be.

    Raises:
        OSError: The file cannot be written; nothing is left behind.
    """
    # Not tempfile: its files are for one's own eyes only, and these are for others to read.
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:  # Ctrl-C included: no half file stays
        temporary.unlink(missing_ok=True)
        raise
