"""A fleet: the same tuning on several kinds of machine, through an engine that reaches them.

`plan` reads the fleet file; `job` is what runs on one machine; `ray_engine` and `slurm_engine` send jobs and bring back
their results; `campaign` starts all jobs, and starts a job again when its machine is lost. May import what lies below
`search`. Start with `campaign`.
"""

from autotune.fleet.campaign import Campaign, Ending, Engine
from autotune.fleet.job import Job
from autotune.fleet.plan import MachineKind, Plan, read_plan

__all__ = ["Campaign", "Ending", "Engine", "Job", "MachineKind", "Plan", "read_plan"]
