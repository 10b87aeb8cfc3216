"""A fleet: the same tuning on several kinds of machine, through an engine that reaches them.

`plan` reads what a person wrote about the machines; `job` is what runs on one of them; `ray_engine` and `slurm_engine`
bring it there and its result back; `campaign` sends everybody out, and again where a machine was lost.
"""

from autotune.fleet.campaign import Campaign, Ending
from autotune.fleet.engine import Engine
from autotune.fleet.job import Job
from autotune.fleet.plan import MachineKind, Plan, read_plan

__all__ = ["Campaign", "Ending", "Engine", "Job", "MachineKind", "Plan", "read_plan"]
