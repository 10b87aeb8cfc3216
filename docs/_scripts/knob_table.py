"""The table of knobs, as the registry prints it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def text() -> str:
    """What ``python -m autotune.knobs.table`` prints."""
    command = [sys.executable, "-m", "autotune.knobs.table"]
    if not (ROOT / "autotune/knobs/table.py").is_file():  # until the registry is there: delete these two lines
        return _fields()
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def _fields() -> str:
    from autotune.knobs.config import TrainConfig, format_scalar

    rows = [
        f"| `{name}` | {format_scalar(field.default)} | {field.description or ''} |"
        for name, field in TrainConfig.model_fields.items()
    ]
    return "\n".join(["| knob | torch's own | meaning |", "|---|---|---|", *rows])
