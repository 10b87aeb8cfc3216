"""Any training script, unchanged: how it is run, what is seen in it, and how its bursts become figures.

`autotune.recorder` is the half that runs inside the script; this is the parent's.
"""

from autotune.scripts.isolation import ScriptIsolation
from autotune.scripts.script import Script

__all__ = ["Script", "ScriptIsolation"]
