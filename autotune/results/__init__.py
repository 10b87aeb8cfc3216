"""Result files: writing, reading, gathering, comparing and wording them.

`Result` is one tuned workload on one machine; `cross_file` holds what another machine's config did here. `gather` finds
files in folders, `compare` sets machines side by side, and `summary` words results for the terminal and the report.
May import `measuring` and what lies below, and no torch. Start with `result`.
"""

from autotune.results.result import Result

__all__ = ["Result"]
