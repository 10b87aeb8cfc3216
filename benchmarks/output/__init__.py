"""What the benchmarks found: one JSON file a benchmark, with the machine and the date inside."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from autotune.hardware import probe_host

FOLDER = Path(__file__).parent


def saved(name: str) -> dict[str, Any]:
    """What an earlier run of a benchmark wrote; empty when there was none."""
    path = FOLDER / f"{name}.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def save(name: str, figures: dict[str, Any]) -> Path:
    """Writes a benchmark's figures beside this file; returns the path, relative to the project."""
    host = probe_host()
    document = {
        "benchmark": name,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": host.slug,
        "versions": host.software.model_dump(exclude_none=True),
        **figures,
    }
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path.relative_to(FOLDER.parents[1])
