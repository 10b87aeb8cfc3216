"""Writes files atomically, and makes file names of texts."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
from pathlib import Path

LONGEST_STEM = 80
"""Characters. File systems allow 255 bytes, and endings and dates follow."""


def stem_of(text: str) -> str:
    """A file's name for a text such as ``a/train`` or ``a.mod:build``.

    Texts of different words get different names: a long text, or one with other characters, ends in a digest.
    """
    stem = re.sub(r"[/\\.:\s]+", "-", re.sub(r"[^\w./\\:\s-]", "", text, flags=re.ASCII).replace("-", "--")).strip("-")
    if stem and len(stem) <= LONGEST_STEM and not re.search(r"[^\w./\\:\s-]", text, flags=re.ASCII):
        return stem
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{stem[:LONGEST_STEM] or 'unnamed'}-{digest}"


def write_whole(path: Path, content: str | bytes, *, like: os.stat_result | None = None) -> None:
    """Writes a temporary file beside the file, flushes it and renames it; creates the folder if needed.

    Args:
        path: The file.
        content: Text is written as UTF-8.
        like: The status of the file that it replaces: the new file gets its mode and, if permitted, its owner.

    Raises:
        OSError: The file cannot be written; nothing is left behind.
    """
    # Not tempfile: only the owner can read its files, and others must read these.
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with temporary.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            if like is not None:
                with contextlib.suppress(AttributeError, OSError):  # AttributeError: on Windows
                    os.chown(temporary, like.st_uid, like.st_gid)
                os.chmod(temporary, stat.S_IMODE(like.st_mode))
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:  # also Ctrl-C: no partial file stays
        temporary.unlink(missing_ok=True)
        raise
