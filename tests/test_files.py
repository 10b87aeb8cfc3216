"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.files import write_whole


def test_file_is_written_with_its_folder_and_nothing_beside_it(tmp_path: Path) -> None:
    """What is not ASCII survives; no temporary file stays."""
    path = tmp_path / "new" / "page.html"
    write_whole(path, "größe → 1.5×\n")
    assert path.read_text(encoding="utf-8") == "größe → 1.5×\n"
    assert list(path.parent.iterdir()) == [path]


def test_failure_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old file stays whole, and no half new one lies beside it."""
    path = tmp_path / "page.html"
    write_whole(path, "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]
