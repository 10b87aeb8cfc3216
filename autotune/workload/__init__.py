"""What is trained: the `Workload`, how a target leads to it, and what names it.

`load_workload` imports a ``module:attr`` and calls it; `adapters` makes workloads of what other frameworks train;
`user_errors` words what the user's code raised. Importing this room does not import torch, which comes with the user's
own module.
"""

from autotune.workload.target import load_workload
from autotune.workload.workload import Workload

__all__ = ["Workload", "load_workload"]
