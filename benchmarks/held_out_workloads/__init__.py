"""Ten workloads that no part of the search was developed on; `benchmarks.held_out` tunes and trains each of them.

They fit two cores. Their data are generated, or ship with scikit-learn and Python: nothing is downloaded. A constant of
the search that is chosen by their figures ends their use: then they must be replaced by others.
"""

NAMES = (
    "unet", "rotations", "tiny_layers", "table_rows", "series", "topics", "patches", "scenes", "signals", "graphs"
)  # fmt: skip


def target(name: str) -> str:
    """What `autotune --model` takes."""
    return f"{__name__}.{name}:build"
