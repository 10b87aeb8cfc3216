"""Older files, brought into today's form before they are checked; the files themselves stay as they are.

History of the schemas ``autotune.result`` and ``autotune.cross``:
1. The first.
2. What telemetry saw is called `telemetry`, not `readings`; the deviation of the rates is no longer kept.

Candidates are compared side by side since, so that no search knows any longer what it once wrote into either: how the
machine's speed had changed, and which bursts were run again.
"""

from __future__ import annotations

from typing import Any

OLDEST = 1
_SIDES = ("baseline", "best", "theirs", "own")
_GONE_FROM_SEARCH = {"drift", "noisy", "repeated_bursts"}


def migrated(data: dict[str, Any], version: int) -> dict[str, Any]:
    """Decoded JSON in today's form; nothing is known of it but its version."""
    sides = {name: _side_of_1(data[name]) for name in _SIDES if name in data} if version < 2 else {}
    search = {"search": _without_gone(data["search"])} if "search" in data else {}
    return data | sides | search


def _without_gone(search: Any) -> Any:
    if not isinstance(search, dict):
        return search
    return {name: value for name, value in search.items() if name not in _GONE_FROM_SEARCH}


def _side_of_1(side: Any) -> Any:
    measured = side.get("measurement") if isinstance(side, dict) else None
    if not isinstance(measured, dict):
        return side
    kept = {name: value for name, value in measured.items() if name not in {"readings", "mad_samples_per_second"}}
    return side | {"measurement": kept | {"telemetry": measured.get("readings")}}
