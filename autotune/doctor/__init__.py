"""Can tuning be trusted on this machine? Each assumption that the rest of the package makes is tried out here.

`examine` runs the checks, each of which ends in a `Finding`; an `Examination` is kept in a small file beside the
results, and what does not hold is left out of the search. `workloads` holds the workloads that are examined.
"""

from autotune.doctor.examination import QUICK, examine, examine_quickly
from autotune.doctor.findings import Drop, Examination, Finding, Status, examination_path, known_examination

__all__ = [
    "QUICK", "Drop", "Examination", "Finding", "Status", "examination_path", "examine",
    "examine_quickly", "known_examination",
]  # fmt: skip
