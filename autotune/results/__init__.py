"""Result files: written, read, gathered, compared, and what they say in words.

`Result` is one tuned workload on one machine; `cross_file` holds what another machine's config did here. `gather` finds
files in folders, `compare` sets machines side by side, and `summary` words all of it for terminal and report alike.
"""

from autotune.results.result import Result

__all__ = ["Result"]
