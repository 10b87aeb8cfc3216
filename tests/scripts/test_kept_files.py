"""Files that a script's bursts touch: put back, removed, or left and told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.scripts.kept import Kept


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    """Of an empty run."""
    return Kept(tmp_path / "kept")


def tell(kept: Kept, *entries: dict[str, Any]) -> None:
    """As the recorder does."""
    text = "".join(json.dumps({"in_loop": True, "made": False, **entry}) + "\n" for entry in entries)
    (kept.folder / "written.jsonl").write_text(text)


def test_what_was_there_is_put_back(kept: Kept, tmp_path: Path) -> None:
    """Its content before the first burst."""
    log, copy = tmp_path / "log.txt", kept.folder / "copy"
    copy.write_text("before")
    log.write_text("after it")
    tell(kept, {"path": str(log), "copy": str(copy)})
    assert "put back as they were" in (kept.put_back() or "")
    assert log.read_text() == "before"


def test_what_training_made_is_removed_with_its_empty_folder(kept: Kept, tmp_path: Path) -> None:
    """The folder was told first, since it was made first."""
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "event").write_text("x")
    tell(kept, {"path": str(folder), "made": True}, {"path": str(folder / "event"), "made": True})
    assert "removed, since training had made them" in (kept.put_back() or "")
    assert not folder.exists()


def test_what_was_made_before_training_stays_and_is_told(kept: Kept, tmp_path: Path) -> None:
    """A data set that was downloaded is worth keeping."""
    data = tmp_path / "data.bin"
    data.write_text("much")
    tell(kept, {"path": str(data), "made": True, "in_loop": False})
    assert "left, since the script made them before it trained" in (kept.put_back() or "")
    assert data.exists()


def test_nothing_is_told_where_nothing_was_touched(kept: Kept) -> None:
    """Nor the second time."""
    assert kept.put_back() is None
