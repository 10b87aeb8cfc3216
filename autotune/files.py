"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
from pathlib import Path

LONGEST_STEM = 80
"""Characters, of the 255 bytes that file systems allow: endings and dates follow."""


def stem_of(text: str) -> str:
    """A file's name for a text such as ``a/train`` or ``a.mod:build``.

    Two texts of different words get different names: a long one, or one with other characters, ends in a digest.
    """
    stem = re.sub(r"[/\\.:\s]+", "-", re.sub(r"[^\w./\\:\s-]", "", text, flags=re.ASCII).replace("-", "--")).strip("-")
    if stem and len(stem) <= LONGEST_STEM and not re.search(r"[^\w./\\:\s-]", text, flags=re.ASCII):
        return stem
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{stem[:LONGEST_STEM] or 'unnamed'}-{digest}"


def write_whole(path: Path, content: str | bytes, *, like: os.stat_result | None = None) -> None:
    """Writes to a temporary name beside the file, flushed, then renamed; the folder is made if need be.

    Args:
        path: The file.
        content: Text is written as UTF-8.
        like: What is known of the file whose place it takes: it gets its mode and, if that may be, its owner.

    Raises:
        OSError: The file cannot be written; nothing is left behind.
    """
    # Not tempfile: its files are for one's own eyes only, and these are for others to read.
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with temporary.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            if like is not None:
                with contextlib.suppress(OSError):
                    os.fchown(file.fileno(), like.st_uid, like.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(like.st_mode))
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:  # Ctrl-C included: no half file stays
        temporary.unlink(missing_ok=True)
        raise
