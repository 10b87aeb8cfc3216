"""The `Workload` that is trained, how a target leads to it, and its fingerprint.

`load_workload` imports a ``module:attr`` and calls it; `adapters` makes workloads from objects of other frameworks;
`user_errors` words errors of the user's code. Importing this package does not import torch, which the user's own module
imports. May import `measuring` and what lies below. Start with `target`.
"""

from autotune.workload.target import load_workload
from autotune.workload.workload import Workload

__all__ = ["Workload", "load_workload"]
