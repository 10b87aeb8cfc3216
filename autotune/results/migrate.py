"""Older files, brought into today's form before they are checked; the files themselves stay as they are.

History of the schemas ``autotune.result`` and ``autotune.cross``:
1. The first.
2. What telemetry saw is called `telemetry`, not `readings`; the deviation of the rates is no longer kept.
"""

from __future__ import annotations

from typing import Any

OLDEST = 1
_SIDES = ("baseline", "best", "theirs", "own")


def migrated(data: dict[str, Any], version: int) -> dict[str, Any]:
    """Decoded JSON in today's form; nothing is known of it but its version."""
    if version >= 2:
        return data
    return data | {name: _side_of_1(data[name]) for name in _SIDES if name in data}


def _side_of_1(side: Any) -> Any:
    measured = side.get("measurement") if isinstance(side, dict) else None
    if not isinstance(measured, dict):
        return side
    kept = {name: value for name, value in measured.items() if name not in {"readings", "mad_samples_per_second"}}
    return side | {"measurement": kept | {"telemetry": measured.get("readings")}}
