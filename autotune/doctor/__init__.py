"""Checks whether tuning can be trusted on this machine, by testing each assumption that the rest of the package makes.

`examine` runs the checks, and each yields findings. A small file beside the results stores the `Examination`, and the
search leaves out what does not hold. `workloads` holds the workloads of the checks. May import
`scripts` and what lies below. Start with `examination`.
"""

from autotune.doctor.examination import QUICK, examine, examine_quickly
from autotune.doctor.findings import Drop, Examination, Finding, Status, examination_path, known_examination

__all__ = [
    "QUICK", "Drop", "Examination", "Finding", "Status", "examination_path", "examine",
    "examine_quickly", "known_examination",
]  # fmt: skip
