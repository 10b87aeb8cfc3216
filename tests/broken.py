"""JSON that another program or a person has broken: any value in any place, for tests of what reads it."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

# Numbers beyond 64 bits and the like are what a broken program writes; text is what a person breaks.
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**63), max_value=2**63)
    | st.floats()
    | st.sampled_from([0, 1, -1, 1e-320, 1e308, 10**400, -(10**400)])
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=4,
)


def leaves(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in decoded JSON, containers included."""
    children = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(leaf for key, value in children for leaf in leaves(value, (*path, key)))]


def with_value(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of decoded JSON with another value at a path."""
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[path[0]] = with_value(copy[path[0]], path[1:], value) if path[1:] else value
    return copy
